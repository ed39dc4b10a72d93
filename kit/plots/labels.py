"""Figures of predicted labels: the confusion matrix, precision and recall per label, and a reliability diagram."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kit.plots.curves import BLUE, ORANGE, save_figure
from kit.plots.fonts import MAX_LABEL, label_of, script_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LABELS = 30
"""A figure shows at most so many labels, the most frequent ones: more would not be readable."""
OTHERS = "(others)"
_BINS = 10  # of the confidence, each 0.1 wide
_MAX_TICK_LABEL = 36  # characters


def draw_confusion(pairs: Sequence[tuple[str, str]], path: Path) -> Path:
    """Draw the confusion matrix of (true label, predicted label) pairs; returns `path`.

    If there are too many labels, those beyond the most frequent ones are merged into `OTHERS`.
    """
    from matplotlib.figure import Figure
    from sklearn.metrics import confusion_matrix

    frequent = Counter(label for pair in pairs for label in pair).most_common()
    shown = {label for label, _ in frequent[:MAX_LABELS]}
    names = sorted(shown) + ([OTHERS] if len(frequent) > MAX_LABELS else [])
    true, predicted = zip(*([label if label in shown else OTHERS for label in pair] for pair in pairs), strict=True)
    counts = confusion_matrix(true, predicted, labels=names)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = 3 + 0.35 * len(names)
    figure = Figure(figsize=(size + 1, size), dpi=120)
    axes = figure.add_subplot()
    # Not ConfusionMatrixDisplay: it colors a cell by the number that it prints. Here the color is the share of the row,
    # so that rare labels are visible, and the number is the count. It also needs pyplot, and with it a global figure.
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in zip(*np.nonzero(counts), strict=True):
        color = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=7, color=color)
    _set_tick_labels(axes, names, "x")
    _set_tick_labels(axes, names, "y")
    axes.set_xlabel("predicted label")
    axes.set_ylabel("true label")
    return save_figure(figure, path)


def draw_labels(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], path: Path) -> Path:
    """Draw precision and recall of each label as bars; returns `path`.

    `pairs` are the true and the predicted labels of each example.
    """
    true = Counter(label for labels, _ in pairs for label in labels)
    predicted = Counter(label for _, labels in pairs for label in labels)
    correct = Counter(label for labels, predictions in pairs for label in set(labels) & set(predictions))
    scores = {
        label: (correct[label] / max(predicted[label], 1), correct[label] / max(true[label], 1), true[label])
        for label in true.keys() | predicted.keys()
    }
    return _draw_scores(scores, path)


def draw_types(by_type: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """Draw precision and recall of each type of span as bars; returns `path`.

    `by_type` is like `{"PER": {"precision": 0.5, "recall": 1.0, "number": 2}}`.
    """
    return _draw_scores(
        {name: (type_["precision"], type_["recall"], int(type_["number"])) for name, type_ in by_type.items()}, path
    )


def _draw_scores(scores: Mapping[str, tuple[float, float, int]], path: Path) -> Path:
    """Bars of (precision, recall, number of true examples) by label, the most frequent labels first."""
    from matplotlib.figure import Figure

    names = sorted(scores, key=lambda name: (-scores[name][2], name))[:MAX_LABELS]
    figure = Figure(figsize=(7, 1.2 + 0.4 * max(len(names), 1)), dpi=120)
    axes = figure.add_subplot()
    rows = np.arange(len(names))
    for index, (label, color, offset) in enumerate((("precision", BLUE, -0.18), ("recall", ORANGE, 0.18))):
        axes.barh(rows + offset, [scores[name][index] for name in names], 0.34, color=color, label=label)
    _set_tick_labels(axes, [f"{name[:MAX_LABEL]} ({scores[name][2]:,})" for name in names], "y")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(names) < len(scores):
        axes.set_xlabel(f"the {len(names)} most frequent of {len(scores):,} labels")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.0 + 0.6 / max(len(names), 1)), ncols=2)
    return save_figure(figure, path)


def draw_reliability(predictions: Sequence[tuple[float, bool]], path: Path) -> Path:
    """Draw a reliability diagram with the expected calibration error (Guo et al., 2017, arXiv:1706.04599); returns
    `path`.

    `predictions` has the probability of each prediction, and whether it is correct.
    """
    from matplotlib.figure import Figure

    confidence = np.array([probability for probability, _ in predictions])
    correct = np.array([is_correct for _, is_correct in predictions], dtype=np.float64)
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    masks = [bins == number for number in range(_BINS) if (bins == number).any()]
    points = [(confidence[mask].mean(), correct[mask].mean(), int(mask.sum())) for mask in masks]
    error = sum(size * abs(x - y) for x, y, size in points) / max(len(predictions), 1)
    figure = Figure(figsize=(5, 5), dpi=120)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="gray", linestyle=":", linewidth=1)
    axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o-", color=BLUE)
    for x, y, size in points:
        axes.annotate(f"{size:,}", (x, y), textcoords="offset points", xytext=(6, -10), fontsize=7)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.set_title(f"expected calibration error {error:.3f}", fontsize=10)
    axes.grid(alpha=0.3)
    return save_figure(figure, path)


def _set_tick_labels(axes: Axes, names: Sequence[str], axis: str) -> None:
    script = script_of(names)
    set_ticks, rotation = (axes.set_xticks, 90) if axis == "x" else (axes.set_yticks, 0)
    labels = [label_of(name, script, _MAX_TICK_LABEL, spaces=True) for name in names]
    set_ticks(range(len(names)), labels, rotation=rotation, fontsize=8, family=script.fonts, parse_math=False)
