"""The model card of a run: what the model is, how it was trained, what was measured, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kit.cards.markdown import code_block, escape, quoted
from kit.cards.metadata import metadata
from kit.cards.provenance import (
    base_on_hub,
    data_notes,
    data_sentence,
    data_table,
    shared_recipe,
    short_path,
    summary,
    training,
)
from kit.cards.tables import figures_of, figures_table, group_tables, results_table
from kit.evaluation.titles import figure_titles
from kit.hub.names import RepoRef
from kit.models import MODELS
from kit.recipe.catalog import model_cards_folder
from kit.system.files import read_json

if TYPE_CHECKING:
    import jinja2

    from kit.recipe.base import Recipe


GENERATING_CLASSES = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM")
"""Auto classes whose models are called by `generate()` on the card of an adapter."""


def write_card(
    run_folder: Path,
    recipe: Recipe,
    results: Mapping[str, Any],
    template: str,
    sections: Mapping[str, Any],
    repo_id: str | None = None,
    merged: bool = False,
) -> str:
    """The model card of a run, as the text of README.md: metadata for the Hub, then Markdown.

    `template` names a file in model_cards/ that extends base.md, and `sections` are the values that differ between
    tasks. `results` is the content of results.json; example predictions and plots are read from the run folder if they
    exist. `repo_id` is the model's id on the Hub, for the card that is uploaded. `merged` describes an adapter after it
    has been merged into its base model.

    Plots are linked as `plots/NAME.png`, so the card needs a copy of `plots/` beside it. Text from the data is escaped:
    it shows literally, and can neither end a table cell nor become Markdown or HTML.
    """
    run_folder = Path(run_folder)
    plots = _plots(run_folder)
    adapter = recipe.peft.method is not None and not merged
    titles = figure_titles(recipe.eval.metrics)
    name = repo_id.rpartition("/")[2] if repo_id else run_folder.resolve().name
    base = base_on_hub(recipe)
    config_file = "adapter_config.json" if adapter else "config.json"
    values = {
        "card_data": metadata(name, recipe, results, adapter).to_yaml(),
        "name": escape(name),
        "summary": summary(recipe, results),
        "results_table": results_table(results, titles),
        "results_note": "",
        "group_tables": group_tables(results, titles),
        "examples_table": "",
        "model": repo_id or "model",
        "model_comment": "this model on the Hub" if repo_id else f"the folder with {config_file}, or its id on the Hub",
        "on_hub": repo_id is not None,
        "pipeline": recipe.hub_task,
        "custom_pipeline": False,
        "custom_code": _model_type(run_folder, recipe) in MODELS,
        "adapter": adapter,
        "auto_class": recipe.auto_class,
        "generates": recipe.auto_class in GENERATING_CLASSES,
        "base": base or RepoRef(short_path(recipe.model.pretrained or "")),
        "base_on_hub": base is not None,
        "data_sentence": data_sentence(recipe),
        "data_table": data_table(recipe, results),
        "data_notes": data_notes(results),
        "training_table": figures_table(training(recipe, results), ("figure", "value")),
        "training_notes": [escape(note) for note in results.get("initialization") or ()],
        "curves": [plot for plot in plots if "attention" not in plot["title"]],
        "attentions": [plot for plot in plots if "attention" in plot["title"]],
        "recipe_block": code_block(shared_recipe(recipe), "yaml"),
        "versions_table": figures_table(figures_of(results, "versions"), ("package", "version")),
    }
    return _environment().get_template(f"{template}.md").render(values | dict(sections))


def _environment() -> jinja2.Environment:
    import jinja2

    # Strict, so that a misspelled name in a template is an error and not a gap in the card. No autoescaping: it is for
    # HTML, and the functions in markdown.py escape for Markdown.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(model_cards_folder()),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["literal"] = quoted
    return environment


def _model_type(run_folder: Path, recipe: Recipe) -> str | None:
    """The type of the model, which a recipe does not name if it starts from a pretrained one."""
    for file in ("config.json", "model_config.json"):
        for folder in (run_folder / "model", run_folder):
            if (folder / file).is_file():
                return read_json(folder / file, "a model configuration").get("model_type")
    return recipe.model.type


def _plots(run_folder: Path) -> list[dict[str, str]]:
    """The plots of the run, the loss first."""
    files = sorted((run_folder / "plots").glob("*.png"), key=lambda file: (file.stem != "loss", file.name))
    return [
        {"title": escape(file.stem.replace("_", " ")), "link": f"plots/{quote(file.name)}"}
        for file in files
        if not file.name.startswith(".")
    ]
