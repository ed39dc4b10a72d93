"""Train a recipe with several seeds: how much do its figures vary by chance?

python recipes/scripts/several_seeds.py RECIPE [key=value ...] --seeds 3 --output runs/seeds

All runs have the same data and differ in train.seed. The figures of the test split (without one, of the validation
split) go into seeds.md in the output folder, each with its mean and the standard error of the mean. Finished runs are
not repeated, and interrupted ones resume.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from kit import KitError, load_recipe, train
from kit.cards.markdown import table
from kit.evaluation.aggregate import with_error
from kit.system.console import Reporter
from kit.system.outputs import write_text


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Train a recipe with several seeds; report mean and standard error.")
    parser.add_argument("recipe", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="changes of the recipe, for all seeds")
    parser.add_argument("--seeds", type=int, default=3, help="number of runs")
    parser.add_argument("--output", type=Path, default=Path("runs/seeds"), help="where the runs and the table go")
    options = parser.parse_args(arguments)

    reporter, runs = Reporter(), {}
    for seed in range(options.seeds):
        recipe = load_recipe(options.recipe, [*options.changes, f"train.seed={seed}"])
        output = options.output / f"seed_{seed}"
        reporter.print(f"seed {seed}: {output}")
        results = train(recipe, output, resume=True).results
        split = "test" if "test" in results else "validation"
        runs[f"seed {seed}"] = results[split]
    text = as_table(split, runs)
    write_text(options.output / "seeds.md", text + "\n")
    print(text)
    reporter.print(f"written: {options.output / 'seeds.md'}")


def as_table(split: str, runs: dict[str, dict[str, Any]]) -> str:
    """Each figure by seed, and its mean with the standard error, as Markdown."""
    names = [name for name, value in next(iter(runs.values())).items() if isinstance(value, int | float)]
    rows = []
    for name in names:
        values = [float(figures[name]) for figures in runs.values()]
        rows.append([name, *values, with_error(values)])
    return table([split, *runs, "mean ± standard error"], rows)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KitError as error:
        sys.exit(f"error: {error}")
