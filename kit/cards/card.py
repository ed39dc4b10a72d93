"""The model card of a run: what the model is, how it was made, what was measured, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kit.cards.adapter import adapter_use
from kit.cards.markdown import code_block, escape, quoted
from kit.cards.metadata import metadata
from kit.cards.provenance import data_notes, data_sentence, data_table, shared_recipe, summary, training
from kit.cards.tables import figure_titles, figures_of, figures_table, group_tables, results_table
from kit.recipe.catalog import model_cards_folder

if TYPE_CHECKING:
    from kit.recipe.base import Recipe


def write_card(
    run_folder: Path,
    recipe: Recipe,
    results: Mapping[str, Any],
    template: str,
    sections: Mapping[str, Any],
    place: str | None = None,
    merged: bool = False,
) -> str:
    """The text of README.md for a run and its model: metadata for the Hub, then Markdown. An adapter is `merged` once
    its model is a plain one.

    `template` names a file in model_cards/, and `sections` are the values that only cards of the task have.
    `results` is what results.json holds; examples and pictures are taken from the run folder where they are there.
    `place` is the id of the model on the Hub, for the card that goes there.
    Pictures are linked as `plots/NAME.png`: a folder that gets the card needs a copy of `plots/`. All that comes from
    data is written so that it shows as it is, and can neither end a table cell nor be taken for markup or HTML.
    """
    import jinja2

    run_folder = Path(run_folder)
    pictures = _pictures(run_folder)
    adapter = recipe.peft.method is not None and not merged
    titles = figure_titles(recipe.eval.metrics)
    # Strict, so that a name that the template misspells is an error and not a gap in the card.
    card = jinja2.Template(
        (model_cards_folder() / f"{template}.md").read_text(encoding="utf-8"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return card.render(
        card_data=metadata(_name(run_folder, place), recipe, results, adapter).to_yaml(),
        name=escape(_name(run_folder, place)),
        place=quoted(place or "model"),
        place_note="" if place else "  # the folder that holds config.json, or the id of this model on the Hub",
        repeat=f"`kit train {place}`, or save this as `recipe.yaml` and `kit train recipe.yaml`"
        if place
        else "Save this as `recipe.yaml`, then `kit train recipe.yaml`",
        summary=summary(recipe, results),
        results_table=results_table(results, titles),
        group_tables=group_tables(results, titles),
        adapter=adapter,
        adapter_use=adapter_use(recipe) if adapter else "",
        own_code=recipe.model.type in type(recipe).kit_types,
        data_sentence=data_sentence(recipe),
        data_table=data_table(recipe, results),
        data_notes=data_notes(results),
        training_table=figures_table(training(results), ("figure", "value")),
        curves=[picture for picture in pictures if "attention" not in picture["title"]],
        attentions=[picture for picture in pictures if "attention" in picture["title"]],
        recipe_block=code_block(shared_recipe(recipe), "yaml"),
        versions_table=figures_table(figures_of(results, "versions"), ("package", "version")),
        **sections,
    )


def _name(run_folder: Path, place: str | None) -> str:
    return place.rpartition("/")[2] if place else run_folder.resolve().name


def _pictures(run_folder: Path) -> list[dict[str, str]]:
    """The pictures of the run, the loss first."""
    files = sorted((run_folder / "plots").glob("*.png"), key=lambda file: (file.stem != "loss", file.name))
    return [
        {"title": escape(file.stem.replace("_", " ")), "link": f"plots/{quote(file.name)}"}
        for file in files
        if not file.name.startswith(".")
    ]
