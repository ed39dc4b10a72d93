"""Pictures of attention: which part of the source the model looked at for each token of its output."""

from __future__ import annotations

import math
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kit.curves import save_picture
from kit.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPECIAL_NAMES = {"<s>": "START", "</s>": "END", "<pad>": "PAD", "<unk>": "UNKNOWN"}
"""What special tokens are called in a picture; those of other tokenizers, such as [CLS], are names already."""

MISSING_NOTE = "No suitable font is installed for some characters: U+… stands for one of them."

_FONT = "DejaVu Sans"  # comes with matplotlib
_CELL, _GAP, _BAR = 0.3, 0.35, 0.15  # inches
_MAX_SIDE, _MIN_MAP = 30.0, 0.5  # inches
_FONT_SIZE, _MIN_FONT_SIZE = 9.0, 4.0  # points
_DPI = 120
_MAX_LABEL, _MAX_TITLE = 24, 200  # characters
_SIGNS = {" ": "␣", "\u2581": "␣", "\n": "⏎", "\t": "⇥"}  # many tokenizers write a space as U+2581
_JOINERS = "\u200c\u200d"  # invisible, but part of how words are spelt


def draw_attention(
    weights: Any,
    source_tokens: Sequence[str],
    output_tokens: Sequence[str],
    path: Path,
    title: str | None = None,
) -> Path:
    """Write the heat map of `attention_figure` as PNG; the file is there as a whole or not at all."""
    return save_picture(attention_figure(weights, source_tokens, output_tokens, title), Path(path))


def attention_figure(
    weights: Any, source_tokens: Sequence[str], output_tokens: Sequence[str], title: str | None = None
) -> Figure:
    """A heat map: source from left to right, output from top to bottom, dark where the weight is high.

    `weights` is an array or tensor (output, source), or (heads, output, source) for a grid of one map per head.
    Spaces show as ␣ and special tokens as names. Characters are drawn with any installed font that has them;
    where none has, the label shows the code point, such as U+65E5, and a note says so. Tokens of a byte-level
    tokenizer must be decoded first. Large maps are drawn smaller; where labels would become too small to read,
    only every second, third, … is written.
    """
    from matplotlib.figure import Figure

    maps = _maps(weights, len(source_tokens), len(output_tokens))
    script = _script([*source_tokens, *output_tokens, title or ""])
    sources = [_label(token, script) for token in source_tokens]
    outputs = [_label(token, script) for token in output_tokens]
    layout = _Layout.of(maps.shape, sources, outputs)
    low = min(0.0, float(maps.min()))
    high = max(float(maps.max()), low + 1e-9)

    figure = Figure(figsize=(layout.width, layout.height), dpi=_DPI)
    for head, map_of_head in enumerate(maps):
        row, column = divmod(head, layout.columns)
        axes = figure.add_axes(layout.box(row, column))
        image = axes.imshow(map_of_head, cmap="Blues", vmin=low, vmax=high, aspect="auto", interpolation="nearest")
        # All maps have the same tokens: they are written once, along the top and the left side of the grid.
        _write(axes, "x", sources if row == 0 else [], source_tokens, layout, script)
        _write(axes, "y", outputs if column == 0 else [], output_tokens, layout, script)
        if len(maps) > 1:
            axes.text(0.5, -0.03, f"head {head + 1}", transform=axes.transAxes, ha="center", va="top", fontsize=8)
    bar = figure.colorbar(image, cax=figure.add_axes(layout.bar()))
    bar.ax.tick_params(labelsize=8)
    if title:
        lines = textwrap.fill(
            _label(" ".join(title.split()), script, _MAX_TITLE, spaces=True), max(30, int(layout.width * 10))
        )
        figure.text(0, 1, lines, va="bottom", fontsize=11, family=script.fonts, parse_math=False)
    if script.incomplete:
        figure.text(0, 0, MISSING_NOTE, va="top", fontsize=8, color="dimgray")
    return figure


def _maps(weights: Any, sources: int, outputs: int) -> np.ndarray:
    """The weights as (heads, output, source), checked."""
    torch = sys.modules.get("torch")  # who hands over a tensor has imported torch
    if torch is not None and isinstance(weights, torch.Tensor):
        weights = weights.detach().to("cpu", torch.float32).numpy()
    maps = np.asarray(weights, dtype=np.float64)
    if maps.ndim == 2:
        maps = maps[None]
    if maps.ndim != 3 or maps.shape[1:] != (outputs, sources) or maps.size == 0:
        raise DataError(
            f"Attention weights of shape {np.shape(weights)} do not fit {outputs} output tokens and {sources} "
            f"source tokens: expected (output, source) or (heads, output, source), none of them empty."
        )
    if not np.isfinite(maps).all():
        raise DataError("Attention weights hold NaN or infinity: there is nothing to draw.")
    return maps


@dataclass(frozen=True)
class _Layout:
    """Sizes in inches of a grid of equal maps, such that the whole picture has an upper limit."""

    columns: int
    rows: int
    left: float
    top: float
    map_width: float
    map_height: float
    font_size: float
    cell_width: float
    cell_height: float

    @classmethod
    def of(cls, shape: tuple[int, ...], sources: Sequence[str], outputs: Sequence[str]) -> _Layout:
        heads, output_count, source_count = shape
        columns = math.ceil(math.sqrt(heads))
        rows = math.ceil(heads / columns)
        left, top = _longest(outputs, _FONT_SIZE), _longest(sources, _FONT_SIZE)
        map_width = min(source_count * _CELL, (_MAX_SIDE - left - _GAP - _BAR) / columns - _GAP)
        map_height = min(output_count * _CELL, (_MAX_SIDE - top) / rows - _GAP)
        map_width, map_height = max(map_width, _MIN_MAP), max(map_height, _MIN_MAP)
        cell_width, cell_height = map_width / source_count, map_height / output_count
        font_size = min(_FONT_SIZE, max(_MIN_FONT_SIZE, _FONT_SIZE * min(cell_width, cell_height) / _CELL))
        left, top = _longest(outputs, font_size), _longest(sources, font_size)
        return cls(columns, rows, left, top, map_width, map_height, font_size, cell_width, cell_height)

    @property
    def width(self) -> float:
        return self.left + self.columns * (self.map_width + _GAP) + _BAR + _GAP

    @property
    def height(self) -> float:
        return self.top + self.rows * (self.map_height + _GAP)

    def box(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Place of a map as matplotlib wants it: left, bottom, width, height as parts of the picture."""
        left = self.left + column * (self.map_width + _GAP)
        bottom = (self.rows - row) * (self.map_height + _GAP) - self.map_height
        return self._parts(left, bottom, self.map_width, self.map_height)

    def bar(self) -> tuple[float, float, float, float]:
        """Place of the scale: right of the first row."""
        bottom = self.rows * (self.map_height + _GAP) - self.map_height
        height = min(self.map_height, 3.0)
        left = self.width - _BAR - _GAP
        return self._parts(left, bottom + self.map_height - height, _BAR, height)

    def _parts(self, left: float, bottom: float, width: float, height: float) -> tuple[float, float, float, float]:
        return left / self.width, bottom / self.height, width / self.width, height / self.height

    def every(self, axis: str) -> int:
        """Labels so many cells apart have room."""
        cell = self.cell_width if axis == "x" else self.cell_height
        return max(1, math.ceil(1.2 * self.font_size / 72 / cell - 1e-6))


def _longest(labels: Iterable[str], font_size: float) -> float:
    """About the width in inches of the longest label, with room for the name of the axis."""
    widths = (sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.65 for c in label) for label in labels)
    return max(widths) * font_size / 72 + 0.3


def _write(
    axes: Axes, axis: Literal["x", "y"], labels: list[str], tokens: Sequence[str], layout: _Layout, script: _Script
) -> None:
    """Write the labels along one side of a map; none for a map in the middle of the grid."""
    places = list(range(0, len(labels), layout.every(axis)))
    shown = [labels[place] for place in places]
    style: dict[str, Any] = {"fontsize": layout.font_size, "family": script.fonts, "parse_math": False}
    if axis == "x":
        axes.xaxis.tick_top()
        axes.set_xticks(places, shown, rotation=90, **style)
        axes.set_xlabel("source" if labels else "", fontsize=8, color="dimgray")
        axes.xaxis.set_label_position("top")
    else:
        axes.set_yticks(places, shown, **style)
        axes.set_ylabel("output" if labels else "", fontsize=8, color="dimgray")
    axes.tick_params(axis=axis, length=2, pad=2)
    written = axes.get_xticklabels() if axis == "x" else axes.get_yticklabels()
    for place, text in zip(places, written, strict=True):
        if tokens[place] in SPECIAL_NAMES:
            text.set_color("gray")  # so that a word START in the text is not taken for the marker


@dataclass(frozen=True)
class _Script:
    """Which fonts to draw with, in the order of preference, and which characters they have."""

    fonts: list[str]
    drawable: frozenset[str]
    incomplete: bool


def _script(texts: Iterable[str]) -> _Script:
    """The fewest installed fonts that together have as many of the visible characters as can be had."""
    wanted = {letter for text in texts for letter in text if not _invisible(letter)} | set(_JOINERS)
    drawable = {letter for letter in wanted if ord(letter) in _characters(_FONT)}
    fonts = [_FONT]
    for font in _other_fonts() if not wanted <= drawable else ():
        gained = {letter for letter in wanted - drawable if ord(letter) in _characters(font)}
        if gained:
            fonts.append(font)
            drawable |= gained
        if wanted <= drawable:
            break
    return _Script(fonts, frozenset(drawable), incomplete=not wanted <= drawable | set(_JOINERS))


def _other_fonts() -> list[str]:
    """Installed font families with an upright face of normal weight, those without serifs first."""
    from matplotlib.font_manager import fontManager

    # The "last resort" font has a box with a script's name for every character: no help to a reader.
    # Matplotlib complains on stderr about a family without the weight that is asked for.
    names = {
        font.name
        for font in fontManager.ttflist
        if not font.name.startswith(("Last Resort", _FONT))
        and font.style == "normal"
        and font.weight in (400, "normal", "regular")
    }
    return sorted(names, key=lambda name: (not name.startswith("Noto Sans"), "Sans" not in name, name))


@lru_cache(maxsize=512)
def _characters(font: str) -> frozenset[int]:
    """Code points that the font has, in the file that matplotlib would choose for this family."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    try:
        return frozenset(get_font(findfont(FontProperties(family=[font]), fallback_to_default=False)).get_charmap())
    except (OSError, RuntimeError, ValueError):  # a font file that is broken or gone is one font less
        return frozenset()


def _invisible(letter: str) -> bool:
    """Whether a reader could not see the character, or it would turn the direction of text."""
    return letter not in _JOINERS and unicodedata.category(letter)[0] in "CZ" and letter != " "


def _label(token: str, script: _Script, limit: int = _MAX_LABEL, spaces: bool = False) -> str:
    """What is written for a token: each character visible and drawable, or its code point; or with spaces."""
    if token in SPECIAL_NAMES:
        return SPECIAL_NAMES[token]
    label, after_code = "", False
    for letter in token:
        if letter in _SIGNS:
            piece, is_code = " " if spaces else _SIGNS[letter], False
        elif letter in script.drawable:
            piece, is_code = letter, False
        elif letter in _JOINERS:
            continue
        else:
            piece, is_code = f"U+{ord(letter):04X}", True
        if label and (is_code or after_code) and " " not in (piece, label[-1]):
            piece = " " + piece
        if len(label) + len(piece) > limit:
            return label + "…"
        label, after_code = label + piece, is_code
    if not label.strip(_JOINERS):
        return " ".join(f"U+{ord(letter):04X}" for letter in token) or "(empty)"
    return label
