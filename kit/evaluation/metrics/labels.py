"""Metrics on labels, one label or a set of labels per example: accuracy, F-measures and ROC AUC by scikit-learn.

A label is a text or a whole number; 1 and "1" are the same. Several labels of an example are a list in any order, which
may be empty. `labels=` lists all labels in the model's order, and makes any other label an error; `positive=` names the
one that binary metrics are about.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.metrics import matthews_corrcoef, precision_recall_fscore_support, roc_auc_score

from kit.errors import DataError, KitError, did_you_mean
from kit.evaluation.metrics.base import check_pairs
from kit.evaluation.metrics.numbers import finite_numbers

Measure = Literal["precision", "recall", "f1"]
Average = Literal["binary", "macro", "micro", "weighted"]


@dataclass(frozen=True)
class LabelSets:
    """Predicted and reference labels, each example as a sorted list without duplicates."""

    predictions: list[list[str]]
    references: list[list[str]]
    labels: list[str] | None
    """All labels in the model's order, if the caller gives them."""
    positive: str | None
    """The label that binary metrics are about, if the caller names it."""

    @classmethod
    def parse(
        cls, predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] | None, positive: Any
    ) -> "LabelSets":
        """Labels of any accepted form. Raises DataError, with the number of the example, for any other value."""
        check_pairs(predictions, references)
        names = None if labels is None else [label_name(label, f"Label {n}") for n, label in enumerate(labels, start=1)]
        predicted, expected = label_sets(predictions, "Prediction"), label_sets(references, "Reference")
        if names is not None:
            _reject_unknown(predicted, names, "Prediction")
            _reject_unknown(expected, names, "Reference")
        return cls(predicted, expected, names, None if positive is None else label_name(positive, "The positive label"))

    @property
    def names(self) -> list[str]:
        """The labels that occur, predicted or in references, sorted."""
        return sorted({label for side in (self.predictions, self.references) for labels in side for label in labels})

    def single(self, metric: str) -> tuple[list[str], list[str]]:
        """The label of each example, predictions and references. Raises DataError if one has none or several."""
        for side, rows in (("Prediction", self.predictions), ("Reference", self.references)):
            for number, labels in enumerate(rows, start=1):
                if len(labels) != 1:
                    raise DataError(
                        f"{side} {number} has {len(labels)} labels, but {metric} is defined for exactly one. Use "
                        "f1_macro, f1_micro or f1_weighted for several."
                    )
        return [labels[0] for labels in self.predictions], [labels[0] for labels in self.references]

    def positive_label(self, metric: str) -> str:
        """The label that a binary metric is about: `positive` if given, the second of the model's two, or 1.

        Raises KitError if there are more than two labels, or none of these applies.
        """
        names = self.labels or self.names
        if len(names) > 2:
            raise KitError(
                f'{metric} needs two labels, and there are {len(names)}. Use "{metric}_macro" (all labels weigh the '
                f'same), "{metric}_micro" or "{metric}_weighted".'
            )
        if self.positive is not None:
            return self.positive
        if self.labels is not None and len(self.labels) == 2:
            return self.labels[1]
        for pair in (("0", "1"), ("False", "True")):
            if set(names) <= set(pair):
                return pair[1]
        raise KitError(
            f"{metric} needs to know which label is positive: none of {', '.join(names)} is 1. Pass positive=…, or all "
            "labels in the order of the model (labels=…), of which the second is the positive one."
        )


def accuracy(
    predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] | None = None, positive: Any = None
) -> float:
    """Share, 0 to 1, of examples with the right label; with several labels, of examples whose sets are equal."""
    examples = LabelSets.parse(predictions, references, labels, positive)
    pairs = zip(examples.predictions, examples.references, strict=True)
    return sum(predicted == expected for predicted, expected in pairs) / len(examples.references)


def f_measure(
    predictions: Sequence[Any],
    references: Sequence[Any],
    measure: Measure,
    average: Average = "binary",
    labels: Sequence[Any] | None = None,
    positive: Any = None,
) -> float:
    """Precision, recall or F1, 0 to 1: of the positive label (binary), or averaged over labels.

    Averages include the labels that occur, predicted or in references: `macro` weighs them the same, `weighted` by
    their number of references, `micro` counts all decisions together (with one label per example that is the
    accuracy). Where a label's measure would divide by zero, it is 0, and takes part in the average.
    """
    examples = LabelSets.parse(predictions, references, labels, positive)
    column = ("precision", "recall", "f1").index(measure)
    if average != "binary":
        names = {label: index for index, label in enumerate(examples.names)}
        if not names:
            return 0.0  # no example has or gets a label
        sides = [_indicators(rows, names) for rows in (examples.references, examples.predictions)]
        scores = precision_recall_fscore_support(*sides, labels=range(len(names)), average=average, zero_division=0)
        return float(scores[column])
    predicted, expected = examples.single(measure)
    positive_label = examples.positive_label(measure)
    sides = [[label == positive_label for label in side] for side in (expected, predicted)]
    return float(precision_recall_fscore_support(*sides, average="binary", pos_label=True, zero_division=0)[column])


def matthews(
    predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] | None = None, positive: Any = None
) -> float:
    """Matthews correlation, -1 to 1, of predicted and reference labels, of which there may be any number.

    0 is chance level, however the labels are distributed, and the value for constant predictions or references.
    """
    examples = LabelSets.parse(predictions, references, labels, positive)
    predicted, expected = examples.single("matthews")
    # scikit-learn returns 0 for a single label too, but warns
    return float(matthews_corrcoef(expected, predicted)) if len(examples.names) > 1 else 0.0


def roc_auc(
    predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] | None = None, positive: Any = None
) -> dict[str, float]:
    """Area under the ROC curve, 0 to 1: the probability that an example with a label gets a higher score for it than
    one without; 0.5 is chance level.

    A prediction is a list of scores, one per label, or with two labels the score of the second. References are names
    of `labels=`, or indices from 0. With two labels, the area of the second; with more, or several per example, the
    mean over the labels that some examples have and others do not. `labels_left_out` counts the remaining labels.
    """
    check_pairs(predictions, references)
    scores = np.array(_score_rows(predictions))  # (examples, scores)
    width = max(2, scores.shape[1])
    names = [str(label) for label in (range(width) if labels is None else labels)]
    if len(names) != width:
        raise DataError(f"{width} scores per example, but {len(names)} labels: each label needs its score.")
    label_lists = label_sets(references, "Reference")
    expected = _score_targets(label_lists, names)
    if width == 2 and all(len(row) == 1 for row in label_lists):
        if positive is not None and str(positive) not in names:
            raise DataError(f'The positive label "{positive}" is not one of {", ".join(names)}.')
        column = 1 if positive is None else names.index(str(positive))
        expected = expected[:, [column]]
        # a single score is that of the positive label
        scores = scores if scores.shape[1] == 1 else scores[:, [column]]
    elif scores.shape[1] == 1:
        raise DataError("Examples with several labels need a score for each label, not one.")
    mixed = [column for column in range(expected.shape[1]) if 0 < expected[:, column].sum() < len(expected)]
    if not mixed:
        raise DataError(
            "roc_auc needs examples that have a label and others that do not, but all references are the same. "
            "Use accuracy, or other data."
        )
    areas = [roc_auc_score(expected[:, column], scores[:, column]) for column in mixed]
    return {"score": float(np.mean(areas)), "labels_left_out": expected.shape[1] - len(mixed)}


def label_sets(rows: Sequence[Any], side: str) -> list[list[str]]:
    """The labels of each example by name. Raises DataError, with the number of the example, for any other value."""
    sets = []
    for number, row in enumerate(rows, start=1):
        value = row.tolist() if isinstance(row, np.ndarray) and row.ndim else row
        labels = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
        sets.append(sorted({label_name(label, f"{side} {number}") for label in labels}))
    return sets


def label_name(label: Any, source: str) -> str:
    """A label as text. Raises DataError, which begins with `source`, if it is missing or has a fraction."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, str | int):
        return str(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise DataError(f"{source} is missing ({label!r}). Leave the example out, or give it a label.")
    raise DataError(
        f"{source} is {label!r}: a label is a text or a whole number. For other numbers use mse or pearson."
    )


def _reject_unknown(rows: list[list[str]], names: list[str], side: str) -> None:
    known = set(names)
    for number, labels in enumerate(rows, start=1):
        for label in labels:
            if label not in known:
                raise DataError(
                    f'{side} {number} has the label "{label}", which is not one of the labels ({_first(names)}).'
                    f"{did_you_mean(label, names)}"
                )


def _first(names: list[str]) -> str:
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")


def _indicators(rows: list[list[str]], names: dict[str, int]) -> csr_matrix:
    """(examples, labels + 1): 1 where an example has a label. Sparse, so that ten thousand labels fit in memory.

    The last column is empty: scikit-learn does not read a single column as multilabel indicators.
    """
    columns = [names[label] for labels in rows for label in labels]
    row_ends = np.cumsum([0, *map(len, rows)])
    return csr_matrix((np.ones(len(columns), dtype=np.int64), columns, row_ends), shape=(len(rows), len(names) + 1))


def _score_rows(predictions: Sequence[Any]) -> list[list[float]]:
    """The scores of each example as a list, all of the same length."""
    rows = []
    for number, row in enumerate(predictions, start=1):
        scores = row if isinstance(row, list | tuple | np.ndarray) and np.ndim(row) else [row]
        if len(scores) == 0:
            raise DataError(f"Prediction {number} has no scores.")
        rows.append(finite_numbers(list(scores), f"Prediction {number}, score"))
    widths = sorted({len(row) for row in rows})
    if len(widths) > 1:
        raise DataError(f"Some examples have {widths[0]} scores, others {widths[-1]}: each label needs its score.")
    return rows


def _score_targets(references: list[list[str]], names: list[str]) -> np.ndarray:
    """(examples, labels): true where an example has a label. Raises DataError for a label that is not in `names`."""
    columns = {name: column for column, name in enumerate(names)}
    targets = np.zeros((len(references), len(names)), dtype=bool)
    for index, labels in enumerate(references):
        for label in labels:
            if label not in columns:
                raise DataError(
                    f'Reference {index + 1} has the label "{label}", for which there is no score. Scores are for '
                    f"{_first(names)}; name them with labels=…"
                )
            targets[index, columns[label]] = True
    return targets
