"""The curse of length: what attention is for, as one picture and one table.

python recipes/scripts/length_experiment.py FOLDER --output runs/length

Trains recipes/experiments/length.yaml five times, on captions that were joined to texts of up to about 60 words:
without attention, with a fixed context, with attention, and the first and the last with the source read in reverse.
Then BLEU by the length of the source goes into length.md and length.png in the output folder. A model that is there
already is not trained again, and an unfinished one goes on. FOLDER has train.de, train.en and so on; any `key=value`
behind it changes the recipe of all models.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kit import KitError, load_recipe, train
from kit.cards.markdown import table
from kit.plots.curves import save_picture
from kit.system.console import Reporter
from kit.system.files import write_text

NONE = ["model.attention=none", "model.attention_query=previous", "model.context_to=[]"]
FIXED = ["model.attention=fixed", "model.attention_query=previous", "model.context_to=[input, readout]"]
REVERSED = ["model.reverse_source=true"]
MODELS = {
    "no attention": NONE,
    "no attention, reversed": NONE + REVERSED,
    "fixed context": FIXED,
    "attention": [],
    "attention, reversed": REVERSED,
}
STYLES = {
    "no attention": ("#cc6633", "-"),
    "no attention, reversed": ("#cc6633", "--"),
    "fixed context": ("#999933", "-"),
    "attention": ("#4477aa", "-"),
    "attention, reversed": ("#4477aa", "--"),
}
Groups = dict[str, dict[str, Any]]  # figures by length: {"1-10 words": {"count": 33, "bleu": 40.1}}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="BLEU by the length of the source, with and without attention.")
    parser.add_argument("folder", help="parallel text: train.de, train.en, val.de, …")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="changes of the recipe, for all models")
    parser.add_argument("--output", type=Path, default=Path("runs/length"), help="where the runs and the results go")
    parser.add_argument("--minutes", type=float, help="longest training of each model")
    given = parser.parse_args(arguments)
    changes = [f"data.path={given.folder}", *given.changes]
    if given.minutes is not None:
        changes.append(f"train.max_minutes={given.minutes}")

    reporter, tests = Reporter(), {}
    for name, own in MODELS.items():
        recipe = load_recipe("experiments/length", [*changes, *own])
        output = given.output / name.replace(", ", "_").replace(" ", "_")
        reporter.say(f"{name}: {output}")
        tests[name] = train(recipe, output, resume=True, reporter=reporter).results["test"]
    write_text(given.output / "length.md", as_table(tests) + "\n")
    draw({name: test["by"]["length"] for name, test in tests.items()}, given.output / "length.png")
    print(as_table(tests))
    reporter.say(f"written: {given.output / 'length.md'} and {given.output / 'length.png'}")


def as_table(tests: dict[str, dict[str, Any]]) -> str:
    """BLEU of each model by length, and of all lengths together, as Markdown."""
    lengths: Groups = next(iter(tests.values()))["by"]["length"]
    rows = [
        [length, figures["count"], *(test["by"]["length"][length]["bleu"] for test in tests.values())]
        for length, figures in lengths.items()
    ]
    whole = ["all", sum(figures["count"] for figures in lengths.values()), *(test["bleu"] for test in tests.values())]
    return table(["source", "examples", *tests], [*rows, whole])


def draw(groups: dict[str, Groups], path: Path) -> None:
    """One line for each model: BLEU over the length of the source."""
    figure = Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for name, lengths in groups.items():
        color, style = STYLES[name]
        labels = [length.removesuffix(" words") for length in lengths]
        axes.plot(labels, [figures["bleu"] for figures in lengths.values()], style, color=color, marker="o", label=name)
    axes.set_xlabel("words of the source")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    save_picture(figure, path)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KitError as error:
        sys.exit(f"error: {error}")
