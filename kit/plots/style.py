"""Colors, resolution and the style of axes, shared by all figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GRAY, GREEN, PURPLE = "#4477aa", "#cc6633", "#999999", "#228833", "#aa3377"
"""Colors that people with any kind of color vision tell apart."""
DPI = 120
"""Dots per inch of PNG files: text of 7 points stays readable."""


def set_style(axes: Axes, grid: Literal["x", "y", "both"] = "both") -> None:
    """A light grid behind the data, and a frame at the left and the bottom only."""
    axes.grid(axis=grid, alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
