"""Training curves: loss, learning rate and validation metrics over the steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import RunError
from kit.evaluation.metrics import METRICS, greater_is_better
from kit.plots.style import BLUE, DPI, ORANGE, set_style
from kit.system.files import read_json_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Series = dict[int, float]
"""Value by step."""


@dataclass(frozen=True)
class CurveNotes:
    """What a reader of the curves must know to compare them."""

    training_loss: str = ""
    """How the loss of training differs from that of validation, such as "with dropout"."""
    metrics: str = ""
    """How validation is evaluated during training, such as "greedy search"."""


NO_NOTES = CurveNotes()


def curve_figures(metrics_jsonl: Path, notes: CurveNotes = NO_NOTES) -> dict[str, Figure]:
    """The metrics log of a run as figures by name: loss, learning_rate, and validation_NAME for each metric.

    Empty if nothing has been logged. A partial last line is ignored. Raises RunError for any other line that is not a
    step's metrics.
    """
    train, validation = _read_series(metrics_jsonl)
    figures = {}
    training = f"training, {notes.training_loss}" if notes.training_loss else "training"
    losses = {training: train.pop("train_loss", {}), "validation": validation.pop("loss", {})}
    if any(losses.values()):
        figures["loss"] = _plot("loss", losses, best_of="validation")
    if rates := train.get("learning_rate"):
        figures["learning_rate"] = _plot("learning rate", {"training": rates})
    for name in ("perplexity", *METRICS):
        if values := validation.get(name):
            note = notes.metrics if name in METRICS else ""
            figures[f"validation_{name}"] = _plot(name, {"validation": values}, best_of="validation", note=note)
    return figures


def _read_series(file: Path) -> tuple[dict[str, Series], dict[str, Series]]:
    """The values of training and of validation by name; if a step occurs twice, its last value counts."""
    train: dict[str, Series] = defaultdict(dict)
    validation: dict[str, Series] = defaultdict(dict)
    for entry in _entries(file):
        evaluated = entry.get("validation")
        for target, values in ((train, entry), (validation, evaluated if isinstance(evaluated, dict) else {})):
            for name, value in values.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                    target[name][entry["step"]] = float(value)
    return train, validation


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    if not file.exists():
        return
    for number, entry in read_json_lines(file, "a metrics log", growing=True):
        if not isinstance(entry.get("step"), int):
            raise RunError(f'{file}, line {number}: expected a JSON object with a "step".')
        yield entry


def _plot(name: str, series: dict[str, Series], best_of: str | None = None, note: str = "") -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), dpi=DPI)
    axes = figure.add_subplot()
    for label, values in series.items():
        if not values:
            continue
        steps = sorted(values)
        color = ORANGE if label == "validation" else BLUE
        marker = "o" if label == "validation" or len(steps) == 1 else None
        axes.plot(steps, [values[step] for step in steps], color=color, marker=marker, markersize=3.5, label=label)
        if label == best_of:
            best = _best_step(name, values)
            text = f"best {values[best]:.4g} at step {best}"
            axes.plot([best], [values[best]], "*", color=color, markersize=13, linestyle="none", label=text)
    axes.set_xlabel("step")
    title = METRICS[name].title if name in METRICS else name
    axes.set_ylabel(f"{title}, {note}" if note else title, parse_math=False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    set_style(axes)
    if len(axes.lines) > 1:
        axes.legend(frameon=False)
    return figure


def _best_step(name: str, values: Series) -> int:
    """The first step with the best value."""
    sign = 1 if greater_is_better(name) else -1
    return max(sorted(values), key=lambda step: sign * values[step])
