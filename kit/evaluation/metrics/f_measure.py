"""Precision, recall and their harmonic mean F1 of labels, by scikit-learn: of one label, or averaged over all."""

from typing import ClassVar, Literal

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.metrics import precision_recall_fscore_support

from kit.evaluation.metrics.label_metric import LabelMetric, LabelSets

Average = Literal["binary", "macro", "micro", "weighted"]


class FMeasure(LabelMetric):
    """One of precision, recall and F1, 0 to 1.

    Averages are over the labels that occur, predicted or right: `macro` weighs them the same, `weighted` by how often
    each is right, `micro` counts all decisions together (with one label for each example that is the accuracy). A
    label that is never right, or never predicted, has 0 where nothing can be divided, and takes part.
    """

    place: ClassVar[int]
    """Which of precision, recall and F1."""
    average: ClassVar[Average] = "binary"

    def score(self, examples: LabelSets) -> float:
        name = ("precision", "recall", "f1")[self.place]
        if self.average != "binary":
            names = {label: column for column, label in enumerate(examples.names)}
            if not names:
                return 0.0  # nothing was there to be found, and nothing was said
            sides = [_indicators(rows, names) for rows in (examples.references, examples.predictions)]
            options = {"labels": range(len(names)), "average": self.average, "zero_division": 0}
            return precision_recall_fscore_support(*sides, **options)[self.place]
        predictions, references = examples.single(name)
        positive = examples.positive_label(name)
        found = [[label == positive for label in labels] for labels in (references, predictions)]
        return precision_recall_fscore_support(*found, average="binary", pos_label=True, zero_division=0)[self.place]


def _indicators(rows: list[list[str]], names: dict[str, int]) -> csr_matrix:
    """(examples, labels + 1) with 1 where an example has a label: sparse, so that ten thousand labels are no matter.

    No example has the last column; scikit-learn does not take a single one for labels of which there may be several.
    """
    columns = [names[label] for labels in rows for label in labels]
    ends = np.cumsum([0, *map(len, rows)])
    return csr_matrix((np.ones(len(columns), dtype=np.int64), columns, ends), shape=(len(rows), len(names) + 1))


class Precision(FMeasure):
    """Of the examples predicted to have the positive label, the share that has it, 0 to 1."""

    place = 0


class PrecisionMacro(Precision):
    """Precision, 0 to 1: the mean over labels."""

    average = "macro"


class PrecisionMicro(Precision):
    """Precision, 0 to 1, of all labels together."""

    average = "micro"


class PrecisionWeighted(Precision):
    """Precision, 0 to 1: the mean over labels, weighted by how often each is right."""

    average = "weighted"


class Recall(FMeasure):
    """Of the examples that have the positive label, the share that was found, 0 to 1."""

    place = 1


class RecallMacro(Recall):
    """Recall, 0 to 1: the mean over labels."""

    average = "macro"


class RecallMicro(Recall):
    """Recall, 0 to 1, of all labels together."""

    average = "micro"


class RecallWeighted(Recall):
    """Recall, 0 to 1: the mean over labels, weighted by how often each is right."""

    average = "weighted"


class F1(FMeasure):
    """F1 of the positive label, 0 to 1: the harmonic mean of its precision and recall."""

    place = 2


class F1Macro(F1):
    """F1, 0 to 1: the mean over labels."""

    average = "macro"


class F1Micro(F1):
    """F1, 0 to 1, of all labels together."""

    average = "micro"


class F1Weighted(F1):
    """F1, 0 to 1: the mean over labels, weighted by how often each is right."""

    average = "weighted"
