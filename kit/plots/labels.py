"""Figures of predictions: confused labels, precision and recall of each, the reliability of scores, and numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.evaluation.errors import confused_pairs, label_table, number_of_errors
from kit.plots.fonts import MISSING_NOTE, label_of, script_of
from kit.plots.style import BLUE, DPI, ORANGE, set_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LABELS = 30
"""A figure shows at most so many labels or confusions: more would not be readable."""
_BINS = 10  # of the confidence, each 0.1 wide
_MAX_TICK_LABEL = 36  # characters


def predicted_label_figures(true: Sequence[str], predicted: Sequence[str]) -> dict[str, Figure]:
    """For one label per example: `confusion`, which labels are confused with which, `labels`, precision and recall of
    each."""
    figures = label_figures([[label] for label in true], [[label] for label in predicted])
    names, pairs = sorted({*true, *predicted}), confused_pairs(true, predicted)
    if len(names) <= MAX_LABELS:
        figures["confusion"] = confusion_matrix_figure(true, predicted, names)
    elif pairs:
        figures["confusion"] = confusions_figure(pairs)
    return figures


def predicted_label_tables(true: Sequence[str], predicted: Sequence[str]) -> dict[str, str]:
    """All numbers behind `predicted_label_figures`, as csv by file name."""
    pairs = _as_csv(("true", "predicted", "count"), confused_pairs(true, predicted))
    return {"confusions.csv": pairs, **label_tables([[label] for label in true], [[label] for label in predicted])}


def label_figures(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Figure]:
    """For any number of labels per example: `labels`, precision and recall of each."""
    scores = label_table(true, predicted)
    figure = scores_figure({label: (s["precision"], s["recall"], s["examples"]) for label, s in shown(scores).items()})
    if len(scores) > MAX_LABELS:
        figure.axes[0].set_xlabel(f"the {MAX_LABELS} labels with the most errors, of {len(scores):,}")
    return {"labels": figure}


def label_tables(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, str]:
    """All numbers behind `label_figures`, as csv by file name."""
    columns = ("precision", "recall", "f1", "examples", "predictions")
    scores = label_table(true, predicted)
    rows = ((label, *(each[name] for name in columns)) for label, each in scores.items())
    return {"labels.csv": _as_csv(("label", *columns), rows)}


def shown(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The labels that figures show, in their order: all, or those with the most errors, most errors first."""
    if len(scores) <= MAX_LABELS:
        return dict(scores)
    by_errors = sorted(scores.items(), key=lambda item: (-number_of_errors(item[1]), item[0]))
    return dict(by_errors[:MAX_LABELS])


def confusion_matrix_figure(true: Sequence[str], predicted: Sequence[str], names: Sequence[str]) -> Figure:
    """The confusion matrix of these labels: a row per true label, colored by its share of the row."""
    from matplotlib.figure import Figure
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(true, predicted, labels=names)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = 3 + 0.35 * len(names)
    figure = Figure(figsize=(size + 1.6, size), dpi=DPI)
    axes = figure.add_subplot()
    # Not ConfusionMatrixDisplay: it colors a cell by the number that it prints. Here the color is the share of the row,
    # so that rare labels are visible, and the number is the count. It also needs pyplot, and with it a global figure.
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in zip(*np.nonzero(counts), strict=True):
        color = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=7, color=color)
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.04)
    bar.ax.set_ylabel("share of the true label", fontsize=8)
    _set_tick_labels(axes, names, "x")
    _set_tick_labels(axes, names, "y")
    axes.set_xlabel("predicted label")
    axes.set_ylabel("true label")
    return _with_font_note(figure, names)


def confusions_figure(pairs: Sequence[tuple[str, str, int]]) -> Figure:
    """Bars of the most frequent confusions, where a matrix of all labels would hide them."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    listed = pairs[:MAX_LABELS]
    figure = Figure(figsize=(7, 1.2 + 0.25 * len(listed)), dpi=DPI)
    axes = figure.add_subplot()
    bars = axes.barh(range(len(listed)), [count for _, _, count in listed], 0.7, color=ORANGE)
    axes.bar_label(bars, fontsize=7, padding=2)
    _set_tick_labels(axes, [f"{true} → {predicted}" for true, predicted, _ in listed], "y", 2 * _MAX_TICK_LABEL)
    axes.set_ylim(len(listed) - 0.4, -0.6)
    errors, covered = (sum(count for _, _, count in part) for part in (pairs, listed))
    axes.set_title(f"true → predicted label: {covered:,} of {errors:,} errors", fontsize=10)
    axes.set_xlabel(f"errors; the {len(listed)} most frequent of {len(pairs):,} confusions")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    set_style(axes, "x")
    return _with_font_note(figure, [name for true, predicted, _ in listed for name in (true, predicted)])


def types_figure(by_type: Mapping[str, Mapping[str, float]]) -> Figure:
    """Bars of precision and recall of each type of span, the most frequent first.

    `by_type` is like `{"PER": {"precision": 0.5, "recall": 1.0, "number": 2}}`.
    """
    scores = {name: (type_["precision"], type_["recall"], int(type_["number"])) for name, type_ in by_type.items()}
    frequent = sorted(scores, key=lambda name: (-scores[name][2], name))[:MAX_LABELS]
    figure = scores_figure({name: scores[name] for name in frequent})
    figure.axes[0].set_ylabel("type (true spans)")
    if len(frequent) < len(scores):
        figure.axes[0].set_xlabel(f"the {len(frequent)} most frequent of {len(scores):,} types")
    return figure


def scores_figure(scores: Mapping[str, tuple[float, float, int]]) -> Figure:
    """Bars of (precision, recall, number of true examples) by label."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.2 + 0.4 * max(len(scores), 1)), dpi=DPI)
    axes = figure.add_subplot()
    rows = np.arange(len(scores))
    for index, (name, color, offset) in enumerate((("precision", BLUE, -0.18), ("recall", ORANGE, 0.18))):
        axes.barh(rows + offset, [each[index] for each in scores.values()], 0.34, color=color, label=name)
    _set_tick_labels(axes, [f"{name} ({each[2]:,})" for name, each in scores.items()], "y")
    axes.set_ylabel("label (true examples)")
    axes.set_ylim(len(scores) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    set_style(axes, "x")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return _with_font_note(figure, scores)


def reliability_figure(predictions: Sequence[tuple[float, bool]]) -> Figure:
    """A reliability diagram with the expected calibration error (Guo et al., 2017, arXiv:1706.04599), above the number
    of predictions in each bin.

    `predictions` has the probability of each prediction, and whether it is correct.
    """
    from matplotlib.figure import Figure

    confidence = np.array([probability for probability, _ in predictions])
    correct = np.array([is_correct for _, is_correct in predictions], dtype=np.float64)
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    masks = [bins == number for number in range(_BINS) if (bins == number).any()]
    points = [(confidence[mask].mean(), correct[mask].mean(), int(mask.sum())) for mask in masks]
    error = sum(size * abs(x - y) for x, y, size in points) / max(len(predictions), 1)
    figure = Figure(figsize=(5, 6), dpi=DPI)
    axes, counts = figure.subplots(2, sharex=True, height_ratios=(4, 1))
    axes.plot([0, 1], [0, 1], color="gray", linestyle=":", linewidth=1, label="calibrated")
    axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o-", color=BLUE, label="model")
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("accuracy")
    axes.set_title(f"expected calibration error {error:.3f}", fontsize=10)
    axes.legend(frameon=False, loc="upper left")
    set_style(axes)
    sizes = np.bincount(bins, minlength=_BINS)
    bars = counts.bar((np.arange(_BINS) + 0.5) / _BINS, sizes, 0.9 / _BINS, color=BLUE)
    counts.bar_label(bars, [f"{size:,}" if size else "" for size in sizes], fontsize=7, padding=1)
    counts.margins(y=0.25)
    counts.set_xlabel("confidence")
    counts.set_ylabel("predictions")
    set_style(counts, "y")
    return figure


def numbers_figure(true: Sequence[float], predicted: Sequence[float]) -> Figure:
    """A scatter plot of predicted over true numbers, with the line of exact predictions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), dpi=DPI)
    axes = figure.add_subplot()
    values = np.concatenate([np.asarray(true, np.float64), np.asarray(predicted, np.float64)])
    values = values[np.isfinite(values)]
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    margin = 0.03 * (high - low) or 1.0
    limits = (low - margin, high + margin)
    axes.plot(limits, limits, color="gray", linestyle=":", linewidth=1, label="exact")
    opacity = float(np.clip(200 / max(len(true), 1), 0.2, 0.8))  # of many points, overlapping ones show as darker
    axes.scatter(true, predicted, s=12, color=BLUE, alpha=opacity, linewidths=0, label=f"{len(true):,} examples")
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    axes.set_aspect("equal")
    axes.set_xlabel("true number")
    axes.set_ylabel("predicted number")
    set_style(axes)
    legend = axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    for handle in filter(None, legend.legend_handles):
        handle.set_alpha(1)  # a single point would be too pale
    return figure


def _with_font_note(figure: Figure, names: Iterable[str]) -> Figure:
    """The figure with a note above it if no font has some of the characters of its labels."""
    if script_of(names).incomplete:
        figure.text(0, 1, MISSING_NOTE, va="bottom", fontsize=8, color="dimgray")
    return figure


def _set_tick_labels(axes: Axes, names: Sequence[str], axis: str, limit: int = _MAX_TICK_LABEL) -> None:
    script = script_of(names)
    set_ticks, rotation = (axes.set_xticks, 90) if axis == "x" else (axes.set_yticks, 0)
    labels = [label_of(name, script, limit, spaces=True) for name in names]
    set_ticks(range(len(names)), labels, rotation=rotation, fontsize=8, family=script.fonts, parse_math=False)


def _as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return text.getvalue()
