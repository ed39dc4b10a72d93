"""Write the figures of a finished run into the recipe it was started from.

python recipes/scripts/record.py RUN RECIPE [key=value ...] [--card FILE]

Replaces the section `measured`, which is the last one of every shipped recipe; nothing before it changes. The run must
have used this recipe. Give the overrides that it was started with: they may only name where its data and pretrained
models were, and are recorded with the figures. --card also writes the run's model card, with the license, languages and
tags of the recipe and without plots: those of the shipped recipes are in model_cards/finished.
"""

import argparse
import math
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from kit import KitError, load_recipe
from kit.recipe.catalog import Figure, find_recipe
from kit.recipe.document import read_text, write_yaml
from kit.runs.folder import RunFolder
from kit.runs.revisions import reuse_revisions
from kit.system.outputs import write_text
from kit.tasks.registry import create_task

NOT_COMPARED = ("measured", "hub.", "data.fingerprints")
OVERRIDABLE = ("data.", "model.pretrained", "tokenizer.pretrained")
FROM_RESULTS = ("parameters", "hardware")
LIBRARIES = ("kit", "python", "torch", "transformers", "accelerate", "datasets")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Write the figures of a finished run into its recipe.")
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("recipe", type=Path, help="the recipe file of that run")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="where the run had its data and models")
    parser.add_argument("--card", type=Path, metavar="FILE", help="a file to keep the run's model card in")
    options = parser.parse_args(arguments)

    path, run = find_recipe(options.recipe), RunFolder.open(options.run)
    figures = figures_of_run(run, path, options.changes)
    write_text(path, with_measured(read_text(path), figures, path))
    for name, value in figures.items():
        print(f"{name}: {value}")
    if options.card is not None:
        write_text(options.card, without_plots(card_of(run, path)))
        print(f"card: {options.card}")


def figures_of_run(run: RunFolder, path: Path, changes: list[str]) -> dict[str, Figure]:
    """The section `measured` of a run. Raises KitError unless the run is finished and used this recipe."""
    if refused := [change for change in changes if not change.startswith(OVERRIDABLE)]:
        raise KitError(f"{', '.join(refused)} would change what the figures mean. Put it into {path}, or train again")
    recipe, ran, results = load_recipe(path, changes), run.recipe(), run.results()
    differences = reuse_revisions(recipe, ran).differences(ran)
    if differences := [key for key in differences if not key.startswith(NOT_COMPARED)]:
        before, now = ran.flat(), recipe.flat()
        shown = [f"  {key}: {before.get(key)} in the run, {now.get(key)} in {path}" for key in differences]
        raise KitError("\n".join([f"{run.path} used another recipe, so its figures do not belong here:", *shown]))

    figures: dict[str, Figure] = {}
    for split in ("test", "validation"):
        for metric, value in results.get(split, {}).items():
            if isinstance(value, int | float):
                if not math.isfinite(value):
                    raise KitError(f"{run.results_file}: {split}.{metric} is {value}, which cannot be recorded")
                figures[f"{split}_{metric}"] = four_digits(value)
    figures |= {"minutes": four_digits(results["train"]["seconds"] / 60), "steps": results["train"]["steps"]}
    figures |= {name: results[name] for name in FROM_RESULTS}
    versions = results["versions"]
    figures["versions"] = ", ".join(f"{name} {versions[name]}" for name in LIBRARIES if name in versions)
    if averaging := results.get("averaging"):
        figures["averaging"] = describe_averaging(averaging, recipe.eval.metric_for_best_model)
    if changes:
        figures["changes"] = shlex.join(map(without_machine_path, changes))
    return figures


def card_of(run: RunFolder, path: Path) -> str:
    """The card of a run with the license, languages and tags of its recipe. A run whose data or pretrained model was
    named on the command line does not claim them; recording its figures states that they are those of the recipe."""
    described = run.recipe().model_copy(update={"hub": load_recipe(path).hub})
    return create_task(described).write_card(run.path, run.results())


def describe_averaging(averaging: dict[str, Any], metric: str) -> str:
    """Compare the averaged checkpoints with the best step, by the metric that chose between them."""
    best, mean = (four_digits(averaging[side][metric]) for side in ("best_step", "average"))
    steps = len(averaging["steps"])
    return f"{metric} on validation {best} at the best step, {mean} as the mean of {steps} checkpoints"


def with_measured(text: str, figures: dict[str, Figure], path: Path) -> str:
    """The text of a recipe with `figures` as its last section, `measured`, in place of the old one if there is one."""
    head, _, old = text.partition("\nmeasured:")
    if re.search(r"\n[^\s]", old):
        raise KitError(f"{path}: `measured` is not the last section. Move it to the end")
    return f"{head.rstrip()}\n{write_yaml({'measured': figures})}"


def without_plots(card: str) -> str:
    """A model card with the name of each plot instead of the plot, which stays with the run."""
    return re.sub(r"!\[[^\]]*\]\((plots/[^)]*)\)", r"(Picture of the run: `\1`.)", card)


def without_machine_path(change: str) -> str:
    """A key=value with only the last two names of an absolute path: the rest differs from machine to machine."""
    key, _, value = change.partition("=")
    return f"{key}={'/'.join(Path(value).parts[-2:])}" if Path(value).is_absolute() else change


def four_digits(value: float) -> float:
    """Round to four significant digits, about what a repeated run reproduces."""
    return value if isinstance(value, int) else float(f"{value:.4g}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KitError as error:
        sys.exit(f"error: {error}")
