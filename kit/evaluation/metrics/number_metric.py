"""Metrics on numbers, for regression: correlations by scipy, and mean errors."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from numbers import Real
from typing import Any

import datasets
import numpy as np
from scipy.stats import pearsonr, spearmanr

from kit.errors import DataError
from kit.evaluation.metrics.local_metric import LocalMetric, check_pairs


class NumberMetric(LocalMetric):
    """Compares predicted with right numbers, all of which must be finite."""

    inputs = """
    predictions: a number for each example, or a list of one number, as a model with one output gives it.
    references: the right numbers.
    """

    @abstractmethod
    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        """The value on these numbers."""

    def columns(self) -> dict[str, Any]:
        number = datasets.Value("float64")
        return {"predictions": number, "references": number}

    def add_batch(self, *, predictions: Sequence[Any], references: Sequence[Any], **kwargs: Any) -> None:
        """Add predicted numbers and the right ones."""
        check_pairs(predictions, references)
        super().add_batch(
            predictions=numbers(predictions, "Prediction"), references=numbers(references, "Reference"), **kwargs
        )

    def add(self, *, prediction: Any, reference: Any, **kwargs: Any) -> None:
        """Add one prediction and its reference."""
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def _compute(self, predictions: Sequence[float], references: Sequence[float]) -> dict[str, Any]:
        return {"score": float(self.score(np.asarray(predictions), np.asarray(references)))}


def numbers(values: Sequence[Any], side: str) -> list[float]:
    """The values as finite numbers. Raises DataError with the number of the first that is none."""
    found = []
    for place, value in enumerate(values, start=1):
        one = value[0] if isinstance(value, list | tuple | np.ndarray) and np.size(value) == 1 else value
        if isinstance(one, bool) or not isinstance(one, Real):
            raise DataError(f"{side} {place} is not a number: {value!r}.")
        if not math.isfinite(one):
            raise DataError(f"{side} {place} is {value!r}: only finite numbers can be compared.")
        found.append(float(one))
    return found


class Correlation(NumberMetric):
    """A correlation of predicted and right numbers.

    Predictions that are all the same tell nothing, and score 0. References that are all the same, or a single one,
    leave the correlation undefined, and are refused.
    """

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        if len(references) < 2 or (references == references[0]).all():
            raise DataError(
                f"A correlation needs references that differ, and here are {len(references)} of one value "
                f"({references[0]:g}). Use mse, or other data."
            )
        return 0.0 if (predictions == predictions[0]).all() else self.correlation(predictions, references)

    @abstractmethod
    def correlation(self, predictions: np.ndarray, references: np.ndarray) -> float:
        """The value where it is defined."""


class Pearson(Correlation):
    """Pearson's correlation, -1 to 1: how nearly the predictions are a straight line over the right numbers."""

    def correlation(self, predictions: np.ndarray, references: np.ndarray) -> float:
        return pearsonr(predictions, references).statistic


class Spearman(Correlation):
    """Spearman's correlation, -1 to 1: how nearly the predictions have the order of the right numbers."""

    def correlation(self, predictions: np.ndarray, references: np.ndarray) -> float:
        return spearmanr(predictions, references).statistic


class MeanSquaredError(NumberMetric):
    """Mean of the squared differences; 0 is perfect."""

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        return np.square(predictions - references).mean()


class MeanAbsoluteError(NumberMetric):
    """Mean of the differences, whatever their sign; 0 is perfect."""

    def score(self, predictions: np.ndarray, references: np.ndarray) -> float:
        return np.abs(predictions - references).mean()
