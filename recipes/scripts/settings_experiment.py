"""Compare several settings of one recipe over several seeds: a table, and for forecasts a plot by horizon.

python recipes/scripts/settings_experiment.py scheduled_sampling --output runs/scheduled_sampling
python recipes/scripts/settings_experiment.py embedding_noise --output runs/embedding_noise
python recipes/scripts/settings_experiment.py source_reversal --output runs/source_reversal

Trains recipes/experiments/NAME.yaml with every setting below and several seeds. NAME.md gets the mean, minimum and
maximum of each test metric over the seeds: a difference within that range may be chance. NAME.png shows forecasts by
horizon. Finished runs are not repeated, and interrupted ones resume. Any `key=value` after the name changes the recipe
of all runs.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kit import KitError, load_recipe, train
from kit.cards.markdown import table
from kit.evaluation.metrics import METRICS
from kit.plots.saving import save_figure
from kit.plots.style import BLUE, GRAY, GREEN, ORANGE, PURPLE
from kit.system.console import Reporter
from kit.system.outputs import write_text
from kit.tasks.forecasting.plots import lines_figure

NO_SCHEDULE = ["train.sampling_start=0", "train.sampling_steps=0"]
WITH_ATTENTION = ["model.attention=additive", "model.context_to=[input, readout]"]
EXPERIMENTS = {
    "scheduled_sampling": {
        "teacher forcing": ["model.scheduled_sampling=0.0", *NO_SCHEDULE],
        "scheduled sampling": [],
        "own predictions from the start": NO_SCHEDULE,
    },
    "embedding_noise": {
        "no noise": ["model.embedding_noise=0.0"],
        "noise 0.1": ["model.embedding_noise=0.1"],
        "noise 0.3": ["model.embedding_noise=0.3"],
        "noise 1": ["model.embedding_noise=1.0"],
        "dropout 0.2": ["model.embedding_noise=0.0", "model.dropout=0.2"],
    },
    "source_reversal": {
        "in order": ["model.reverse_source=false"],
        "reversed": [],
        "in order, attention": ["model.reverse_source=false", *WITH_ATTENTION],
        "reversed, attention": WITH_ATTENTION,
    },
}
COLORS = (ORANGE, BLUE, GREEN, PURPLE)

Tests = dict[str, list[dict[str, Any]]]
"""Figures of the test split by setting, for each seed."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Compare settings of a recipe over several seeds.")
    parser.add_argument("name", choices=EXPERIMENTS, help="which experiment")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="changes of the recipe, for all models")
    parser.add_argument("--output", type=Path, help="where the runs and the results go (default: runs/NAME)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds for each setting")
    options = parser.parse_args(arguments)
    output = options.output or Path("runs") / options.name

    reporter, tests = Reporter(), Tests()
    for setting, overrides in EXPERIMENTS[options.name].items():
        for seed in range(options.seeds):
            recipe = load_recipe(f"experiments/{options.name}", [*options.changes, *overrides, f"train.seed={seed}"])
            folder = output / f"{setting.replace(', ', '_').replace(' ', '_')}_{seed}"
            reporter.print(f"{setting}, seed {seed}: {folder}")
            tests.setdefault(setting, []).append(train(recipe, folder, resume=True).results["test"])
    write_text(output / f"{options.name}.md", as_table(tests) + "\n")
    print(as_table(tests))
    if "by_horizon" in next(iter(tests.values()))[0]:
        draw(tests, output / f"{options.name}.png")
    reporter.print(f"written: {output / f'{options.name}.md'}")


def as_table(tests: Tests) -> str:
    """Mean, minimum and maximum of each metric, as Markdown."""
    names = [name for name in ("loss", *METRICS) if name in next(iter(tests.values()))[0]]
    rows = []
    for setting, runs in tests.items():
        figures = [[run[name] for run in runs] for name in names]
        cells = [f"{np.mean(values):.4g} ({min(values):.4g} to {max(values):.4g})" for values in figures]
        rows.append([setting, len(runs), *cells])
    return table(["setting", "seeds", *names], rows)


def draw(tests: Tests, path: Path) -> None:
    """The mean squared error by the number of steps ahead, and that of the linear autoregression."""
    lines: dict[str, Any] = {
        setting: (np.mean([run["by_horizon"]["mse"] for run in runs], axis=0).tolist(), color, "-")
        for (setting, runs), color in zip(tests.items(), COLORS, strict=False)
    }
    linear = next(iter(tests.values()))[0]["by_horizon"]["linear_mse"]
    lines["linear autoregression"] = (linear, GRAY, "--")
    save_figure(lines_figure(lines, METRICS["mse"].title), path)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KitError as error:
        sys.exit(f"error: {error}")
