"""Figures over several seeds: how much of a difference is due to the seed."""

import math
import statistics
from collections.abc import Sequence


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean of a figure over runs that differ in their seed, and its standard error; nan for a single run."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def with_error(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard error, for a table."""
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f}" if math.isnan(error) else f"{mean:.{digits}f} ± {error:.{digits}f}"
