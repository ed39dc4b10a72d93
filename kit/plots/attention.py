"""Heat maps of attention weights."""

from __future__ import annotations

import math
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kit.errors import DataError
from kit.plots.fonts import MAX_LABEL, MISSING_NOTE, SPECIAL_NAMES, Script, label_of, script_of
from kit.plots.style import DPI

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELL, _MIN_CELL, _GAP, _BAR = 0.3, 0.16, 0.35, 0.15  # inches
_COMFORTABLE_SIDE = 7.0  # inches; larger maps get smaller cells
_MAX_SIDE, _MIN_MAP = 45.0, 0.5  # inches; a map of the smallest size has 60 pixels in a PNG file
_FONT_SIZE, _MIN_FONT_SIZE, _LINE = 9.0, 4.0, 1.2  # points, and line height as a multiple of the font size
_NAME_SIZE, _TITLE_SIZE, _MAX_TITLE_SIZE = 8.0, 11.0, 30.0  # points
MAX_TEXT = 48
"""Characters of a label that stands for a whole text."""
_TITLE_LENGTH = 200  # characters
_MASKED_COLOR = "#ececec"  # not in the color map, so that it cannot be mistaken for a weight


def attention_figure(
    weights: Any,
    source_tokens: Sequence[str],
    output_tokens: Sequence[str],
    title: str | None = None,
    *,
    names: tuple[str, str] = ("source", "output"),
    captions: Sequence[str] | None = None,
    causal: bool = False,
    rows_are_texts: bool = False,
) -> Figure:
    """A heat map of attention weights: a column per source token (key), a row per output token (query), dark for high
    weights.

    `weights` is an array or tensor (output, source), or (maps, output, source) for several maps, by default one per
    head, with a caption below each; or (layers, heads, output, source) for a grid with a row per layer and a column per
    head. All maps share one color scale. `names` label the two axes. With `causal`, positions after the token itself
    are left empty; with `rows_are_texts`, the rows are whole texts, not tokens. Raises DataError if the shape does not
    fit the tokens, or if a weight is not finite.

    Spaces show as ␣ and special tokens as names. Characters are drawn with any installed font that has them; without
    one, the label shows the code point, such as U+65E5, and a note explains it. Tokens of a byte-level tokenizer must
    be decoded first. Large maps get smaller cells; if the labels would be too small to read, only every second, third,
    … is written.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    maps, rows_are_layers = _maps(weights, len(source_tokens), len(output_tokens))
    script = script_of([*source_tokens, *output_tokens, title or ""])
    longest = MAX_TEXT if rows_are_texts else MAX_LABEL
    sources = [label_of(token, script) for token in source_tokens]
    outputs = [label_of(token, script, longest, spaces=rows_are_texts) for token in output_tokens]
    layout = _Layout.of(maps.shape, rows_are_layers, sources, outputs)
    flat = maps.reshape(-1, *maps.shape[2:])
    if captions is None and not rows_are_layers and len(flat) > 1:
        captions = [f"head {number}" for number in range(1, len(flat) + 1)]
    low = min(0.0, float(maps.min()))
    high = max(float(maps.max()), low + 1e-9)
    after = np.triu(np.ones(maps.shape[2:], dtype=bool), 1) if causal else np.False_

    figure = Figure(figsize=(layout.width, layout.height), dpi=DPI)
    colors = colormaps["Blues"].with_extremes(bad=_MASKED_COLOR)
    for number, values in enumerate(flat):
        row, column = divmod(number, layout.columns)
        axes = figure.add_axes(layout.box(row, column))
        # only zeros are masked: a weight on a later token, which would be a bug, stays visible
        shown = np.ma.masked_where(after & (values == 0), values)
        image = axes.imshow(shown, cmap=colors, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
        # All maps have the same tokens, which are written once, along the top and the left side of the grid.
        _write(axes, "x", sources if row == 0 else [], source_tokens, names[0], layout, script)
        _write(axes, "y", outputs if column == 0 else [], output_tokens, names[1], layout, script)
        if captions is not None:
            below = -0.05 / layout.map_height
            axes.text(0.5, below, captions[number], transform=axes.transAxes, ha="center", va="top", fontsize=9)
        if rows_are_layers and row == 0:
            axes.set_title(f"head {column + 1}", fontsize=layout.title_size)
        if rows_are_layers and column == 0:
            _, bottom, _, height = layout.box(row, column)
            middle = bottom + height / 2
            figure.text(0, middle, f"layer {row + 1}", rotation=90, va="center", fontsize=layout.title_size)
    bar = figure.colorbar(image, cax=figure.add_axes(layout.bar()))
    bar.ax.tick_params(labelsize=_NAME_SIZE)
    bar.ax.set_ylabel("weight", fontsize=_NAME_SIZE, color="dimgray")
    if title:
        label = label_of(" ".join(title.split()), script, _TITLE_LENGTH, spaces=True)
        lines = textwrap.fill(label, max(30, int(layout.width * 110 / layout.title_size)))
        figure.text(0, 1, lines, va="bottom", fontsize=layout.title_size, family=script.fonts, parse_math=False)
    if script.incomplete:
        figure.text(0, 0, MISSING_NOTE, va="top", fontsize=_NAME_SIZE, color="dimgray")
    return figure


def _maps(weights: Any, sources: int, outputs: int) -> tuple[np.ndarray, bool]:
    """The weights as (rows, columns, output, source), and whether each row is a layer. Raises DataError for a wrong
    shape or a weight that is not finite."""
    torch = sys.modules.get("torch")  # not imported here, which takes seconds: a caller with a tensor has imported it
    if torch is not None and isinstance(weights, torch.Tensor):
        weights = weights.detach().to("cpu", torch.float32).numpy()
    maps = np.asarray(weights, dtype=np.float64)
    if maps.ndim not in (2, 3, 4) or maps.shape[-2:] != (outputs, sources) or maps.size == 0:
        raise DataError(
            f"Attention weights of shape {np.shape(weights)} do not match {outputs} output tokens and {sources} source "
            "tokens: expected (output, source), (heads, output, source) or (layers, heads, output, source), none of "
            "them empty."
        )
    if not np.isfinite(maps).all():
        raise DataError("Attention weights contain NaN or infinity, which cannot be drawn.")
    return maps.reshape((1,) * (4 - maps.ndim) + maps.shape), maps.ndim == 4


@dataclass(frozen=True)
class _Layout:
    """Sizes in inches of a grid of equal maps; the figure never grows beyond a maximum size."""

    columns: int
    rows: int
    left: float
    top: float
    map_width: float
    map_height: float
    font_size: float
    title_size: float
    cell_width: float
    cell_height: float

    @classmethod
    def of(
        cls, shape: tuple[int, ...], rows_are_layers: bool, sources: Sequence[str], outputs: Sequence[str]
    ) -> _Layout:
        rows, columns, output_count, source_count = shape
        if not rows_are_layers:
            columns = _columns(shape[1], source_count / output_count)
            rows = math.ceil(shape[1] / columns)
        left, top = _max_width(outputs, _FONT_SIZE), _max_width(sources, _FONT_SIZE)
        cell = max(_MIN_CELL, min(_CELL, _COMFORTABLE_SIDE / max(rows * output_count, columns * source_count)))
        map_width = min(source_count * cell, (_MAX_SIDE - left - _GAP - _BAR) / columns - _GAP)
        map_height = min(output_count * cell, (_MAX_SIDE - top) / rows - _GAP)
        map_width, map_height = max(map_width, _MIN_MAP), max(map_height, _MIN_MAP)
        cell_width, cell_height = map_width / source_count, map_height / output_count
        fitting = min(cell_width, cell_height) * 72 / _LINE
        font_size = min(_FONT_SIZE, max(_MIN_FONT_SIZE, fitting))
        # large figures are viewed scaled down
        title_size = min(_MAX_TITLE_SIZE, max(_TITLE_SIZE, 0.7 * columns * map_width))
        heading = 1.5 * title_size / 72 if rows_are_layers else 0.0
        left, top = _max_width(outputs, font_size) + heading, _max_width(sources, font_size) + heading
        return cls(columns, rows, left, top, map_width, map_height, font_size, title_size, cell_width, cell_height)

    @property
    def width(self) -> float:
        return self.left + self.columns * (self.map_width + _GAP) + _BAR + _GAP

    @property
    def height(self) -> float:
        return self.top + self.rows * (self.map_height + _GAP)

    def box(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Position of a map for matplotlib: left, bottom, width and height as fractions of the figure."""
        left = self.left + column * (self.map_width + _GAP)
        bottom = (self.rows - row) * (self.map_height + _GAP) - self.map_height
        return self._fractions(left, bottom, self.map_width, self.map_height)

    def bar(self) -> tuple[float, float, float, float]:
        """Position of the color bar, right of the first row."""
        bottom = self.rows * (self.map_height + _GAP) - self.map_height
        height = min(self.map_height, 3.0)
        left = self.width - _BAR - _GAP
        return self._fractions(left, bottom + self.map_height - height, _BAR, height)

    def _fractions(self, left: float, bottom: float, width: float, height: float) -> tuple[float, float, float, float]:
        return left / self.width, bottom / self.height, width / self.width, height / self.height

    def label_step(self, axis: str) -> int:
        """Distance in cells at which labels do not overlap."""
        cell = self.cell_width if axis == "x" else self.cell_height
        return max(1, math.ceil(_LINE * self.font_size / 72 / cell - 1e-6))


def _columns(maps: int, aspect: float) -> int:
    """The number of columns that makes the figure a bit wider than high and leaves few positions empty."""

    def cost(columns: int) -> float:
        rows = math.ceil(maps / columns)
        return abs(math.log(aspect * columns / rows / 1.4)) + 0.2 * (rows * columns - maps)

    return min(range(1, maps + 1), key=cost)


def _max_width(labels: Iterable[str], font_size: float) -> float:
    """Approximate width in inches of the longest label, with room for the name of the axis."""
    return max(_width(label, font_size) for label in labels) + 0.3


def _width(label: str, font_size: float) -> float:
    """Approximate width of a label in inches."""
    ems = sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.65 for letter in label)
    return ems * font_size / 72


def _write(
    axes: Axes,
    axis: Literal["x", "y"],
    labels: list[str],
    tokens: Sequence[str],
    name: str,
    layout: _Layout,
    script: Script,
) -> None:
    """Write the labels along one side of a map; a map inside the grid has none."""
    positions = list(range(0, len(labels), layout.label_step(axis)))
    shown = [labels[position] for position in positions]
    style: dict[str, Any] = {"fontsize": layout.font_size, "family": script.fonts, "parse_math": False}
    if axis == "x":
        axes.xaxis.tick_top()
        axes.set_xticks(positions, shown, rotation=90, **style)
        axes.set_xlabel(name if labels else "", fontsize=_NAME_SIZE, color="dimgray")
        axes.xaxis.set_label_position("top")
    else:
        axes.set_yticks(positions, shown, **style)
        axes.set_ylabel(name if labels else "", fontsize=_NAME_SIZE, color="dimgray")
    axes.tick_params(axis=axis, length=2, pad=2)
    written = axes.get_xticklabels() if axis == "x" else axes.get_yticklabels()
    words = [label for label, token in zip(labels, tokens, strict=False) if token not in SPECIAL_NAMES]
    upright = all(_width(word, layout.font_size) <= layout.cell_width for word in words)  # single characters
    for position, text in zip(positions, written, strict=True):
        if tokens[position] in SPECIAL_NAMES:
            text.set_color("gray")  # distinguishes the token <s> from the word START
        elif upright:
            text.set_rotation(0)
