"""Area under the ROC curve of the scores that a model gives to labels, by scikit-learn."""

from collections.abc import Sequence
from typing import Any

import datasets
import numpy as np
from sklearn.metrics import roc_auc_score

from kit.errors import DataError
from kit.evaluation.metrics.label_metric import label_sets
from kit.evaluation.metrics.local_metric import LocalMetric, check_pairs
from kit.evaluation.metrics.number_metric import numbers


class RocAuc(LocalMetric):
    """Area under the ROC curve, 0 to 1: how likely an example that has a label gets a higher score for it than one
    that has not; 0.5 is chance.

    Of two labels, the area of the second; of more, and where examples have several labels, the mean over the labels
    that some examples have and others do not. How many labels could not be judged is told as `labels_left_out`.
    """

    inputs = """
    predictions: for each example a list of scores or probabilities, one for each label; or of two labels the second's.
    references: for each example its label, or a list of labels: names of `labels=`, or numbers from 0.
    """

    def columns(self) -> dict[str, Any]:
        label = datasets.List(datasets.Value("string"))
        return {"predictions": datasets.List(datasets.Value("float64")), "references": label}

    def add_batch(self, *, predictions: Sequence[Any], references: Sequence[Any], **kwargs: Any) -> None:
        """Add scores and the right labels."""
        check_pairs(predictions, references)
        super().add_batch(
            predictions=[_scores(row, number) for number, row in enumerate(predictions, start=1)],
            references=label_sets(references, "Reference"),
            **kwargs,
        )

    def add(self, *, prediction: Any, reference: Any, **kwargs: Any) -> None:
        """Add the scores of one example, and its label."""
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def _compute(
        self,
        predictions: list[list[float]],
        references: list[list[str]],
        labels: Sequence[Any] | None = None,
        positive: Any = None,
    ) -> dict[str, Any]:
        widths = sorted({len(row) for row in predictions})
        if len(widths) > 1:
            raise DataError(f"Some examples have {widths[0]} scores, others {widths[-1]}: each label needs its own.")
        width = 2 if widths == [1] else widths[0]
        names = [str(label) for label in (range(width) if labels is None else labels)]
        if len(names) != width:
            raise DataError(f"{width} scores for each example, but {len(names)} labels: each label needs its own.")
        scores = np.array(predictions)
        right = _right(references, names)
        if width == 2 and all(len(row) == 1 for row in references):
            # The second of two labels, or the one that is looked for; a single score is always that one's.
            column = 1 if positive is None else names.index(str(positive)) if str(positive) in names else -1
            if column < 0:
                raise DataError(f'The positive label "{positive}" is none of {", ".join(names)}.')
            right = right[:, [column]]
            scores = scores if scores.shape[1] == 1 else scores[:, [column]]
        elif scores.shape[1] == 1:
            raise DataError("Examples with several labels need a score for each label, not one.")
        judged = [column for column in range(right.shape[1]) if 0 < right[:, column].sum() < len(right)]
        if not judged:
            raise DataError(
                "roc_auc needs examples that have a label and others that do not, but all references are the same. "
                "Use accuracy, or other data."
            )
        areas = [roc_auc_score(right[:, column], scores[:, column]) for column in judged]
        return {"score": float(np.mean(areas)), "labels_left_out": right.shape[1] - len(judged)}


def _scores(row: Any, number: int) -> list[float]:
    listed = row if isinstance(row, list | tuple | np.ndarray) and np.ndim(row) else [row]
    if len(listed) == 0:
        raise DataError(f"Prediction {number} has no scores.")
    return numbers(list(listed), f"Prediction {number}, score")


def _right(references: list[list[str]], names: list[str]) -> np.ndarray:
    """(examples, labels) true where an example has a label"""
    places = {name: column for column, name in enumerate(names)}
    right = np.zeros((len(references), len(names)), dtype=bool)
    for number, labels in enumerate(references):
        for label in labels:
            if label not in places:
                raise DataError(
                    f'Reference {number + 1} has the label "{label}", for which there is no score. Scores are for '
                    f"{', '.join(names[:10])}{', …' if len(names) > 10 else ''}; give names by labels=…"
                )
            right[number, places[label]] = True
    return right
