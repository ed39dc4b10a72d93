"""BLEU by source length, with and without attention: one plot and one table.

python recipes/scripts/length_experiment.py FOLDER --output runs/length

FOLDER holds Multi30k as published: train, val and test_2016_flickr, each as .de and .en, plain or as .gz. The script
joins consecutive captions into texts of up to about 60 words, writes them to runs/length/data (--data-only stops here),
and trains recipes/experiments/length.yaml five times: without attention, with a fixed context, with attention, and the
first and the last with the source reversed. BLEU by the length of the source goes into length.md and length.png in the
output folder. Finished models are not trained again, and interrupted ones resume. Any `key=value` after FOLDER changes
the recipe of all models.
"""

import argparse
import gzip
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kit import DataError, KitError, load_recipe, train
from kit.cards.markdown import table
from kit.plots.saving import save_figure
from kit.system.console import Reporter
from kit.system.outputs import write_text

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
SPLITS = {"train": "train", "validation": "val", "test": "test_2016_flickr"}  # each with its name in Multi30k
LANGUAGES = ("de", "en")
MAX_CAPTIONS = 5  # in a joined text
Groups = dict[str, dict[str, Any]]  # figures by length: {"1-10 words": {"count": 33, "bleu": 40.1}}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="BLEU by the length of the source, with and without attention.")
    parser.add_argument("folder", type=Path, help="Multi30k: train.de, train.en, val.de, …")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="changes of the recipe, for all models")
    parser.add_argument("--output", type=Path, default=Path("runs/length"), help="where the runs and the results go")
    parser.add_argument("--minutes", type=float, help="maximum training time per model")
    parser.add_argument("--data-only", action="store_true", help="write the joined texts and stop")
    options = parser.parse_args(arguments)
    data = write_joined(options.folder, options.output / "data")
    if options.data_only:
        return
    changes = [f"data.path={data}", *options.changes]
    if options.minutes is not None:
        changes.append(f"train.max_minutes={options.minutes}")

    reporter, tests = Reporter(), {}
    for name, overrides in MODELS.items():
        recipe = load_recipe("experiments/length", [*changes, *overrides])
        output = options.output / name.replace(", ", "_").replace(" ", "_")
        reporter.print(f"{name}: {output}")
        tests[name] = train(recipe, output, resume=True).results["test"]
    write_text(options.output / "length.md", as_table(tests) + "\n")
    draw({name: test["by"]["length"] for name, test in tests.items()}, options.output / "length.png")
    print(as_table(tests))
    reporter.print(f"written: {options.output / 'length.md'} and {options.output / 'length.png'}")


def write_joined(source: Path, output: Path) -> Path:
    """Write the splits of Multi30k with consecutive captions joined by spaces, the same ones in both languages."""
    output.mkdir(parents=True, exist_ok=True)
    for split, name in SPLITS.items():
        captions = {language: read_lines(source, f"{name}.{language}") for language in LANGUAGES}
        counts = {language: len(lines) for language, lines in captions.items()}
        if len(set(counts.values())) > 1:
            raise DataError(f"{source}: the files of {name} differ in their number of lines: {counts}.")
        parts = split_randomly(counts[LANGUAGES[0]], MAX_CAPTIONS, seed=f"join/0/{split}")
        for language, lines in captions.items():
            texts = (" ".join(filter(None, lines[start:end])) for start, end in parts)
            write_text(output / f"{split}.{language}", "".join(f"{text}\n" for text in texts))
    return output


def read_lines(folder: Path, name: str) -> list[str]:
    """The lines of a text file, which may be compressed as NAME.gz."""
    if (path := folder / name).is_file():
        text = path.read_bytes()
    elif (path := folder / f"{name}.gz").is_file():
        text = gzip.decompress(path.read_bytes())
    else:
        raise DataError(f"{folder} has no file {name} or {name}.gz.")
    return text.decode("utf-8").removesuffix("\n").split("\n")


def split_randomly(length: int, max_size: int, seed: str) -> list[tuple[int, int]]:
    """Split a sequence into consecutive parts of 1 to `max_size` items, each as (start, end); the last may be shorter.

    A size is drawn with a probability proportional to 1/size, so that parts of each size hold the same share of items.
    """
    generator = random.Random(seed)
    sizes = range(1, max_size + 1)
    starts = [0]
    while starts[-1] < length:
        (size,) = generator.choices(sizes, [1 / size for size in sizes])
        starts.append(min(starts[-1] + size, length))
    return list(pairwise(starts))


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
    save_figure(figure, path)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KitError as error:
        sys.exit(f"error: {error}")
