"""The end of a run: evaluate the best weights, export the model, and write predictions, plots and the model card."""

import copy
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from kit.errors import RunError
from kit.evaluation.evaluation import UNKNOWN_TOKENS, Evaluation
from kit.evaluation.metrics import greater_is_better
from kit.plots.curves import curve_figures
from kit.plots.saving import save_figures
from kit.pretrained.adapters import parameter_counts
from kit.runs.folder import RunFolder
from kit.runs.plots import task_figures
from kit.runs.prepare import Prepared
from kit.system.console import Reporter
from kit.system.json_files import json_value, to_json
from kit.system.machine import describe_hardware, package_versions, peak_memory_mb
from kit.system.outputs import write_text
from kit.tasks.base import EvaluatedSplit, Task
from kit.training.compilation import without_compilation
from kit.training.loop import Loop
from kit.training.processes import wait_for_everyone


def finish(prepared: Prepared, loop: Loop, folder: RunFolder, reporter: Reporter) -> dict[str, Any]:
    """Load the weights to keep into the model, export it, then evaluate it; returns the figures of the run."""
    hint = f"The trained model is saved in {folder.model}; `kit train {folder.path} --resume` finishes the rest"
    loop.manager.load_best(loop.progress.best_step)
    if prepared.recipe.eval.average is None:
        return export_and_evaluate(prepared, loop, folder, reporter, hint)
    validation, averaging = choose_weights(prepared, loop, prepared.recipe.eval.average, reporter)
    return export_and_evaluate(prepared, loop, folder, reporter, hint, validation, averaging)


def export_and_evaluate(
    prepared: Prepared,
    loop: Loop,
    folder: RunFolder,
    reporter: Reporter,
    hint: str,
    validation: Evaluation | None = None,
    averaging: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write all files of a finished run; returns its figures.

    The model comes first, so that no later failure loses it. It is then evaluated on validation, unless `validation` is
    passed, and on test; predictions, plots and the card follow. Configuration that the evaluation on validation
    determines, such as a threshold, applies to the test split and to the exported model. If a part fails after the
    export, `hint` tells the user how to continue.
    """
    export(prepared, loop, folder)
    if validation is None:
        with named_failure("the evaluation on validation", hint, reporter):
            validation = best_evaluation(prepared, loop, "validation", reporter)
            validation = validation or run_final_evaluation(prepared, loop, "validation", "validation", reporter)
    if not math.isfinite(validation.figures["loss"]):
        raise RunError(f"the loss on validation is {validation.figures['loss']}: the model cannot be used")
    evaluations = {"validation": validation}
    if validation.config_updates:
        prepared = with_config_updates(prepared, validation.config_updates)
        export(prepared, loop, folder)
    if "test" in prepared.encoded:
        with named_failure("the evaluation on test", hint, reporter):
            evaluations["test"] = run_final_evaluation(prepared, loop, "test", "test", reporter)
    results = collect_results(prepared, loop, evaluations)
    if averaging is not None:
        results["averaging"] = averaging
    results = json_value(results)
    if loop.accelerator.is_main_process:
        write_artifacts(prepared, folder, evaluations, results, hint, reporter)
    wait_for_everyone()
    return results


LINE_BREAKS = re.compile(r"\s*\n\s*")


def export(prepared: Prepared, loop: Loop, folder: RunFolder) -> None:
    """Write the model folder in the main process, while the others wait."""
    if loop.accelerator.is_main_process:
        prepared.task.export(folder.model, prepared.model, prepared.state)
    wait_for_everyone()


@contextmanager
def named_failure(what: str, hint: str, reporter: Reporter) -> Iterator[None]:
    """Context manager: print what failed and how to continue if the block raises an exception, which is re-raised."""
    try:
        yield
    except Exception:
        reporter.print(f"{what} failed. {hint}")
        raise


def with_config_updates(prepared: Prepared, updates: Mapping[str, Any]) -> Prepared:
    """The run with these configuration fields changed, both for evaluation and for the exported model."""
    config = copy.deepcopy(prepared.state.config)
    for name, value in updates.items():
        setattr(config, name, value)
        setattr(prepared.model.config, name, value)  # training has ended, and the export saves the model with it
    return replace(prepared, state=replace(prepared.state, config=config))


def choose_weights(prepared: Prepared, loop: Loop, last: int, reporter: Reporter) -> tuple[Evaluation, dict[str, Any]]:
    """Load the better of the best step and the mean of the last checkpoints into the model, judged on validation.

    Returns its evaluation, and the figures of both as results.json holds them.
    """
    selected = prepared.recipe.eval.metric_for_best_model
    name = f"best step ({loop.progress.best_step})"
    best = best_evaluation(prepared, loop, name, reporter)
    if best is None:
        best = run_final_evaluation(prepared, loop, "validation", name, reporter)
    steps = loop.manager.load_mean(last)
    name = f"mean of {len(steps)} checkpoints (steps {steps[0]} to {steps[-1]})"
    mean = run_final_evaluation(prepared, loop, "validation", name, reporter)
    gain = mean.figures[selected] - best.figures[selected]
    keep_mean = gain > 0 if greater_is_better(selected) else gain < 0
    if not keep_mean:
        loop.manager.load_best(loop.progress.best_step)
    reporter.print(f"kept: {name if keep_mean else 'the best step'}, by {selected} on validation")
    chosen = "average" if keep_mean else "best_step"
    averaging = {"chosen": chosen, "steps": steps, "average": mean.figures, "best_step": best.figures}
    return (mean if keep_mean else best), averaging


def best_evaluation(prepared: Prepared, loop: Loop, name: str, reporter: Reporter) -> Evaluation | None:
    """Print and return the evaluation of the best step during training; None if this process has none, or if a final
    evaluation would differ from it."""
    if loop.best_evaluation is None or not prepared.task.evaluates_alike:
        return None
    step, evaluation = loop.best_evaluation
    if step != loop.progress.best_step:
        return None
    show_evaluation(reporter, prepared.task, name, evaluation, evaluation)
    return cast(Evaluation, evaluation)


def run_final_evaluation(prepared: Prepared, loop: Loop, split: str, name: str, reporter: Reporter) -> Evaluation:
    """Evaluate the model with the search of the recipe, and print the figures."""
    rows, encoded = prepared.splits.datasets[split], prepared.encoded[split]
    compiled = without_compilation(prepared.recipe.train.torch_compile)
    with reporter.status(f"final evaluation: {name}"), compiled:
        evaluation = prepared.task.evaluate(
            prepared.evaluator(loop.accelerator), loop.objective, rows, encoded, prepared.state
        )
    best = None if loop.best_evaluation is None or split != "validation" else loop.best_evaluation[1]
    show_evaluation(reporter, prepared.task, name, evaluation, cast(Evaluation | None, best))
    return evaluation


def show_evaluation(
    reporter: Reporter, task: Task[Any, Any], name: str, evaluation: Evaluation, shown: Evaluation | None = None
) -> None:
    """Print a line of figures, then a few predictions, evenly spaced over the split, unless they equal those of an
    evaluation that was shown before."""
    figures = {name: value for name, value in evaluation.figures.items() if isinstance(value, float)}
    reporter.print(f"{name}: " + " · ".join(f"{figure} {value:.4g}" for figure, value in figures.items()))
    if unknown := evaluation.figures.get(UNKNOWN_TOKENS):
        reporter.print(f"    unknown tokens in the output: {unknown:,}")
    examples = example_lines(task, evaluation)
    if shown is None or examples != example_lines(task, shown):
        for example in examples:
            reporter.print(f"    {example}")


def example_lines(task: Task[Any, Any], evaluation: Evaluation) -> list[str]:
    """A few predictions, evenly spaced over the split."""
    examples = task.recipe.eval.examples
    step = max(1, len(evaluation.rows) // max(1, examples))
    lines = (task.format_prediction(row) for row in evaluation.rows[::step][:examples])
    return [LINE_BREAKS.sub(" ⏎ ", line.strip("\n")) for line in lines]


def collect_results(prepared: Prepared, loop: Loop, evaluations: dict[str, Evaluation]) -> dict[str, Any]:
    """All figures of the run, as results.json holds them."""
    progress = loop.progress
    trained, total = parameter_counts(prepared.model)
    return {
        **{split: evaluation.figures for split, evaluation in evaluations.items()},
        "train": {
            "seconds": round(progress.seconds, 1),
            "steps": progress.step,
            "epochs": round(loop.plan.epochs(progress.step), 3),
            "best_step": progress.best_step,
            "tokens_per_second": round(progress.target_tokens / max(progress.step_seconds, 1e-9), 1),
            "padding": round(loop.plan.padding().share, 4),
            "peak_memory_mb": round(peak_memory_mb(), 1),
            "processes": loop.accelerator.num_processes,
        },
        "data": {
            "examples": {split: len(encoded.examples) for split, encoded in prepared.encoded.items()},
            "left_out": dict(prepared.dropped),
            "notes": prepared.report.lines(),
            "fingerprints": prepared.splits.fingerprints,
        },
        "initialization": list(prepared.built.notes),
        "parameters": total,
        "trained_parameters": trained,
        "hardware": describe_hardware(loop.accelerator.num_processes),
        "versions": package_versions(),
    }


def write_artifacts(
    prepared: Prepared,
    folder: RunFolder,
    evaluations: dict[str, Evaluation],
    results: dict[str, Any],
    hint: str,
    reporter: Reporter,
) -> None:
    """Write predictions, plots and card; results.json comes last, because it marks the run as finished."""
    with named_failure("writing the predictions", hint, reporter):
        for split, evaluation in evaluations.items():
            write_rows(folder.predictions / f"{split}.jsonl", evaluation.rows)
            if evaluation.losses:
                write_rows(folder.losses / f"{split}.jsonl", evaluation.losses)
    with named_failure("plotting", hint, reporter):
        draw_plots(prepared, folder, evaluations, reporter)
    with named_failure("writing the model card", hint, reporter):
        card = prepared.task.write_card(folder.path, results)
        write_text(folder.card, card)
        write_text(folder.model / "README.md", card)
        shutil.copytree(folder.plots, folder.model / "plots", dirs_exist_ok=True)  # the card shows them
    with named_failure("writing the results", hint, reporter):
        folder.write_results(results)


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines, and the folder of the file if it is missing."""
    file.parent.mkdir(exist_ok=True)
    write_text(file, "".join(f"{to_json(row)}\n" for row in rows))


def draw_plots(prepared: Prepared, folder: RunFolder, evaluations: dict[str, Evaluation], reporter: Reporter) -> None:
    """Draw the training curves, and what the task shows of its model, with the tables of all numbers."""
    split, evaluation = list(evaluations.items())[-1]
    evaluated = EvaluatedSplit(
        folder.model, split, evaluation.figures, evaluation.rows, lambda: prepared.splits.datasets[split]
    )
    figures = curve_figures(folder.metrics_file, prepared.task.curve_notes(prepared.state.config))
    figures |= task_figures(prepared.task, evaluated, reporter.print)
    folder.plots.mkdir(exist_ok=True)
    save_figures(figures, folder.plots)
    for name, text in prepared.task.tables(evaluated).items():
        write_text(folder.plots / name, text)
