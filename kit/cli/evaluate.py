"""The commands that evaluate models: eval, compare, verify."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kit.cli.arguments import CheckpointOption, JsonOption, Overrides, RunOrHub
from kit.errors import KitError

SEPARATOR = "vs"
"""Stands between the sides of a comparison; a folder of this name is ./vs."""
MAX_SAMPLES = 1_000_000
"""Limit of bootstrap samples: a p-value is known to three digits then, and the scores of all samples are in memory."""


def evaluate(
    run: RunOrHub,
    overrides: Overrides = None,
    split: Annotated[str | None, typer.Option(help="Split to evaluate on (default: test, or the only split).")] = None,
    predictions: Annotated[Path | None, typer.Option(help="File to write predictions to, as JSON lines.")] = None,
    as_json: JsonOption = False,
    checkpoint: CheckpointOption = None,
) -> None:
    """Evaluate the model of a run on its own or on other data.

    Other data is data.path=FILE, with labels. Overrides such as eval.num_beams=5 apply only to this evaluation.
    """
    from rich.console import Console

    from kit.evaluation.show import figure_tables
    from kit.prediction.writing import open_output
    from kit.runs.checkpoints import at_checkpoint
    from kit.runs.evaluate import evaluate as evaluate_run
    from kit.system.console import Reporter
    from kit.system.json_files import to_json

    if predictions is None:
        with at_checkpoint(run, checkpoint) as source:
            evaluation = evaluate_run(source, split, overrides, Reporter().print)
    else:
        # the file is opened before the evaluation, as it may be impossible
        with open_output(predictions) as file, at_checkpoint(run, checkpoint) as source:
            evaluation = evaluate_run(source, split, overrides, Reporter().print)
            if not evaluation.rows:
                raise KitError("--predictions: this evaluation makes no predictions. Set eval.metrics or eval.examples")
            file.writelines(to_json(row) + "\n" for row in evaluation.rows)
    if as_json:
        print(to_json(evaluation.figures, indent=1))
        return
    console = Console()
    for table in figure_tables(evaluation.figures, run):
        console.print(table)


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Run folders; the first is the baseline. With vs, each side can have several runs.",
        ),
    ],
    split: Annotated[str, typer.Option(help="Split whose predictions to compare.")] = "test",
    metrics: Annotated[
        str | None, typer.Option(help="Metrics, comma-separated (default: those of the recipes).")
    ] = None,
    samples: Annotated[int, typer.Option(min=10, max=MAX_SAMPLES, help="Number of bootstrap samples.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Compare runs on the same examples by paired bootstrap.

    `kit compare A B C` compares B and C with A. `kit compare A* vs B*` compares the mean of several runs, such as
    seeds, with that of others.
    """
    from rich.console import Console

    from kit.evaluation.compare import compare_runs
    from kit.system.json_files import to_json

    sides: list[list[Path]] = [[]]
    for name in runs:
        if name == SEPARATOR:
            sides.append([])
        else:
            sides[-1].append(Path(name))
    if not all(sides):
        raise KitError(f"there is no run on one side of {SEPARATOR}: kit compare RUN... {SEPARATOR} RUN...")
    names = metrics.split(",") if metrics else None
    compared = sides if len(sides) > 1 else sides[0]
    comparison = compare_runs(compared, split=split, metrics=names, samples=samples)
    if as_json:
        print(to_json(asdict(comparison), indent=1))
    else:
        Console().print(comparison.table())


def verify(
    target: Annotated[
        str,
        typer.Argument(metavar="RUN|RECIPE", help="Run folder, or recipe whose model to build with random weights."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Prove the equivalences that you rely on, on your own model.

    For example: save = load, cache = no cache, beam search = exhaustive search.
    """
    from rich.console import Console

    from kit.runs.verify import verify as run_checks
    from kit.system.json_files import to_json
    from kit.verify.proof import table

    checks = run_checks(target)
    if as_json:
        print(to_json([vars(check) for check in checks], indent=1))
    else:
        Console().print(table(checks))
    if not all(check.passed for check in checks):
        raise typer.Exit(1)
