"""The base of all metrics on text: an `evaluate.Metric` that needs no network and leaves no files."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import evaluate
import numpy as np

from kit.errors import DataError

References = Sequence[str] | Sequence[Sequence[str]]
"""For each prediction the right text, or a list of texts that are all right."""


@dataclass(frozen=True)
class Statistics:
    """A metric as rows that add up: the score of any examples is `score` of the sum of their rows."""

    rows: np.ndarray
    """(examples, numbers per example)"""
    score: Callable[[np.ndarray], float]
    signature: str | None = None


class TextMetric(ABC, evaluate.Metric):
    """Compares predicted with right texts: `compute(predictions=…, references=…)` gives `{"score": …}`."""

    inputs = """
    predictions: the texts to judge, a list of strings.
    references: for each prediction the right text, or a list of texts that are all right.
    """

    def __init__(self, config_name: str | None = None, keep_in_memory: bool = True, **kwargs: Any) -> None:
        # In memory by default: all processes of a user share a cache folder, and a crash leaves litter.
        super().__init__(config_name=config_name, keep_in_memory=keep_in_memory, **kwargs)

    @abstractmethod
    def statistics(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Statistics:
        """What each example adds to the score; a subclass may take options, which `compute` hands on."""

    def add_batch(self, *, predictions: Sequence[str], references: References, **kwargs: Any) -> None:
        """Add predictions and their references."""
        super().add_batch(predictions=predictions, references=as_lists(predictions, references), **kwargs)

    def add(self, *, prediction: str, reference: str | Sequence[str], **kwargs: Any) -> None:
        """Add one prediction and its reference."""
        super().add(prediction=prediction, reference=as_lists([prediction], [reference])[0], **kwargs)

    def _build_data_dir(self) -> str:
        # evaluate makes this folder even when it keeps everything in memory.
        return super()._build_data_dir() if not self.keep_in_memory else self._data_dir_root

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=type(self).__doc__,
            citation="",
            inputs_description=self.inputs,
            features=datasets.Features({"predictions": text, "references": datasets.List(text)}),
        )

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
    if isinstance(predictions, str) or isinstance(references, str):
        raise DataError("A single text was given: a metric takes a list of predictions and a list of references.")
    if len(predictions) != len(references):
        raise DataError(
            f"{len(predictions)} predictions and {len(references)} references: each prediction needs its own."
        )
    if len(predictions) == 0:
        raise DataError("No predictions: a metric needs at least one prediction and its reference.")
    lists: list[list[Any]] = [
        list(reference) if isinstance(reference, list | tuple) else [reference] for reference in references
    ]
    for number, (prediction, texts) in enumerate(zip(predictions, lists, strict=True), start=1):
        if not isinstance(prediction, str):
            raise DataError(f"Prediction {number} is not a text: {prediction!r}.")
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DataError(f"Reference {number} is neither a text nor a list of texts: {references[number - 1]!r}.")
    return lists
