"""Metrics on numbers, for regression: correlations by scipy, and mean errors.

A prediction is a finite number, or a list of one, as a model with one output gives it.
"""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr

from kit.errors import DataError
from kit.evaluation.metrics.base import check_pairs


def pearson(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    """Pearson correlation, -1 to 1: how close predictions are to a linear function of the references.

    Constant predictions score 0. Raises DataError for constant references, whose correlation is undefined.
    """
    return _correlation(pearsonr, *_arrays(predictions, references))


def spearman(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    """Spearman rank correlation, -1 to 1: how well predictions preserve the order of the references.

    Constant predictions score 0. Raises DataError for constant references, whose correlation is undefined.
    """
    return _correlation(spearmanr, *_arrays(predictions, references))


def mse(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    """Mean squared error; 0 is perfect."""
    predicted, expected = _arrays(predictions, references)
    return float(np.square(predicted - expected).mean())


def mae(predictions: Sequence[Any], references: Sequence[Any]) -> float:
    """Mean absolute error; 0 is perfect."""
    predicted, expected = _arrays(predictions, references)
    return float(np.abs(predicted - expected).mean())


def finite_numbers(values: Sequence[Any], side: str) -> list[float]:
    """The values as floats. Raises DataError, with the index, for the first that is not a finite number."""
    numbers = []
    for index, value in enumerate(values, start=1):
        number = value[0] if isinstance(value, list | tuple | np.ndarray) and np.size(value) == 1 else value
        if isinstance(number, bool) or not isinstance(number, Real):
            raise DataError(f"{side} {index} is not a number: {value!r}.")
        if not math.isfinite(number):
            raise DataError(f"{side} {index} is {value!r}: only finite numbers can be compared.")
        numbers.append(float(number))
    return numbers


def _arrays(predictions: Sequence[Any], references: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    check_pairs(predictions, references)
    return np.array(finite_numbers(predictions, "Prediction")), np.array(finite_numbers(references, "Reference"))


def _correlation(correlate: Callable[..., Any], predictions: np.ndarray, references: np.ndarray) -> float:
    if len(references) < 2 or (references == references[0]).all():
        raise DataError(
            f"A correlation needs references that differ; these {len(references)} have the same value "
            f"({references[0]:g}). Use mse, or other data."
        )
    return 0.0 if (predictions == predictions[0]).all() else float(correlate(predictions, references).statistic)
