"""What a model writes for a line."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Output:
    """One hypothesis for one line."""

    text: str
    score: float
    finished: bool


EMPTY = Output("", 0.0, True)
