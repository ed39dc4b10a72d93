"""Figures as files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import KitError
from kit.system.outputs import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
"""File formats of figures."""


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure atomically, in the format that the ending of its name gives (PNG if it has none); returns `path`.

    The folder is created. Raises KitError for another ending.
    """
    ending = path.suffix.lower().removeprefix(".") or "png"
    if ending not in FORMATS:
        raise KitError(f"{path}: plots are written as {', '.join(FORMATS)}. Name a file with one of these endings")
    path.parent.mkdir(parents=True, exist_ok=True)
    # the date would make every SVG and PDF another file
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=ending, bbox_inches="tight", pad_inches=0.1, metadata=metadata)
    return path


def save_figures(figures: Mapping[str, Figure], folder: Path, format: str = FORMATS[0]) -> list[Path]:
    """Write figures into a folder under their names; returns the paths."""
    return [save_figure(figure, folder / f"{name}.{format}") for name, figure in figures.items()]
