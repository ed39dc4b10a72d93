"""The base of metrics on labels: one label for each example, or a set of them."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np

from kit.errors import DataError, KitError, did_you_mean
from kit.evaluation.metrics.local_metric import LocalMetric, check_pairs


@dataclass(frozen=True)
class LabelSets:
    """Predicted and right labels, each example as a sorted list without repetition."""

    predictions: list[list[str]]
    references: list[list[str]]
    labels: list[str] | None
    """All labels there are, in the model's order, if the caller says."""
    positive: str | None
    """The label that is looked for, if the caller says."""

    @property
    def names(self) -> list[str]:
        """The labels that occur, predicted or right, in order."""
        return sorted({label for side in (self.predictions, self.references) for labels in side for label in labels})

    def single(self, metric: str) -> tuple[list[str], list[str]]:
        """The one label of each example. Raises DataError if one has none or several."""
        for side, rows in (("Prediction", self.predictions), ("Reference", self.references)):
            for number, labels in enumerate(rows, start=1):
                if len(labels) != 1:
                    raise DataError(
                        f"{side} {number} has {len(labels)} labels, but {metric} is defined for one label each. Use "
                        "f1_macro, f1_micro or f1_weighted for several."
                    )
        return [labels[0] for labels in self.predictions], [labels[0] for labels in self.references]

    def positive_label(self, metric: str) -> str:
        """The label that a metric of two labels looks for: the one given, the second of the model's, or 1."""
        named = self.labels or self.names
        if len(named) > 2:
            raise KitError(
                f'{metric} is about one of two labels, and here are {len(named)}. Use "{metric}_macro" (all labels '
                f'weigh the same), "{metric}_micro" or "{metric}_weighted".'
            )
        if self.positive is not None:
            return self.positive
        if self.labels is not None and len(self.labels) == 2:
            return self.labels[1]
        for pair in (("0", "1"), ("False", "True")):
            if set(named) <= set(pair):
                return pair[1]
        raise KitError(
            f"{metric} has to know which label it looks for: of {', '.join(named)} none is 1. Give positive=…, or all "
            "labels in the order of the model (labels=…), of which the second is meant."
        )


class LabelMetric(LocalMetric):
    """Compares predicted with right labels.

    A label is a text or a whole number; 1 and "1" are the same. Several labels of an example are a list, in any order,
    and may be none. `compute` takes `labels=`, all that there are, to refuse others, and `positive=` for metrics that
    look for one of two.
    """

    inputs = """
    predictions: for each example its label, or a list of labels.
    references: for each prediction the right label, or a list of labels.
    """

    @abstractmethod
    def score(self, examples: LabelSets) -> float:
        """The value on these examples."""

    def columns(self) -> dict[str, Any]:
        labels = datasets.List(datasets.Value("string"))
        return {"predictions": labels, "references": labels}

    def add_batch(self, *, predictions: Sequence[Any], references: Sequence[Any], **kwargs: Any) -> None:
        """Add predicted labels and the right ones."""
        check_pairs(predictions, references)
        super().add_batch(
            predictions=label_sets(predictions, "Prediction"),
            references=label_sets(references, "Reference"),
            **kwargs,
        )

    def add(self, *, prediction: Any, reference: Any, **kwargs: Any) -> None:
        """Add one prediction and its reference."""
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def _compute(
        self,
        predictions: list[list[str]],
        references: list[list[str]],
        labels: Sequence[Any] | None = None,
        positive: Any = None,
    ) -> dict[str, Any]:
        named = None if labels is None else [label_name(label, "Label", n) for n, label in enumerate(labels, start=1)]
        looked_for = None if positive is None else label_name(positive, "The positive label", None)
        if named is not None:
            _refuse_others(predictions, named, "Prediction")
            _refuse_others(references, named, "Reference")
        return {"score": float(self.score(LabelSets(predictions, references, named, looked_for)))}


def label_sets(rows: Sequence[Any], side: str) -> list[list[str]]:
    """The labels of each example as names. Raises DataError, with the number of the example, for anything else."""
    found = []
    for number, row in enumerate(rows, start=1):
        labels = row.tolist() if isinstance(row, np.ndarray) and row.ndim else row
        listed = list(labels) if isinstance(labels, list | tuple | set | frozenset) else [labels]
        found.append(sorted({label_name(label, side, number) for label in listed}))
    return found


def label_name(label: Any, side: str, number: int | None) -> str:
    """A label as text. Raises DataError if it is missing, or a number with a fraction."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, str | int):
        return str(value)
    where = side if number is None else f"{side} {number}"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise DataError(f"{where} is missing ({label!r}). Leave the example out, or give it a label.")
    raise DataError(f"{where} is {label!r}: a label is a text or a whole number. For other numbers use mse or pearson.")


def _refuse_others(rows: list[list[str]], named: list[str], side: str) -> None:
    known = set(named)
    for number, labels in enumerate(rows, start=1):
        for label in labels:
            if label not in known:
                shown = ", ".join(named[:10]) + (", …" if len(named) > 10 else "")
                raise DataError(
                    f'{side} {number} has the label "{label}", which is none of the labels there are ({shown}).'
                    f"{did_you_mean(label, named)}"
                )
