"""What an evaluation returns."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Evaluation:
    """Figures of a split and the predictions they were computed from, in the order of the data."""

    figures: dict[str, Any]
    rows: list[dict[str, Any]]
