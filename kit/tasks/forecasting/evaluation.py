"""The figures of forecasts: errors beside those of baselines, by step and by value, and the coverage of intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm
from torch import Tensor

from kit.evaluation.evaluator import Evaluator
from kit.tasks.forecasting.baselines import LinearAutoregression, best_autoregression, persistence
from kit.tasks.forecasting.examples import Windows
from kit.tasks.forecasting.objective import ForecastObjective, past_inputs
from kit.tasks.forecasting.regression import HorizonRegression, best_regression
from kit.tasks.forecasting.season import seasonal_naive
from kit.tasks.forecasting.series import Array, Series
from kit.training.objective import Batch

ERRORS: dict[str, Callable[[Array], Array]] = {"mse": np.square, "mae": np.abs}
INTERVALS = (50, 90)
"""Central intervals of a predicted normal distribution, in percent."""


@dataclass(frozen=True)
class Baselines:
    """Forecasts that a model must beat, fitted on the training series."""

    season: int | None
    """None if there is none within the steps that a forecast reads."""
    autoregression: LinearAutoregression
    regression: HorizonRegression

    @classmethod
    def fit(cls, train: Sequence[Series], validation: Windows, season: int | None) -> "Baselines":
        """Fit the baselines on `train`, and select their settings on `validation`. A season that is longer than the
        history is not used."""
        within = None if season is None or season > validation.history else season
        return cls(within, best_autoregression(train, validation), best_regression(train, validation))

    def forecasts(self, past: Array, context: Array, horizon: int) -> dict[str, Array]:
        """The forecast (batch, horizon, value_size) of each baseline, by the prefix of its figures."""
        last = persistence(past, horizon)
        forecasts = {"persistence_": last}
        if self.season is not None:
            repeated = seasonal_naive(past, horizon, self.season)
            forecasts["seasonal_"] = np.where(np.isnan(repeated), last, repeated)
        return forecasts | {
            "linear_": self.autoregression.predict(past, context, horizon),
            "regression_": self.regression.predict(past, context, horizon),
        }

    def settings(self) -> dict[str, int]:
        """The season, and the selected order of each regression."""
        season = {} if self.season is None else {"season": self.season}
        return {**season, "linear_order": self.autoregression.order, "regression_order": self.regression.order}


def roll_out(objective: ForecastObjective, windows: Windows, evaluator: Evaluator) -> tuple[float, Array, Array | None]:
    """Run the model over windows. Returns the mean loss of a value with teacher forcing, and the predictions and
    standard deviations (windows, horizon, value_size) of a rollout, in which the model reads its own predictions. A
    model with a squared loss has no standard deviations."""
    objective.eval()
    model: Any = objective.model

    def compute(batch: Batch) -> tuple[list[Array], list[Tensor | float]]:
        output = model.predict(**past_inputs(batch), horizon=windows.horizon)
        parts = [part for part in (output.predictions, output.scales) if part is not None]
        # (batch, 1 or 2, horizon, …)
        numbers = np.stack([part.cpu().numpy() for part in parts], axis=1, dtype=np.float64)
        return list(numbers), [objective.summed_loss(batch), *objective.normalizers(batch)]

    outputs, (loss, count) = evaluator.outputs_and_sums(windows.lengths, windows.batch, compute)
    predictions, *scales = np.moveaxis(np.stack(outputs), 1, 0)
    return loss / max(count, 1), predictions, scales[0] if scales else None


def mean_errors(predictions: Array, future: Array, metrics: Sequence[str]) -> dict[str, float]:
    """The mean of each error over all values that are not missing."""
    return {metric: float(np.nanmean(ERRORS[metric](predictions - future))) for metric in metrics}


def compared_errors(
    predictions: Array, windows: Windows, metrics: Sequence[str], names: Sequence[str], baselines: Baselines
) -> dict[str, Any]:
    """The errors of the model and of the baselines on the same windows, also by step of the horizon, and those of
    the model by value."""
    values, context = windows.arrays(np.arange(len(windows)))
    past, future = values[:, : windows.history], values[:, windows.history :]
    forecasts = {"": predictions, **baselines.forecasts(past, context, windows.horizon)}
    errors = {  # (windows, horizon, value_size) each
        f"{prefix}{metric}": ERRORS[metric](forecast - future)
        for prefix, forecast in forecasts.items()
        for metric in metrics
    }
    figures: dict[str, Any] = {name: float(np.nanmean(error)) for name, error in errors.items()}
    figures |= baselines.settings()
    figures["by_horizon"] = {name: rounded_means(error, (0, 2)) for name, error in errors.items()}
    figures["by_value"] = {
        name: {metric: float(np.nanmean(errors[metric][..., index])) for metric in metrics}
        for index, name in enumerate(names)
    }
    return figures


def coverage(predictions: Array, scales: Array, future: Array) -> dict[str, Array]:
    """Whether each value lies in the central intervals of the predicted normal distributions, (windows, horizon,
    value_size): 1 or 0, and NaN for a missing value. For a calibrated model, 50 % of the values lie in the first
    interval."""
    distance = np.abs(predictions - future) / scales
    return {
        f"coverage_{percent}": np.where(np.isnan(distance), np.nan, distance <= norm.ppf(0.5 + percent / 200))
        for percent in INTERVALS
    }


def rounded_means(numbers: Array, axes: tuple[int, ...]) -> list[float]:
    """The mean of the numbers that are not missing; zero if all are."""
    present = ~np.isnan(numbers)
    means = np.nansum(numbers, axis=axes) / np.maximum(present.sum(axis=axes), 1)
    return [round_to_single(mean) for mean in means]


def prediction_rows(windows: Windows, future: Array, predictions: Array, scales: Array | None) -> list[dict[str, Any]]:
    """A row for each window: its series and first step, the dates, true values and forecasts of its horizon."""
    rows = []
    for index, (number, start) in enumerate(windows.positions.tolist()):
        dates = windows.dates(index)
        row: dict[str, Any] = {"series": windows.series[number].name, "start": start}
        row |= {} if dates is None else {"dates": dates}
        row |= {"target": as_lists(future[index]), "prediction": as_lists(predictions[index])}
        rows.append(row if scales is None else row | {"scale": as_lists(scales[index])})
    return rows


def as_lists(steps: Array) -> list[list[float | None]]:
    """Convert values (steps, value_size) to lists for JSON; a missing value is None."""
    return [[None if np.isnan(value) else round_to_single(value) for value in step] for step in steps]


def round_to_single(value: float) -> float:
    """Round a value to as many digits as single precision has."""
    return float(f"{value:.7g}")
