"""The base of all metrics on text, as rows of numbers that add up to the score."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np

from kit.errors import DataError
from kit.evaluation.metrics.local_metric import LocalMetric, check_pairs

References = Sequence[str] | Sequence[Sequence[str]]
"""For each prediction the right text, or a list of texts that are all right."""


@dataclass(frozen=True)
class Statistics:
    """A metric as rows that add up: the score of any examples is `score` of the sum of their rows."""

    rows: np.ndarray
    """(examples, numbers per example)"""
    score: Callable[[np.ndarray], float]
    signature: str | None = None


class TextMetric(LocalMetric):
    """Compares predicted with right texts: `compute(predictions=…, references=…)` gives `{"score": …}`."""

    inputs = """
    predictions: the texts to judge, a list of strings.
    references: for each prediction the right text, or a list of texts that are all right.
    """

    @abstractmethod
    def statistics(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Statistics:
        """What each example adds to the score; a subclass may take options, which `compute` hands on."""

    def add_batch(self, *, predictions: Sequence[str], references: References, **kwargs: Any) -> None:
        """Add predictions and their references."""
        super().add_batch(predictions=predictions, references=as_lists(predictions, references), **kwargs)

    def add(self, *, prediction: str, reference: str | Sequence[str], **kwargs: Any) -> None:
        """Add one prediction and its reference."""
        super().add(prediction=prediction, reference=as_lists([prediction], [reference])[0], **kwargs)

    def columns(self) -> dict[str, Any]:
        text = datasets.Value("string")
        return {"predictions": text, "references": datasets.List(text)}

    def _compute(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]], **options: Any
    ) -> dict[str, Any]:
        statistics = self.statistics(predictions, references, **options)
        result: dict[str, Any] = {"score": float(statistics.score(statistics.rows.sum(axis=0)))}
        if statistics.signature is not None:
            result["signature"] = statistics.signature
        return result


def as_lists(predictions: Sequence[str], references: References) -> list[list[str]]:
    """The references as one list for each prediction, once it is clear that all is text and fits together."""
    check_pairs(predictions, references)
    lists: list[list[Any]] = [
        list(reference) if isinstance(reference, list | tuple) else [reference] for reference in references
    ]
    for number, (prediction, texts) in enumerate(zip(predictions, lists, strict=True), start=1):
        if not isinstance(prediction, str):
            raise DataError(f"Prediction {number} is not a text: {prediction!r}.")
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DataError(f"Reference {number} is neither a text nor a list of texts: {references[number - 1]!r}.")
    return lists
