"""The figures of a run: its training curves, and what the task shows of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from kit.errors import KitError, RunError
from kit.plots.curves import curve_figures
from kit.pretrained.folder import ModelFolder
from kit.runs.folder import RunFolder
from kit.system.files import read_json_lines
from kit.tasks.base import EvaluatedSplit, Task
from kit.tasks.registry import create_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPLITS = ("test", "validation")
"""The splits that figures are drawn from: the first that the run has predictions of, or has at all."""


def run_figures(
    folder: RunFolder, rows: Mapping[str, Dataset] | None = None, report: Callable[[str], object] = print
) -> dict[str, Figure]:
    """All figures of a finished run by name, drawn from its files; `rows` are those of data from Python.

    A figure of the model that cannot be drawn, such as one that needs data which is absent, is reported and left out.
    """
    task = create_task(folder.recipe().with_rows(rows))
    figures = curves_of(folder, task)
    return figures | task_figures(task, evaluated_split(folder, task), report)


def curves_of(folder: RunFolder, task: Task[Any, Any]) -> dict[str, Figure]:
    """The training curves of a run, which may be unfinished."""
    try:
        config = ModelFolder.open(folder.path).config
    except RunError:  # without a model yet
        config = None
    return curve_figures(folder.metrics_file, task.curve_notes(config))


def task_figures(task: Task[Any, Any], evaluated: EvaluatedSplit, report: Callable[[str], object]) -> dict[str, Figure]:
    """What the task shows of a model; nothing, with a reason, for a model that learned nothing to show."""
    try:
        return task.figures(evaluated)
    except KitError as error:
        report(f"no plots of the model: {error}")
        return {}


def evaluated_split(folder: RunFolder, task: Task[Any, Any]) -> EvaluatedSplit:
    """The evaluation of a run as its files have it."""
    results = folder.results() if folder.is_finished else {}
    predictions = {split: _predictions(folder.predictions / f"{split}.jsonl") for split in SPLITS}
    split = next((name for name in SPLITS if predictions[name]), None)
    split = split or next((name for name in SPLITS if name in results), SPLITS[0])

    def rows() -> Dataset:
        splits = task.load_splits().datasets
        return splits[split] if split in splits else splits["validation"]

    return EvaluatedSplit(folder.model, split, results.get(split, {}), predictions[split], rows)


def _predictions(file: Path) -> Sequence[Mapping[str, Any]]:
    return [row for _, row in read_json_lines(file, "predictions")] if file.is_file() else []
