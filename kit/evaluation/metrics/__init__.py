"""Metrics on text: the table of their names, and one call that computes several of them, offline.

Each metric is an `evaluate.Metric`, imported on first use: importing `evaluate` takes seconds, and a recipe is
checked against this table long before anything is measured.
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
    file: str
    """The file of this folder that holds it."""
    class_name: str
    """The `evaluate.Metric` class in that file."""
    greater_is_better: bool = True
    library: str | None = None
    """The package that computes it, and signs it."""


METRICS = {
    "bleu": MetricEntry("BLEU", "bleu", "Bleu", library="sacrebleu"),
    "chrf": MetricEntry("chrF", "chrf", "Chrf", library="sacrebleu"),
    "ter": MetricEntry("TER", "ter", "Ter", greater_is_better=False, library="sacrebleu"),
    "rouge1": MetricEntry("ROUGE-1", "rouge", "Rouge1", library="rouge-score"),
    "rouge2": MetricEntry("ROUGE-2", "rouge", "Rouge2", library="rouge-score"),
    "rougeL": MetricEntry("ROUGE-L", "rouge", "RougeL", library="rouge-score"),
    "rougeLsum": MetricEntry("ROUGE-Lsum", "rouge", "RougeLsum", library="rouge-score"),
    "exact_match": MetricEntry("Exact match", "exact_match", "ExactMatch"),
    "token_accuracy": MetricEntry("Token accuracy", "token_accuracy", "TokenAccuracy"),
}
"""Metrics that compare texts: exact match and token accuracy go from 0 to 1, the others from 0 to 100, TER beyond."""

MODEL_METRICS = ("loss", "perplexity", "bits_per_byte", "masked_loss", "pair_loss", "unigram_loss")
"""Figures that the model itself gives, lower is better; they are never computed from texts."""

ACCURACIES = ("masked_accuracy", "pair_accuracy")
"""Figures of masked language models, higher is better."""


def greater_is_better(name: str) -> bool:
    """Whether a higher value of the metric means a better model."""
    if name in MODEL_METRICS or name in ACCURACIES:
        return name in ACCURACIES
    return _entry(name, (*MODEL_METRICS, *METRICS)).greater_is_better


def load_metric(name: str) -> TextMetric:
    """A fresh `evaluate.Metric` of this name."""
    entry = _entry(name, METRICS)
    return getattr(importlib.import_module(f"{__name__}.{entry.file}"), entry.class_name)()


def compute_metrics(names: Sequence[str], predictions: Sequence[str], references: References) -> dict[str, float | str]:
    """The value of each metric under its name, and the signature of its library as in `bleu_signature`.

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
