"""The commands that create models: train, data, average, merge."""

import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kit.cli.arguments import JsonOption, Overrides, RecipeArgument, RunArgument, recipe_names
from kit.cli.exit import fail, is_main_process
from kit.errors import KitError, did_you_mean

MAX_AVERAGED = 1000
"""The bound of eval.average in recipes."""
Processes = Annotated[int, typer.Option(min=1, help="Number of processes to train with.")]


def train(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option(help="Run folder (default: runs/RECIPE-NAME).")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an unfinished run from its last checkpoint.")
    ] = False,
    processes: Processes = 1,
    shard: Annotated[
        bool, typer.Option("--shard", help="Shard the weights across the processes (FSDP2), for large models.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the data, memory and duration of the run without training.")
    ] = False,
) -> None:
    """Train a model from a recipe.

    RECIPE can also be a run folder, to repeat or resume the run, or a run on the Hub to repeat: OWNER/NAME or
    OWNER/NAME@REVISION.
    """
    from kit.runs.request import find_request, output_of
    from kit.system.console import Reporter

    request = find_request(recipe, overrides or [], report=Reporter().print)
    if dry_run:
        given = {"--output": output is not None, "--resume": resume, "--processes": processes > 1, "--shard": shard}
        for option in (option for option, is_given in given.items() if is_given):
            raise KitError(f"{option} has no effect with --dry-run, which runs in one process. Leave it out")
        return _inspect(request.recipe)
    target = output_of(request, output)
    if processes > 1:
        return _train_in_processes(processes, target, shard)
    if shard and "RANK" not in os.environ:
        raise KitError("--shard splits the weights across processes: add --processes 2 or more")
    _train(request.recipe, target, resume)


def _train(recipe: Any, output: Path, resume: bool) -> None:
    """Train and print the results. Failures and interruptions end in a message and an exit code."""
    from kit.runs.train import train as run_training
    from kit.system.console import Reporter
    from kit.training.finite import TrainingFailed
    from kit.training.launch import peer_failed
    from kit.training.loop import TrainingInterrupted
    from kit.training.signals import exit_code

    reporter = Reporter(quiet=not is_main_process())
    resume_hint = f"resume with: kit train {output} --resume"
    try:
        finished = run_training(recipe, output, resume)
    except TrainingInterrupted as stop:
        reporter.print(f"stopped after step {stop.step}; {resume_hint}")
        raise typer.Exit(128 + stop.signal_number) from None
    except TrainingFailed as failure:
        fail(f"training failed: {failure}", 1)
    except KeyboardInterrupt as interruption:  # before the first step or after the last: there is nothing new to save
        if not peer_failed():
            reporter.print(f"interrupted; {resume_hint}" if (output / "recipe.yaml").is_file() else "interrupted")
        raise typer.Exit(exit_code(interruption)) from None
    _show_results(finished, reporter)


def _show_results(finished: Any, reporter: Any) -> None:
    """Print the run folder, and the main figures unless they were printed as they were measured."""
    if not finished.already_finished:
        reporter.print(f"the run is in {finished.folder}: model/, results.json, plots/, README.md")
    elif is_main_process():
        for split in ("validation", "test"):
            if split in finished.results:
                figures = {k: v for k, v in finished.results[split].items() if v is None or isinstance(v, float)}
                shown = (f"{name} {'not finite' if v is None else f'{v:.4g}'}" for name, v in figures.items())
                print(f"{split}: {', '.join(shown)}")


def _train_in_processes(processes: int, output: Path, shard: bool) -> None:
    from kit.training.launch import launch

    arguments = [*sys.argv[1:], "--processes", "1"]  # of a repeated option, the last value is used
    if not any(argument.split("=")[0] == "--output" for argument in sys.argv):
        arguments += ["--output", str(output)]
    code = launch(processes, arguments, shard)
    if code > 128 and code - 128 not in (signal.SIGINT, signal.SIGTERM) and (output / "checkpoints").is_dir():
        print(f"the last checkpoint is intact; resume with: kit train {output} --resume", file=sys.stderr)
    if code:
        raise typer.Exit(code)


def data(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="File, folder or Hub id of data; or a recipe, run folder or name of a shipped recipe.",
            autocompletion=recipe_names,
        ),
    ],
    overrides: Overrides = None,
    as_json: JsonOption = False,
) -> None:
    """Inspect data, and print the command that trains on it.

    Shows the format, the columns and the likely task, examples, labels, lengths, duplicates and overlaps; for a recipe,
    also the batches, and an estimate of time and memory.
    """
    from kit.recipe.catalog import recipe_exists
    from kit.runs.request import find_request

    path = Path(source)
    is_recipe = source.endswith((".yaml", ".yml")) or (recipe_exists(source) and not path.exists())
    if is_recipe or (path / "recipe.yaml").is_file():
        _inspect(find_request(source, overrides or []).recipe, as_json)
    elif not path.exists() and (hint := did_you_mean(source, recipe_names(""))):
        raise KitError(f'there is no file, folder or recipe "{source}".{hint}')
    else:
        _inspect_data(source, overrides or [], as_json)


def _inspect(recipe: Any, as_json: bool = False) -> None:
    from kit.diagnostics.dry_run import inspect_recipe
    from kit.diagnostics.tables import render

    inspection = inspect_recipe(recipe)
    _print_report(asdict(inspection) if as_json else render(inspection), as_json)


def _inspect_data(source: str, overrides: list[str], as_json: bool) -> None:
    from kit.diagnostics.data_report import inspect_path
    from kit.diagnostics.data_tables import commands, render_data

    report = inspect_path(source, overrides)
    _print_report(report.as_json() if as_json else render_data(report), as_json)
    if not as_json:
        print("\n".join(commands(report)))
    if report.problems:
        raise typer.Exit(2)


def _print_report(report: Any, as_json: bool) -> None:
    from rich.console import Console

    from kit.system.json_files import to_json

    if as_json:
        print(to_json(report, indent=1))
    else:
        Console().print(report)


def average(
    run: RunArgument,
    last: Annotated[
        int, typer.Option(min=2, max=MAX_AVERAGED, help="Number of checkpoints to average, counted from the last.")
    ] = 5,
    output: Annotated[Path | None, typer.Option(help="Run folder to create (default: RUN_average).")] = None,
) -> None:
    """Average the last checkpoints of a run into a new run.

    The mean of the weights is evaluated like the run, which does not change.
    """
    from kit.runs.average import average_checkpoints
    from kit.system.console import Reporter

    reporter = Reporter()
    _show_results(average_checkpoints(run, last, output or run.with_name(f"{run.name}_average"), reporter), reporter)


def merge(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder or adapter folder.")],
    output: Annotated[Path, typer.Option(help="Folder to create for the merged model.")],
) -> None:
    """Merge the adapter of a run into its base model.

    The merged model is written only if it predicts the same.
    """
    from kit.runs.merge import merge as merge_adapter

    merged = merge_adapter(run, output)
    print(
        f"{merged.folder}: {merged.base} with the adapter of {run} merged. On {merged.examples} examples, logits "
        f"differ by at most {merged.difference:.1e}, relative to the largest"
    )
