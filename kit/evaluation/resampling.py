"""Metrics on samples of examples that are drawn with replacement.

Most metrics are functions of sums over examples: of hits, counts or errors. Their score on a sample is then a product
of matrices. The others, such as correlations of ranks and the user's own, are computed again for each sample.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kit.errors import DataError
from kit.evaluation.metrics.answers import answer_exact_match, answer_f1, best_value
from kit.evaluation.metrics.base import Statistics
from kit.evaluation.metrics.labels import LabelSets
from kit.evaluation.metrics.registry import find_metric
from kit.evaluation.metrics.tags import entity_counts

Measure = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Scored(Protocol):
    """A metric of some predictions."""

    def score(self, counts: np.ndarray | None = None) -> float:
        """The score of all examples, or of a sample that holds example i `counts[i]` times."""


@dataclass(frozen=True)
class Recomputed:
    """A metric that is computed again for each sample; NaN for a sample on which it is not defined."""

    compute: Callable[[Sequence[Any], Sequence[Any]], float]
    predictions: Sequence[Any]
    references: Sequence[Any]

    def score(self, counts: np.ndarray | None = None) -> float:
        if counts is None:
            return self.compute(self.predictions, self.references)
        drawn = np.repeat(np.arange(len(counts)), counts).tolist()
        try:
            return self.compute([self.predictions[i] for i in drawn], [self.references[i] for i in drawn])
        except DataError:  # such as a correlation with references that are all the same
            return float("nan")


def resampled_metric(name: str, predictions: Sequence[Any], references: Sequence[Any], **options: Any) -> Scored:
    """A metric of predictions and references that can be scored on any sample of them."""
    metric = find_metric(name)
    if name in SUMS:
        return SUMS[name](predictions, references, **options)
    if metric.kind == "text" and not metric.registered:
        result = metric.function(predictions, references, **options)
        assert isinstance(result, Statistics)
        return result
    passed = options if metric.kind == "labels" else {}
    return Recomputed(
        lambda some, others: float(metric.compute(some, others, **passed)["score"]), predictions, references
    )


def accuracy(predictions: Sequence[Any], references: Sequence[Any], **options: Any) -> Statistics:
    """The share of examples with the right labels."""
    examples = LabelSets.parse(predictions, references, options.get("labels"), options.get("positive"))
    pairs = zip(examples.predictions, examples.references, strict=True)
    return mean_of([(float(predicted == expected), 1) for predicted, expected in pairs])


def mean_of(sums: Sequence[tuple[float, float]], scale: float = 1.0) -> Statistics:
    """The mean of values, from the sum and the number of those of each example."""
    return Statistics(np.array(sums, dtype=np.float64), lambda total: scale * total[0] / max(total[1], 1))


def tag_accuracy(predictions: Sequence[Any], references: Sequence[Any]) -> Statistics:
    """The share of words with the right tag."""
    pairs = zip(predictions, references, strict=True)
    return mean_of([(sum(map(lambda *tags: tags[0] == tags[1], *pair)), len(pair[0])) for pair in pairs])


def mean_error(error: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Statistics]:
    """The mean of an error over numbers, or over all values of forecasts that are not missing."""

    def statistics(predictions: Sequence[Any], references: Sequence[Any]) -> Statistics:
        sums = []
        for predicted, expected in zip(predictions, references, strict=True):
            difference = np.array(predicted, dtype=np.float64) - np.array(expected, dtype=np.float64)
            sums.append((float(np.nansum(error(difference))), float((~np.isnan(difference)).sum())))
        return mean_of(sums)

    return statistics


def answer_mean(measure: Callable[[str, str], float]) -> Callable[..., Statistics]:
    """The mean of a measure of answers, out of 100."""

    def statistics(predictions: Sequence[Any], references: Sequence[Any]) -> Statistics:
        pairs = zip(predictions, references, strict=True)
        values = [best_value(measure, row["prediction_text"], other["answers"]["text"]) for row, other in pairs]
        return mean_of([(value, 1) for value in values], 100.0)

    return statistics


def entity(measure: Measure) -> Callable[..., Statistics]:
    """A measure of entities, from the right, predicted and expected ones of each sentence."""

    def statistics(predictions: Sequence[Any], references: Sequence[Any]) -> Statistics:
        counts = np.array(entity_counts(predictions, references), dtype=np.float64)
        return Statistics(counts, lambda total: float(measure(*total[:, None])[0]))

    return statistics


def label_measure(measure: Measure, average: str) -> Callable[..., Statistics]:
    """A measure of labels, from the right, predicted and expected examples of each label."""

    def statistics(predictions: Sequence[Any], references: Sequence[Any], **options: Any) -> Statistics:
        examples = LabelSets.parse(predictions, references, options.get("labels"), options.get("positive"))
        names = [examples.positive_label("f1")] if average == "binary" else examples.names
        index = {name: column for column, name in enumerate(names)}
        rows = np.zeros((len(examples.references), 3, len(names)))  # right, predicted, expected
        for row, predicted, expected in zip(rows, examples.predictions, examples.references, strict=True):
            for kind, labels in enumerate((set(predicted) & set(expected), predicted, expected)):
                row[kind, [index[label] for label in labels if label in index]] = 1

        def score(total: np.ndarray) -> float:
            counts = total.reshape(3, len(names))
            if average in ("binary", "micro"):
                return float(measure(*counts.sum(axis=1, keepdims=True))[0])
            values = measure(*counts)
            weights = counts[2] if average == "weighted" else (counts[1] + counts[2] > 0).astype(np.float64)
            return float(values @ weights / weights.sum()) if weights.sum() else 0.0

        return Statistics(rows.reshape(len(rows), -1), score)

    return statistics


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


MEASURES: Mapping[str, Measure] = {
    "precision": lambda right, predicted, expected: _ratio(right, predicted),
    "recall": lambda right, predicted, expected: _ratio(right, expected),
    "f1": lambda right, predicted, expected: _ratio(2 * right, predicted + expected),
}
"""Precision, recall and F1 from the numbers of right, predicted and expected items; 0 where nothing can be divided."""

SUMS: Mapping[str, Callable[..., Statistics]] = {
    "accuracy": accuracy,
    "tag_accuracy": tag_accuracy,
    "mse": mean_error(np.square),
    "mae": mean_error(np.abs),
    "squad_exact_match": answer_mean(answer_exact_match),
    "squad_f1": answer_mean(answer_f1),
    **{f"entity_{name}": entity(measure) for name, measure in MEASURES.items()},
    **{
        name if average == "binary" else f"{name}_{average}": label_measure(measure, average)
        for name, measure in MEASURES.items()
        for average in ("binary", "macro", "micro", "weighted")
    },
}
"""The metrics besides those of texts that are functions of sums."""
