"""What a forecast has to be better than: the last value for ever, and a linear autoregression."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kit.tasks.forecasting.series import Array, Series, Windows

AT_ONCE = 1000
RIDGE = 1e-9
"""So little, relative to each input's own square, that it only matters where inputs repeat each other."""


def persistence(values: Array, horizon: int) -> Array:
    """(batch, horizon, value_size): the last value that is there of each past (batch, time, value_size)."""
    there = np.asarray(~np.isnan(values).any(-1))
    last = there.shape[1] - 1 - there[:, ::-1].argmax(1)
    return np.repeat(values[np.arange(len(values)), last][:, None], horizon, axis=1)


@dataclass(frozen=True)
class LinearAutoregression:
    """The next value as a weighted sum of the last ones, of the context of the same steps and of its own, by least
    squares."""

    order: int
    weights: Array  # (1 + order · (value_size + context_size) + context_size, value_size)

    @classmethod
    def fit(cls, series: Sequence[Series], order: int) -> "LinearAutoregression":
        """From all steps that have so many before them."""
        parts: list[tuple[Array, Array]] = []
        for one in series:
            steps = np.arange(order, len(one))
            places = steps[:, None] - np.arange(1, order + 1)  # (steps, order)
            read = cls._inputs(one.values[places], one.context[places], one.context[steps])
            wanted = one.values[steps]
            real = ~(np.isnan(read).any(1) | np.isnan(wanted).any(1))
            read, wanted = read[real], wanted[real]
            parts.append((read.T @ read, read.T @ wanted))
        inputs, products = (np.sum(side, axis=0) for side in zip(*parts, strict=True))
        inputs = inputs + RIDGE * np.diag(np.diag(inputs))
        return cls(order, np.linalg.lstsq(inputs, products, rcond=None)[0])

    @staticmethod
    def _inputs(values: Array, context: Array, known: Array) -> Array:
        """(batch, inputs) from what was: values and context (batch, order, …), newest first; and the context of now."""
        flat = [part.reshape(len(values), -1) for part in (values, context, known)]
        return np.concatenate([np.ones((len(values), 1)), *flat], axis=1)

    def predict(self, values: Array, context: Array, horizon: int) -> Array:
        """(batch, horizon, value_size) after a past of values (batch, history, …), each step from those before it, with
        the context (batch, history + horizon, …). A missing value of the past is the one before it."""
        history = values.shape[1]
        steps = list(np.moveaxis(filled(values), 1, 0))
        for step in range(history, history + horizon):
            before = np.arange(step - 1, step - self.order - 1, -1)
            read = self._inputs(np.stack([steps[i] for i in before], axis=1), context[:, before], context[:, step])
            steps.append(read @ self.weights)
        return np.stack(steps[history:], axis=1)


def filled(values: Array) -> Array:
    """Values (batch, time, …) in which each missing step is the last one before it, or the first one there is."""
    there = ~np.isnan(values).any(-1)
    places = np.where(there, np.arange(there.shape[1]), -1)
    places = np.maximum.accumulate(places, axis=1)
    first = there.argmax(1)[:, None]
    return values[np.arange(len(values))[:, None], np.where(places < 0, first, places)]


def best_linear(train: Sequence[Series], validation: Windows) -> LinearAutoregression:
    """The autoregression whose order, out of 1, 2, 4, … up to the history, has the least squared error over the whole
    horizon on validation."""
    orders = [2**power for power in range(validation.history.bit_length()) if 2**power <= validation.history]
    fitted = [LinearAutoregression.fit(train, order) for order in orders if any(len(one) > order for one in train)]
    return min(fitted, key=lambda model: squared_error(model, validation))


def squared_error(model: LinearAutoregression, windows: Windows) -> float:
    """Mean squared error of all values that are there; infinite where the rollout has run away."""
    total, count = 0.0, 0
    for start in range(0, len(windows), AT_ONCE):
        values, context = windows.arrays(np.arange(start, min(start + AT_ONCE, len(windows))))
        with np.errstate(over="ignore", invalid="ignore"):
            found = model.predict(values[:, : windows.history], context, windows.horizon)
            errors = np.square(found - values[:, windows.history :])
        real = ~np.isnan(values[:, windows.history :])
        total, count = total + float(np.nan_to_num(errors, nan=np.inf, posinf=np.inf)[real].sum()), count + real.sum()
    return total / max(1, count)
