"""Metrics: the table of their names, and one call that computes several of them, offline.

Each metric is an `evaluate.Metric`, imported on first use: importing `evaluate` takes seconds, and a recipe is
checked against this table long before anything is measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kit.errors import KitError, did_you_mean

Kind = Literal["text", "variety", "labels", "scores", "numbers", "tags", "answers"]
"""What a metric compares: texts; predicted texts with each other alone (variety); labels of examples, one or several
each; the scores that labels got, with the right labels; numbers; the tags of words; answers to questions."""


@dataclass(frozen=True)
class MetricEntry:
    """What is known about a metric without importing it."""

    title: str
    """The name as papers write it."""
    file: str
    """The file of this folder that holds it."""
    class_name: str
    """The `evaluate.Metric` class in that file."""
    kind: Kind = "text"
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
    "cider": MetricEntry("CIDEr", "cider", "Cider", library="kit"),
    "exact_match": MetricEntry("Exact match", "exact_match", "ExactMatch"),
    "token_accuracy": MetricEntry("Token accuracy", "token_accuracy", "TokenAccuracy"),
    "distinct_1": MetricEntry("Distinct-1", "distinct", "Distinct1", "variety"),
    "distinct_2": MetricEntry("Distinct-2", "distinct", "Distinct2", "variety"),
    "accuracy": MetricEntry("Accuracy", "accuracy", "Accuracy", "labels"),
    **{
        f"{measure.lower()}{ending}": MetricEntry(
            f"{measure}{told}", "f_measure", f"{measure}{ending[1:].capitalize()}", "labels", library="scikit-learn"
        )
        for measure in ("Precision", "Recall", "F1")
        for ending, told in (("", ""), ("_macro", " (macro)"), ("_micro", " (micro)"), ("_weighted", " (weighted)"))
    },
    "matthews": MetricEntry("Matthews correlation", "matthews", "Matthews", "labels", library="scikit-learn"),
    "roc_auc": MetricEntry("ROC AUC", "roc_auc", "RocAuc", "scores", library="scikit-learn"),
    "pearson": MetricEntry("Pearson correlation", "number_metric", "Pearson", "numbers", library="scipy"),
    "spearman": MetricEntry("Spearman correlation", "number_metric", "Spearman", "numbers", library="scipy"),
    "mse": MetricEntry("Mean squared error", "number_metric", "MeanSquaredError", "numbers", greater_is_better=False),
    "mae": MetricEntry("Mean absolute error", "number_metric", "MeanAbsoluteError", "numbers", greater_is_better=False),
    "tag_accuracy": MetricEntry("Tag accuracy", "tag_metric", "TagAccuracy", "tags"),
    "entity_precision": MetricEntry("Entity precision", "tag_metric", "EntityPrecision", "tags", library="seqeval"),
    "entity_recall": MetricEntry("Entity recall", "tag_metric", "EntityRecall", "tags", library="seqeval"),
    "entity_f1": MetricEntry("Entity F1", "tag_metric", "EntityF1", "tags", library="seqeval"),
    "squad_exact_match": MetricEntry("SQuAD exact match", "squad", "SquadExactMatch", "answers"),
    "squad_f1": MetricEntry("SQuAD F1", "squad", "SquadF1", "answers"),
}
"""Metrics by name. Texts and answers are scored from 0 to 100 (TER beyond), but exact match and token accuracy from 0
to 1 as all others; correlations go down to -1, and errors of numbers are what they are."""

MODEL_METRICS = ("loss", "perplexity", "bits_per_byte", "masked_loss", "pair_loss", "unigram_loss")
"""Figures that the model itself gives, lower is better; they are never computed from texts."""

ACCURACIES = ("masked_accuracy", "pair_accuracy", "answer_accuracy")
"""Figures of masked language models and of dialogues, higher is better."""


def greater_is_better(name: str) -> bool:
    """Whether a higher value of the metric means a better model."""
    if name in MODEL_METRICS or name in ACCURACIES:
        return name in ACCURACIES
    return _entry(name, (*MODEL_METRICS, *METRICS)).greater_is_better


def metrics_of(kind: Kind) -> tuple[str, ...]:
    """The names of all metrics that compare predictions of this kind."""
    return tuple(name for name, entry in METRICS.items() if entry.kind == kind)


def by_kind(names: Sequence[str]) -> dict[Kind, list[str]]:
    """The names by what they compare; kinds that none of them has are left out."""
    found: dict[Kind, list[str]] = {kind: [] for kind in get_args(Kind)}
    for name in names:
        found[_entry(name, METRICS).kind].append(name)
    return {kind: chosen for kind, chosen in found.items() if chosen}


def load_metric(name: str) -> Any:
    """A fresh `evaluate.Metric` of this name; one that compares texts is a `TextMetric`."""
    entry = _entry(name, METRICS)
    return getattr(importlib.import_module(f"{__name__}.{entry.file}"), entry.class_name)()


def compute_metrics(
    names: Sequence[str], predictions: Sequence[Any], references: Sequence[Any], **options: Any
) -> dict[str, float | str]:
    """The value of each metric under its name, and what else it tells: `bleu_signature`, `squad_f1_no_answer`.

    All metrics must compare the same kind of predictions; what those are, and which options there are, its base class
    says. For texts, `references` holds one text, or a list of equally right texts, for each prediction.
    """
    kinds = by_kind(names)
    if len(kinds) > 1:
        told = "; ".join(f"{', '.join(chosen)}: {kind}" for kind, chosen in kinds.items())
        raise KitError(f"These metrics do not compare the same predictions ({told}). Compute them one kind at a time.")
    values: dict[str, float | str] = {}
    for name in names:
        result = load_metric(name).compute(predictions=predictions, references=references, **options)
        values[name] = result.pop("score")
        values |= {f"{name}_{what}": value for what, value in result.items() if isinstance(value, int | float | str)}
    return values


def _entry(name: str, valid: Sequence[str] | dict[str, MetricEntry]) -> MetricEntry:
    if name not in METRICS:
        raise KitError(f'Unknown metric "{name}". Choose from: {", ".join(valid)}.{did_you_mean(name, valid)}')
    return METRICS[name]
