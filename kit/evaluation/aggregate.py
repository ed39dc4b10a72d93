"""Figures over several seeds: what one run cannot tell."""

import math
import statistics
from collections.abc import Sequence


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean of a figure over runs that differ by their seed, and its standard error: nan of a single run."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error


def with_error(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard error, as a table shows it."""
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f}" if math.isnan(error) else f"{mean:.{digits}f} ± {error:.{digits}f}"
