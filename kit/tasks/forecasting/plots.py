"""Plots of forecasts: how the error grows with the horizon, and one forecast beside what came true."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.evaluation.metrics import METRICS
from kit.plots.style import BLUE, DPI, GRAY, GREEN, ORANGE, PURPLE, set_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from kit.tasks.forecasting.dates import Dates

LineStyle = str | tuple[int, tuple[int, ...]]
LINES: dict[str, tuple[str, str, LineStyle]] = {
    "": ("model", BLUE, "-"),
    "persistence": ("last value", GRAY, "--"),
    "seasonal": ("last season", GREEN, ":"),
    "linear": ("linear autoregression", ORANGE, "-."),
    "regression": ("linear regression by step", PURPLE, (0, (3, 1, 1, 1, 1, 1))),
}
"""Name, color and style of each kind of forecast."""
ROWS = 4
"""Plots in a column: more numbers at a step are drawn in several columns."""


def errors_figure(by_horizon: Mapping[str, Sequence[float]], metric: str) -> Figure:
    """The error at each step of the horizon, of the model and of the baselines."""
    named = {}
    for kind, (label, color, style) in LINES.items():
        errors = by_horizon.get(f"{kind}_{metric}" if kind else metric)
        if errors is not None:
            named[label] = (errors, color, style)
    return lines_figure(named, METRICS[metric].title)


def lines_figure(lines: Mapping[str, tuple[Sequence[float], str, LineStyle]], title: str) -> Figure:
    """Lines of errors over the horizon. Each line has its numbers, color and style, by name."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), dpi=DPI)
    axes = figure.add_subplot()
    for name, (errors, color, style) in lines.items():
        steps = np.arange(1, len(errors) + 1)
        axes.plot(steps, errors, linestyle=style, color=color, label=name, marker="o" if len(errors) == 1 else None)
    axes.set_xlabel("steps ahead")
    axes.set_ylabel(title)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    set_style(axes)
    axes.legend(frameon=False)
    return figure


def forecast_figure(
    values: NDArray[np.float64],
    predicted: NDArray[np.floating],
    scales: NDArray[np.floating] | None,
    names: Sequence[str],
    dates: Dates | None,
) -> Figure:
    """One forecast beside the true values.

    `values` (history + horizon, value_size) are the true ones, `predicted` those of the horizon; with `scales`, a band
    shows two standard deviations. Steps are labeled with their dates, or else numbered.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    columns = math.ceil(len(names) / ROWS)
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(7 * columns, 1 + 2.2 * rows), dpi=DPI)
    history = len(values) - len(predicted)
    steps: Any = np.arange(len(values)) if dates is None else dates
    present = steps[history - 1] + (steps[history] - steps[history - 1]) / 2
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for index, axes in enumerate(grid.T.flat):  # down the columns
        if index >= len(names):
            axes.set_axis_off()
            continue
        axes.plot(steps, values[:, index], color=GRAY, label="measured")
        axes.plot(steps[history:], predicted[:, index], color=BLUE, label="predicted")
        if scales is not None:
            low, high = (predicted[:, index] + sign * 2 * scales[:, index] for sign in (-1, 1))
            axes.fill_between(
                steps[history:], low, high, color=BLUE, alpha=0.2, linewidth=0, label="± 2 standard deviations"
            )
        axes.axvline(present, color="black", linewidth=0.8, linestyle=":")
        axes.set_ylabel(names[index], parse_math=False)
        set_style(axes)
        if index == 0:
            axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        if (index + 1) % rows == 0 or index == len(names) - 1:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("step" if dates is None else "")
            if dates is not None:
                locator = AutoDateLocator(maxticks=8)
                axes.xaxis.set_major_locator(locator)
                axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    figure.align_ylabels()
    return figure
