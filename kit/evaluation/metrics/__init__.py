"""Metrics on text: the table of their names, and one call that computes several of them, offline.

Each metric is an `evaluate.Metric` in a file of its own, imported on first use: importing `evaluate` takes
seconds, and a recipe is checked against this table long before anything is measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.errors import KitError, did_you_mean

if TYPE_CHECKING:
    from kit.evaluation.metrics.text_metric import References, TextMetric


@dataclass(frozen=True)
class MetricEntry:
    """What is known about a metric without importing it."""

    title: str
    """The name as papers write it."""
    class_name: str
    """The `evaluate.Metric` class in the file of the metric's name."""
    greater_is_better: bool = True


METRICS = {
    "bleu": MetricEntry("BLEU", "Bleu"),
    "chrf": MetricEntry("chrF", "Chrf"),
    "ter": MetricEntry("TER", "Ter", greater_is_better=False),
    "exact_match": MetricEntry("Exact match", "ExactMatch"),
    "token_accuracy": MetricEntry("Token accuracy", "TokenAccuracy"),
}
"""Metrics that compare texts: BLEU, chrF and TER go from 0 to 100 (TER beyond), the other two from 0 to 1."""

MODEL_METRICS = ("loss", "perplexity")
"""Figures that the model itself gives: always there, never computed from texts, lower is better."""


def greater_is_better(name: str) -> bool:
    """Whether a higher value of the metric means a better model."""
    if name in MODEL_METRICS:
        return False
    return _entry(name, (*MODEL_METRICS, *METRICS)).greater_is_better


def load_metric(name: str) -> TextMetric:
    """A fresh `evaluate.Metric` of this name."""
    entry = _entry(name, METRICS)
    return getattr(importlib.import_module(f"{__name__}.{name}"), entry.class_name)()


def compute_metrics(names: Sequence[str], predictions: Sequence[str], references: References) -> dict[str, float | str]:
    """The value of each metric under its name, and sacrebleu's signature as in `bleu_signature`.

    `references` holds one text, or a list of equally right texts, for each prediction.
    """
    for name in names:
        _entry(name, METRICS)
    values: dict[str, float | str] = {}
    for name in names:
        result = load_metric(name).compute(predictions=predictions, references=references)
        values[name] = result["score"]
        if "signature" in result:
            values[f"{name}_signature"] = result["signature"]
    return values


def _entry(name: str, valid: Sequence[str] | dict[str, MetricEntry]) -> MetricEntry:
    if name not in METRICS:
        raise KitError(f'Unknown metric "{name}". Choose from: {", ".join(valid)}.{did_you_mean(name, valid)}')
    return METRICS[name]
