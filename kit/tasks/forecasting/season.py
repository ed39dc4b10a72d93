"""The season of time series: finding it, repeating it as a forecast, and a stride that meets all its phases."""

import math
from collections.abc import Sequence

import numpy as np

from kit.tasks.forecasting.series import Array, Series

IMPROVEMENT = 0.8
"""A season must reduce the squared error of repeating the last value to this share: the season of white noise, which
has none, seems to reduce it by up to a tenth."""
AS_GOOD = 1.25
"""A part of a season is preferred if its error is at most this multiple: after 24 steps, 48 repeat as well."""


def find_season(series: Sequence[Series], longest: int, horizon: int) -> int | None:
    """Find the season, of 2 to `longest` steps, whose repetition has the least squared error over the horizon. None
    if no season is clearly better than the last value."""
    longest = max(1, min(longest, max(map(len, series)) - 1))  # a season beyond the data would take time alone
    differences = squared_differences(series, longest + horizon)

    def error(season: int) -> float:
        """Squared error of repeating the last season: step h repeats the step h mod season, whole seasons earlier."""
        return float(np.mean([differences[season * math.ceil(h / season)] for h in range(1, horizon + 1)]))

    errors = {season: error(season) for season in range(1, longest + 1)}
    candidates = [season for season in errors if season > 1 and errors[season] < IMPROVEMENT * errors[1]]
    if not candidates:
        return None
    best = min(candidates, key=lambda season: errors[season])
    # the errors of seasons that repeat exactly are rounding errors
    limit = AS_GOOD * errors[best] + 1e-9 * errors[1]
    return next(season for season in candidates if best % season == 0 and errors[season] <= limit)


def squared_differences(series: Sequence[Series], longest: int) -> Array:
    """The mean squared difference between values that are 0, 1, … `longest` steps apart, (longest + 1,), relative to
    the variance of each kind of value. Infinite where no two values are so far apart."""
    values = np.concatenate([item.values for item in series])
    variance = np.nanvar(values, axis=0)
    scale = np.sqrt(np.where(variance > 0, variance, 1))
    totals, counts = np.zeros(longest + 1), np.zeros(longest + 1)
    for item in series:
        scaled = item.values / scale
        for lag in range(1, min(longest, len(item) - 1) + 1):
            squares = np.square(scaled[lag:] - scaled[:-lag])
            present = ~np.isnan(squares)
            totals[lag] += squares[present].sum()
            counts[lag] += present.sum()
    return np.where(counts > 0, totals / np.maximum(counts, 1), np.inf)


def seasonal_naive(values: Array, horizon: int, season: int) -> Array:
    """Repeat the last season of each past (batch, time, value_size); returns (batch, horizon, value_size). A missing
    value is replaced by that of a season before; NaN if all are missing."""
    history = values.shape[1]
    ahead = np.arange(horizon)
    forecast = np.full((len(values), horizon, values.shape[2]), np.nan)
    for seasons in range(1, history // season + 1):
        earlier = values[:, history - season * seasons + ahead % season]
        complete = ~np.isnan(earlier).any(-1, keepdims=True)
        forecast = np.where(np.isnan(forecast).any(-1, keepdims=True) & complete, earlier, forecast)
    return forecast


def stride_across(season: int | None, horizon: int) -> int:
    """The largest number of steps, up to the horizon, that has no common divisor with the season. Windows so far
    apart start at every phase of the season, and skip no step."""
    return next(stride for stride in range(horizon, 0, -1) if math.gcd(stride, season or 1) == 1)
