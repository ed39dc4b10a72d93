"""Baselines that a forecast must beat: repeating the last value, and a linear autoregression."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kit.tasks.forecasting.examples import Windows
from kit.tasks.forecasting.series import Array, Series

BATCH_SIZE = 1000
"""Windows in a batch: bounds the memory of a rollout, and changes no figure."""

RIDGE = 1e-9
"""Relative to the squared norm of each input: just enough to make the system solvable where inputs are collinear."""


def persistence(values: Array, horizon: int) -> Array:
    """Repeat the last complete value of each past (batch, time, value_size); returns (batch, horizon, value_size)."""
    present = np.asarray(~np.isnan(values).any(-1))
    last = present.shape[1] - 1 - present[:, ::-1].argmax(1)
    return np.repeat(values[np.arange(len(values)), last][:, None], horizon, axis=1)


@dataclass(frozen=True)
class LinearAutoregression:
    """The next value as a linear function of the last `order` values, of their context and of its own context."""

    order: int
    weights: Array  # (1 + order · (value_size + context_size) + context_size, value_size)

    @classmethod
    def fit(cls, series: Sequence[Series], order: int) -> "LinearAutoregression":
        """Fit by least squares, with a tiny ridge, to the steps after `order` others in which no value is missing."""
        products: list[tuple[Array, Array]] = []
        for item in series:
            steps = np.arange(order, len(item))
            past = steps[:, None] - np.arange(1, order + 1)  # (steps, order), newest first
            inputs = cls._inputs(item.values[past], item.context[past], item.context[steps])
            targets = item.values[steps]
            complete = ~(np.isnan(inputs).any(1) | np.isnan(targets).any(1))
            inputs, targets = inputs[complete], targets[complete]
            products.append((inputs.T @ inputs, inputs.T @ targets))
        gram, moments = (np.sum(side, axis=0) for side in zip(*products, strict=True))
        gram = gram + RIDGE * np.diag(np.diag(gram))
        return cls(order, np.linalg.lstsq(gram, moments, rcond=None)[0])

    @staticmethod
    def _inputs(values: Array, context: Array, current: Array) -> Array:
        """Concatenate a constant, past values and context (batch, order, …), newest first, and the current context;
        returns (batch, inputs)."""
        flat = [array.reshape(len(values), -1) for array in (values, context, current)]
        return np.concatenate([np.ones((len(values), 1)), *flat], axis=1)

    def predict(self, values: Array, context: Array, horizon: int) -> Array:
        """Forecast step by step, each step from the predictions before it; returns (batch, horizon, value_size).

        `values` (batch, history, …) is the past, in which a missing value is replaced by the one before it, and
        `context` (batch, history + horizon, …) covers the horizon too.
        """
        history = values.shape[1]
        steps = list(np.moveaxis(forward_fill(values), 1, 0))
        for step in range(history, history + horizon):
            past = np.arange(step - 1, step - self.order - 1, -1)
            inputs = self._inputs(np.stack([steps[i] for i in past], axis=1), context[:, past], context[:, step])
            steps.append(inputs @ self.weights)
        return np.stack(steps[history:], axis=1)


def forward_fill(values: Array) -> Array:
    """Replace each missing step of values (batch, time, …) by the last complete step before it, or else by the first
    complete one."""
    present = ~np.isnan(values).any(-1)
    source = np.where(present, np.arange(present.shape[1]), -1)  # (batch, time)
    source = np.maximum.accumulate(source, axis=1)
    first = present.argmax(1)[:, None]
    return values[np.arange(len(values))[:, None], np.where(source < 0, first, source)]


def best_autoregression(train: Sequence[Series], validation: Windows) -> LinearAutoregression:
    """The autoregression whose order, out of 1, 2, 4, … up to the history, has the least squared error over the whole
    horizon on validation."""
    orders = [2**power for power in range(validation.history.bit_length()) if 2**power <= validation.history]
    models = [LinearAutoregression.fit(train, order) for order in orders if any(len(item) > order for item in train)]
    return min(models, key=lambda model: squared_error(model, validation))


def squared_error(model: LinearAutoregression, windows: Windows) -> float:
    """Mean squared error over all values that are not missing; infinite if the rollout diverges."""
    total, count = 0.0, 0
    for start in range(0, len(windows), BATCH_SIZE):
        values, context = windows.arrays(np.arange(start, min(start + BATCH_SIZE, len(windows))))
        past, future = values[:, : windows.history], values[:, windows.history :]
        with np.errstate(over="ignore", invalid="ignore"):
            errors = np.square(model.predict(past, context, windows.horizon) - future)
        present = ~np.isnan(future)
        total += float(np.nan_to_num(errors, nan=np.inf, posinf=np.inf)[present].sum())
        count += present.sum()
    return total / max(1, count)
