"""A linear regression for each step of the horizon, of past values and known context: what simple models can do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kit.tasks.forecasting.baselines import BATCH_SIZE, forward_fill
from kit.tasks.forecasting.examples import Windows, windows_of
from kit.tasks.forecasting.series import Array, Series

MAX_WINDOWS = 20_000
"""Training windows that are fitted, evenly spaced: this bounds the time, and more windows change the weights little."""

RIDGES = (1e-6, 1e-3, 1e-2, 1e-1)
"""Candidates for the ridge, relative to the squared norm of each input; the validation split selects one."""


@dataclass(frozen=True)
class HorizonRegression:
    """Each step of the horizon as a linear function of the last `order` values, of their context and of that of the
    whole horizon. What is predicted is the change from the last value: levels that training has not seen cost nothing.
    """

    order: int
    weights: Array  # (1 + horizon · context_size + order · (value_size + context_size), horizon · value_size)

    def predict(self, values: Array, context: Array, horizon: int) -> Array:
        """Forecast all steps at once; returns (batch, horizon, value_size). `values` (batch, history, …) is the
        past, in which a missing value is replaced by the one before it, and `context` (batch, history + horizon, …)
        covers the horizon too."""
        filled = forward_fill(values)
        changes = _inputs(filled, context)[:, : len(self.weights)] @ self.weights
        return changes.reshape(len(values), horizon, -1) + filled[:, -1:]


def best_regression(train: Sequence[Series], validation: Windows) -> HorizonRegression:
    """Fit a regression for each order, out of 1, 2, 4, … and the history, and each ridge; returns the one with the
    least squared error on validation."""
    history, horizon = validation.history, validation.horizon
    windows = windows_of(list(train), history, horizon, 1)
    chosen = np.unique(np.linspace(0, len(windows) - 1, min(len(windows), MAX_WINDOWS)).astype(int))
    mean, gram, moments = _normal_equations(windows, chosen)
    step = windows.value_size + windows.context_size
    orders = sorted({min(2**power, history) for power in range(history.bit_length() + 1)})
    models = [
        HorizonRegression(order, _solve(mean, gram, moments, 1 + horizon * windows.context_size + order * step, ridge))
        for order in orders
        for ridge in RIDGES
    ]
    errors = np.zeros(len(models))
    for values, context, future in _portions(validation, np.arange(len(validation))):
        for number, model in enumerate(models):
            errors[number] += np.nansum(np.square(model.predict(values, context, horizon) - future))
    return models[int(errors.argmin())]


def _portions(windows: Windows, indices: np.ndarray) -> Iterator[tuple[Array, Array, Array]]:
    """Iterate over past values, context and future values of these windows, in portions."""
    for start in range(0, len(indices), BATCH_SIZE):
        values, context = windows.arrays(indices[start : start + BATCH_SIZE])
        yield values[:, : windows.history], context, values[:, windows.history :]


def _inputs(filled: Array, context: Array) -> Array:
    """Concatenate a constant, the context of the horizon, and values and context of the past, newest first; returns
    (batch, inputs). A regression of a smaller order takes the first columns."""
    history = filled.shape[1]
    past = np.concatenate([filled, context[:, :history]], axis=-1)[:, ::-1]
    parts = [np.ones((len(filled), 1)), context[:, history:].reshape(len(filled), -1), past.reshape(len(filled), -1)]
    return np.concatenate(parts, axis=1)


def _examples(windows: Windows, indices: np.ndarray) -> Iterator[tuple[Array, Array]]:
    """Iterate over inputs and targets, in portions, of the windows without a missing value in the horizon."""
    for values, context, future in _portions(windows, indices):
        complete = ~np.isnan(future).any((1, 2))
        filled = forward_fill(values[complete])
        changes = future[complete] - filled[:, -1:]
        yield _inputs(filled, context[complete]), changes.reshape(len(filled), -1)


def _normal_equations(windows: Windows, indices: np.ndarray) -> tuple[Array, Array, Array]:
    """The mean of the inputs, zero for the constant, and the products of the centered inputs with themselves and
    with the targets."""
    sums = [(inputs.sum(0), len(inputs)) for inputs, _ in _examples(windows, indices)]
    total, count = (np.sum(side, axis=0) for side in zip(*sums, strict=True))
    mean = total / max(1, count)
    mean[0] = 0
    products = [
        ((inputs - mean).T @ (inputs - mean), (inputs - mean).T @ targets)
        for inputs, targets in _examples(windows, indices)
    ]
    gram, moments = (np.sum(side, axis=0) for side in zip(*products, strict=True))
    return mean, gram, moments


def _solve(mean: Array, gram: Array, moments: Array, size: int, ridge: float) -> Array:
    """Solve for the weights of the first `size` inputs. The ridge does not apply to the constant."""
    squares = np.diag(gram)[:size]
    penalty = np.where(squares > 0, ridge * squares, 1)
    penalty[0] = 0 if squares[0] > 0 else 1
    weights = np.linalg.solve(gram[:size, :size] + np.diag(penalty), moments[:size])
    weights[0] -= mean[:size] @ weights
    return weights
