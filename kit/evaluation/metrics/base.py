"""What every metric function returns, and the check that predictions and references match up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit.errors import DataError

if TYPE_CHECKING:  # the registry imports this file, and a recipe is checked without numpy
    import numpy as np


@dataclass(frozen=True)
class Statistics:
    """A metric as rows that add up: the score of any subset of the examples follows from the sum of their rows.

    Corpus BLEU is not a mean of sentence scores, but a function of summed n-gram counts. With the counts of each
    example at hand, the paired bootstrap scores a resampled corpus without reading a text again.
    """

    rows: np.ndarray
    """(examples, statistics per example)"""
    score_of_sum: Callable[[np.ndarray], float]
    signature: str | None = None
    """How the score was computed: tokenization, number of references, version."""

    def score(self, counts: np.ndarray | None = None) -> float:
        """The score of all examples, or of a sample that holds example i `counts[i]` times."""
        return float(self.score_of_sum(self.rows.sum(axis=0) if counts is None else counts @ self.rows))


MetricFunction = Callable[..., Statistics | Mapping[str, Any] | float]
"""`metric(predictions, references, **options)`; a mapping has the value as "score", and further figures beside it."""


def check_pairs(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    """Raise DataError unless there are as many predictions as references, and at least one."""
    for values in (predictions, references):
        if values is None or isinstance(values, str):
            raise DataError(f"A metric takes a list of predictions and a list of references, got {values!r:.80}.")
    if len(predictions) != len(references):
        raise DataError(
            f"{len(predictions)} predictions and {len(references)} references: each prediction needs its reference."
        )
    if len(predictions) == 0:
        raise DataError("No predictions: a metric needs at least one prediction and its reference.")
