"""The end of a run: evaluate the best weights, and leave behind what the next person needs."""

import json
import shutil
from typing import Any

from kit.errors import KitError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.metrics import greater_is_better
from kit.plots.curves import draw_curves
from kit.pretrained.adapters import parameter_counts
from kit.runs.folder import RunFolder
from kit.runs.prepare import Prepared
from kit.system.console import Reporter
from kit.system.files import write_text
from kit.system.machine import describe_hardware, package_versions, peak_memory_mb
from kit.tasks.base import Task
from kit.training.loop import Loop
from kit.training.processes import wait_for_everyone


def finish(prepared: Prepared, loop: Loop, folder: RunFolder, reporter: Reporter) -> dict[str, Any]:
    """Put the weights to keep into the model, and conclude the run with them."""
    loop.load_best()
    if prepared.recipe.eval.average is None:
        return conclude(prepared, loop, folder, reporter)
    validation, averaging = choose_weights(prepared, loop, prepared.recipe.eval.average, reporter)
    return conclude(prepared, loop, folder, reporter, {"validation": validation}, averaging)


def conclude(
    prepared: Prepared,
    loop: Loop,
    folder: RunFolder,
    reporter: Reporter,
    evaluated: dict[str, Evaluation] | None = None,
    averaging: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Evaluate the model on validation and test, where that is not done, and write everything down."""
    evaluations = dict(evaluated or {})
    for split in ("validation", "test"):
        if split in prepared.encoded.splits and split not in evaluations:
            evaluations[split] = evaluate_finally(prepared, loop, split, split, reporter)
        if split == "validation":
            prepared.task.settle(prepared.model, evaluations[split])
    results = collect_results(prepared, loop, evaluations)
    if averaging is not None:
        results["averaging"] = averaging
    if loop.accelerator.is_main_process:
        leave_behind(prepared, loop, folder, evaluations, results, reporter)
    wait_for_everyone()
    return results


def choose_weights(prepared: Prepared, loop: Loop, last: int, reporter: Reporter) -> tuple[Evaluation, dict[str, Any]]:
    """Leave the better of the best step and the mean of the last checkpoints in the model, judged on validation.

    Returns its evaluation, and the figures of both as results.json holds them.
    """
    selected = prepared.recipe.eval.metric_for_best_model
    best = evaluate_finally(prepared, loop, "validation", f"best step ({loop.progress.best_step})", reporter)
    steps = loop.load_mean(last)
    name = f"mean of {len(steps)} checkpoints (steps {steps[0]} to {steps[-1]})"
    mean = evaluate_finally(prepared, loop, "validation", name, reporter)
    gain = mean.figures[selected] - best.figures[selected]
    keep_mean = gain > 0 if greater_is_better(selected) else gain < 0
    if not keep_mean:
        loop.load_best()
    reporter.print(f"kept: {name if keep_mean else 'the best step'}, by {selected} on validation")
    chosen = "average" if keep_mean else "best_step"
    averaging = {"chosen": chosen, "steps": steps, "average": mean.figures, "best_step": best.figures}
    return (mean if keep_mean else best), averaging


def evaluate_finally(prepared: Prepared, loop: Loop, split: str, name: str, reporter: Reporter) -> Evaluation:
    """Evaluate the model as it is with the search of the recipe, and show the figures."""
    with reporter.status(f"final evaluation: {name}"):
        found = prepared.task.evaluate(
            loop.objective,
            prepared.splits,
            prepared.encoded,
            prepared.tokenizers,
            split,
            prepared.evaluator(loop.accelerator),
        )
    show_evaluation(reporter, prepared.task, name, found)
    return found


def show_evaluation(reporter: Reporter, task: Task[Any], when: str, found: Evaluation) -> None:
    """One line of figures, then a few examples, spread over the split."""
    figures = {name: value for name, value in found.figures.items() if isinstance(value, float)}
    reporter.print(f"{when}: " + " · ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    examples = task.recipe.eval.examples
    every = max(1, len(found.rows) // max(1, examples))
    for row in found.rows[::every][:examples]:
        reporter.print(f"    {task.shown(row)}")


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
            "examples": {name: len(examples) for name, examples in prepared.encoded.splits.items()},
            "left_out": prepared.encoded.left_out,
            "notes": prepared.splits.report.lines(),
            "fingerprints": prepared.splits.fingerprints,
        },
        "parameters": total,
        "trained_parameters": trained,
        "hardware": describe_hardware(loop.accelerator.num_processes),
        "versions": package_versions(),
    }


def leave_behind(
    prepared: Prepared,
    loop: Loop,
    folder: RunFolder,
    evaluations: dict[str, Evaluation],
    results: dict[str, Any],
    reporter: Reporter,
) -> None:
    """Write predictions, model, pictures and card; results.json last, because it says that the run is finished."""
    folder.predictions.mkdir(exist_ok=True)
    for split, evaluation in evaluations.items():
        lines = (json.dumps(row, ensure_ascii=False) for row in evaluation.rows)
        write_text(folder.predictions / f"{split}.jsonl", "".join(f"{line}\n" for line in lines))
    prepared.task.export(folder.model, prepared.model, prepared.tokenizers)
    folder.plots.mkdir(exist_ok=True)
    draw_curves(folder.metrics_file, folder.plots)
    split, evaluation = list(evaluations.items())[-1]
    try:
        prepared.task.draw(folder.model, prepared.splits, split, evaluation, folder.plots)
    except KitError as error:  # a model that learned nothing can have nothing to show: the run is finished all the same
        reporter.print(f"no picture of the model: {error}")
    card = prepared.task.write_card(folder.path, results)
    write_text(folder.card, card)
    write_text(folder.model / "README.md", card)
    shutil.copytree(folder.plots, folder.model / "plots", dirs_exist_ok=True)  # the card shows them
    folder.write_results(results)
