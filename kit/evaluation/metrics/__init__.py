"""Metrics as plain functions, found by name in one table. A metric of the user joins them by `kit.register_metric`."""

from kit.evaluation.metrics.registry import (
    ACCURACIES,
    METRICS,
    MODEL_METRICS,
    by_kind,
    compute_metrics,
    find_metric,
    greater_is_better,
    metrics_of,
    registered_metrics,
)

__all__ = [
    "ACCURACIES",
    "METRICS",
    "MODEL_METRICS",
    "by_kind",
    "compute_metrics",
    "find_metric",
    "greater_is_better",
    "metrics_of",
    "registered_metrics",
]
