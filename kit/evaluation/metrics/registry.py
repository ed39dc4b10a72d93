"""The table of metrics: what each compares, which direction is better, and one call that computes several, offline.

Functions are imported on first use: sacrebleu, scikit-learn and scipy take seconds to import, and a recipe is checked
against this table long before anything is measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from kit.errors import KitError, did_you_mean
from kit.evaluation.metrics.base import MetricFunction, Statistics

Kind = Literal["text", "variety", "labels", "scores", "numbers", "tags", "answers"]
"""What a metric compares: texts; predicted texts among each other (variety); the labels of examples, one or several
each; the scores of labels with the right labels; numbers; the tags of words; answers to questions."""


@dataclass(frozen=True)
class Metric:
    """A metric as the table lists it; its function is imported when it is computed."""

    title: str
    """The name as papers write it."""
    source: str | MetricFunction
    """A function of this package as "module.name", or the function itself."""
    kind: Kind = "text"
    greater_is_better: bool = True
    library: str | None = None
    """The package that computes the metric; its version is in the signature."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the function that distinguish this metric from others of the same function."""

    @property
    def registered(self) -> bool:
        """Whether `kit.register_metric` added the metric."""
        return not isinstance(self.source, str)

    @property
    def function(self) -> MetricFunction:
        """The function behind the metric, called as `function(predictions, references, **options)`."""
        if not isinstance(self.source, str):
            return self.source
        module, name = self.source.split(".")
        function = getattr(importlib.import_module(f"kit.evaluation.metrics.{module}"), name)
        return partial(function, **self.settings) if self.settings else function

    def compute(self, predictions: Sequence[Any], references: Sequence[Any], **options: Any) -> dict[str, Any]:
        """The value as "score", with the further figures of the metric, such as its signature."""
        result = self.function(predictions, references, **options)
        if isinstance(result, Statistics):
            signature = {} if result.signature is None else {"signature": result.signature}
            return {"score": result.score(), **signature}
        return dict(result) if isinstance(result, Mapping) else {"score": result}


METRICS = {
    "bleu": Metric("BLEU", "text.bleu", library="sacrebleu"),
    "chrf": Metric("chrF", "text.chrf", library="sacrebleu"),
    "chrfpp": Metric("chrF++", "text.chrf", library="sacrebleu", settings={"word_order": 2}),
    "ter": Metric("TER", "text.ter", library="sacrebleu", greater_is_better=False),
    **{
        variant: Metric(title, "rouge.rouge", library="rouge-score", settings={"variant": variant})
        for variant, title in (
            ("rouge1", "ROUGE-1"), ("rouge2", "ROUGE-2"), ("rougeL", "ROUGE-L"), ("rougeLsum", "ROUGE-Lsum"),
        )
    },
    "cider": Metric("CIDEr", "cider.cider", library="kit"),
    "exact_match": Metric("Exact match", "text.exact_match"),
    "token_accuracy": Metric("Token accuracy", "text.token_accuracy"),
    "distinct_1": Metric("Distinct-1", "text.distinct", "variety", settings={"n": 1}),
    "distinct_2": Metric("Distinct-2", "text.distinct", "variety", settings={"n": 2}),
    "accuracy": Metric("Accuracy", "labels.accuracy", "labels"),
    **{
        measure if average == "binary" else f"{measure}_{average}": Metric(
            title if average == "binary" else f"{title} ({average})",
            "labels.f_measure",
            "labels",
            library="scikit-learn",
            settings={"measure": measure, "average": average},
        )
        for measure, title in (("precision", "Precision"), ("recall", "Recall"), ("f1", "F1"))
        for average in ("binary", "macro", "micro", "weighted")
    },
    "matthews": Metric("Matthews correlation", "labels.matthews", "labels", library="scikit-learn"),
    "roc_auc": Metric("ROC AUC", "labels.roc_auc", "scores", library="scikit-learn"),
    "pearson": Metric("Pearson correlation", "numbers.pearson", "numbers", library="scipy"),
    "spearman": Metric("Spearman correlation", "numbers.spearman", "numbers", library="scipy"),
    "mse": Metric("Mean squared error", "numbers.mse", "numbers", greater_is_better=False),
    "mae": Metric("Mean absolute error", "numbers.mae", "numbers", greater_is_better=False),
    "tag_accuracy": Metric("Tag accuracy", "tags.tag_accuracy", "tags"),
    **{
        f"entity_{measure}": Metric(
            f"Entity {title}", "tags.entity_measure", "tags", library="seqeval", settings={"measure": measure}
        )
        for measure, title in (("precision", "precision"), ("recall", "recall"), ("f1", "F1"))
    },
    "squad_exact_match": Metric("SQuAD exact match", "answers.squad_exact_match", "answers"),
    "squad_f1": Metric("SQuAD F1", "answers.squad_f1", "answers"),
}  # fmt: skip
"""Metrics by name. Texts and answers are scored from 0 to 100 (TER can exceed it), exact match, token accuracy and all
others from 0 to 1; correlations go down to -1, and errors of numbers are in the units of the numbers."""

MODEL_METRICS = (
    "loss", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "masked_loss", "pair_loss",
    "unigram_loss",
)  # fmt: skip
"""Figures of the model itself, lower is better; they are never computed from predictions."""

ACCURACIES = ("masked_accuracy", "pair_accuracy", "answer_accuracy")
"""Figures of masked language models and of dialogue models, higher is better."""


def find_metric(name: str) -> Metric:
    """The entry of a metric. Raises KitError, with the nearest name, for an unknown one."""
    return _entry(name, METRICS)


def greater_is_better(name: str) -> bool:
    """Whether a higher value of the metric means a better model."""
    if name in MODEL_METRICS or name in ACCURACIES:
        return name in ACCURACIES
    return _entry(name, (*MODEL_METRICS, *METRICS)).greater_is_better


def metrics_of(kind: Kind) -> tuple[str, ...]:
    """The names of all metrics of a kind."""
    return tuple(name for name, metric in METRICS.items() if metric.kind == kind)


def registered_metrics(*kinds: Kind) -> tuple[str, ...]:
    """The names that `kit.register_metric` added to these kinds."""
    return tuple(name for name, metric in METRICS.items() if metric.registered and metric.kind in kinds)


def by_kind(names: Sequence[str]) -> dict[Kind, list[str]]:
    """The names grouped by what they compare, without empty groups."""
    groups: dict[Kind, list[str]] = {kind: [] for kind in get_args(Kind)}
    for name in names:
        groups[find_metric(name).kind].append(name)
    return {kind: group for kind, group in groups.items() if group}


def compute_metrics(
    names: Sequence[str],
    predictions: Sequence[Any],
    references: Sequence[Any],
    by_metric: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> dict[str, float | str]:
    """The value of each metric under its name, and its further figures: `bleu_signature`, `squad_f1_no_answer`.

    `options` are those of all metrics, `by_metric` those of single ones. All metrics must be of one kind; the module of
    each kind documents its predictions, references and options.
    """
    kinds = by_kind(names)
    if len(kinds) > 1:
        groups = "; ".join(f"{', '.join(group)}: {kind}" for kind, group in kinds.items())
        raise KitError(
            f"These metrics do not compare the same predictions ({groups}). Compute them one kind at a time."
        )
    values: dict[str, float | str] = {}
    for name in names:
        result = find_metric(name).compute(predictions, references, **options, **(by_metric or {}).get(name, {}))
        values[name] = result.pop("score")
        values |= {f"{name}_{key}": value for key, value in result.items() if isinstance(value, int | float | str)}
    return values


def _entry(name: str, valid: Sequence[str] | Mapping[str, Metric]) -> Metric:
    if name not in METRICS:
        raise KitError(
            f'Unknown metric "{name}".{did_you_mean(name, valid)} Choose from: {", ".join(valid)}. A metric of your '
            "own must be registered in every process, with kit.register_metric."
        )
    return METRICS[name]
