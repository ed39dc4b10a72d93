"""Pictures of predicted labels: which are taken for which, how well each is found, and how sure the model should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kit.plots.curves import save_figure
from kit.plots.fonts import MAX_LABEL, label_of, script_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LABELS = 30
"""A picture of more labels than this could not be read: the most frequent ones are shown."""
OTHERS = "(others)"
BINS = 10
_LONGEST = 36  # characters
_COLOR, _OTHER_COLOR = "#4477aa", "#cc6633"  # told apart by all kinds of color sight


def draw_confusion(pairs: Sequence[tuple[str, str]], path: Path) -> Path:
    """How often each right label (rows) was predicted as each other (columns), with the share of its row as color.

    `pairs` are right and predicted labels. Of too many labels the most frequent ones are shown, the others as one.
    """
    from matplotlib.figure import Figure

    shown, folded = _shown_labels(label for pair in pairs for label in pair)
    names = [*shown, OTHERS] if folded else shown
    places = {name: place for place, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    for right, predicted in pairs:
        counts[places.get(right, len(shown)), places.get(predicted, len(shown))] += 1
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = 3 + 0.35 * len(names)
    figure = Figure(figsize=(size + 1, size), dpi=120)
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in zip(*np.nonzero(counts), strict=True):
        color = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=7, color=color)
    _name_ticks(axes, names, "x")
    _name_ticks(axes, names, "y")
    axes.set_xlabel("predicted")
    axes.set_ylabel("right")
    return save_figure(figure, path)


def draw_labels(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], path: Path) -> Path:
    """Precision and recall of each label as bars, with the number of examples that have it.

    `pairs` are the right and the predicted labels of each example.
    """
    from matplotlib.figure import Figure

    right = Counter(label for labels, _ in pairs for label in labels)
    predicted = Counter(label for _, labels in pairs for label in labels)
    both = Counter(label for labels, found in pairs for label in set(labels) & set(found))
    figures = {
        label: (both[label] / max(predicted[label], 1), both[label] / max(right[label], 1), right[label])
        for label in right.keys() | predicted.keys()
    }
    return _draw_figures(figures, path, Figure)


def draw_types(by_type: dict[str, dict[str, float]], path: Path) -> Path:
    """The same for types of spans: `{"PER": {"precision": …, "recall": …, "number": …}}`."""
    from matplotlib.figure import Figure

    figures = {kind: (one["precision"], one["recall"], int(one["number"])) for kind, one in by_type.items()}
    return _draw_figures(figures, path, Figure)


def _draw_figures(figures: dict[str, tuple[float, float, int]], path: Path, make: type) -> Path:
    """Bars of precision and recall by name, the most frequent names first."""
    names = sorted(figures, key=lambda name: (-figures[name][2], name))[:MAX_LABELS]
    figure = make(figsize=(7, 1.2 + 0.4 * max(len(names), 1)), dpi=120)
    axes = figure.add_subplot()
    rows = np.arange(len(names))
    for offset, place, color, label in ((-0.18, 0, _COLOR, "precision"), (0.18, 1, _OTHER_COLOR, "recall")):
        axes.barh(rows + offset, [figures[name][place] for name in names], 0.34, color=color, label=label)
    _name_ticks(axes, [f"{name[:MAX_LABEL]} ({figures[name][2]:,})" for name in names], "y")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(names) < len(figures):
        axes.set_xlabel(f"the {len(names)} most frequent of {len(figures):,} labels")
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.0 + 0.6 / max(len(names), 1)), ncols=2)
    return save_figure(figure, path)


def draw_reliability(sure: Sequence[tuple[float, bool]], path: Path) -> Path:
    """How often the model is right among predictions that it is about equally sure of; on the diagonal it is as sure as
    it may be.

    `sure` has the probability of each prediction, and whether it is right.
    """
    from matplotlib.figure import Figure

    scores = np.array([score for score, _ in sure])
    right = np.array([hit for _, hit in sure], dtype=np.float64)
    bins = np.minimum((scores * BINS).astype(int), BINS - 1)
    filled = [number for number in range(BINS) if (bins == number).any()]
    means = [(scores[bins == number].mean(), right[bins == number].mean()) for number in filled]
    sizes = [int((bins == number).sum()) for number in filled]
    error = sum(size * abs(score - hit) for size, (score, hit) in zip(sizes, means, strict=True)) / max(len(sure), 1)
    figure = Figure(figsize=(5, 5), dpi=120)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="gray", linestyle=":", linewidth=1)
    axes.plot([score for score, _ in means], [hit for _, hit in means], "o-", color=_COLOR)
    for (score, hit), size in zip(means, sizes, strict=True):
        axes.annotate(f"{size:,}", (score, hit), textcoords="offset points", xytext=(6, -10), fontsize=7)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("probability of the prediction")
    axes.set_ylabel("share that is right")
    axes.set_title(f"expected calibration error {error:.3f}", fontsize=10)
    axes.grid(alpha=0.3)
    return save_figure(figure, path)


def _shown_labels(labels: Iterable[str]) -> tuple[list[str], bool]:
    """The labels to show, in order, and whether there are others."""
    counts = Counter(labels)
    shown = sorted(name for name, _ in counts.most_common(MAX_LABELS))
    return shown, len(shown) < len(counts)


def _name_ticks(axes: Axes, names: Sequence[str], side: str) -> None:
    script = script_of(names)
    setter, rotation = (axes.set_xticks, 90) if side == "x" else (axes.set_yticks, 0)
    shown = [label_of(name, script, _LONGEST, spaces=True) for name in names]
    setter(range(len(names)), shown, rotation=rotation, fontsize=8, family=script.fonts, parse_math=False)
