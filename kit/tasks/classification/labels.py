"""The labels of a data set: which there are, those of each row, and how much each weighs in the training loss."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from datasets import Dataset

from kit.errors import DataError, RecipeError
from kit.tasks.classification.recipe import ClassificationData, ClassificationRecipe
from kit.tasks.families.labeling.labels import LabelReader, feature_names, in_order, numbered

REGRESSION, MULTI_LABEL = "regression", "multi_label_classification"
"""Values of data.problem_type. The third is one label per text."""


def label_reader(rows: Dataset, data: ClassificationData, split: str) -> LabelReader:
    """What reads the cells of the column of labels."""
    return LabelReader.of(rows, "label", data.label_names, f"data.label: {data.path}, {split}")


def labels_of_rows(rows: Dataset, data: ClassificationData, split: str) -> list[list[str]]:
    """The names of the labels of each row: a single one, except in multi-label classification."""
    reader = label_reader(rows, data, split)
    if data.problem_type == MULTI_LABEL:
        return [reader.distinct(cell, row, data.label_separator) for row, cell in numbered(rows, "label")]
    return [[reader.name(cell, row)] for row, cell in numbered(rows, "label")]


def find_labels(train: Dataset, recipe: ClassificationRecipe) -> list[str]:
    """All labels, in the model's order: that of the recipe or of the data set, which name them, or else sorted.

    Raises DataError if there are too few, and RecipeError if the recipe does not match them.
    """
    data, positive = recipe.data, recipe.eval.positive_label
    named = data.label_names or feature_names(train, "label")
    names = list(named or in_order([name for row in labels_of_rows(train, data, "train") for name in row]))
    if len(names) < (1 if data.problem_type == MULTI_LABEL else 2):
        only = f'only the label "{names[0]}"' if names else "no labels"
        raise DataError(
            f"data.label: the training data of {data.path} has {only}, so that there is nothing to tell apart. "
            "Use other data, or name all labels (data.label_names)."
        )
    for metric in ("f1", "precision", "recall"):
        if metric in recipe.eval.metrics and len(names) > 2:
            raise RecipeError(
                f"eval.metrics: {metric} is for two labels, and there are {len(names)}: use {metric}_macro."
            )
    if positive is not None and positive not in names:
        raise RecipeError(f'eval.positive_label: "{positive}" is not one of the labels ({", ".join(names[:8])}).')
    return names


def class_weights(train: Dataset, labels: Sequence[str], data: ClassificationData) -> tuple[float, ...] | None:
    """The weight of each label in the training loss; None if all count the same.

    `train` has the rows that the model learns from, by which "balanced" counts.
    """
    is_multi_label = data.problem_type == MULTI_LABEL
    key, weights = ("pos_weight", data.pos_weight) if is_multi_label else ("class_weights", data.class_weights)
    if weights is None:
        return None
    if weights == "balanced":
        names = Counter(name for row in labels_of_rows(train, data, "train") for name in row)
        counts = np.array([names[label] for label in labels])
        if is_multi_label:
            return tuple(np.where(counts > 0, (len(train) - counts) / np.maximum(counts, 1), 1.0).tolist())
        # a label without a training example needs no weight
        return tuple(np.where(counts > 0, len(train) / (len(labels) * np.maximum(counts, 1)), 0.0).tolist())
    for name in weights:
        if name not in labels:
            raise RecipeError(f'data.{key}: "{name}" is not one of the labels ({", ".join(labels[:8])}).')
    return tuple(float(weights.get(label, 1.0)) for label in labels)


def label_array(rows: Dataset, labels: Sequence[str], data: ClassificationData, split: str) -> np.ndarray:
    """The labels of the rows as the loss takes them: indices (rows,), 0 or 1 (rows, labels), or numbers (rows,).

    Raises DataError for a label that the model does not know.
    """
    if data.problem_type == REGRESSION:
        reader = label_reader(rows, data, split)
        return np.array([reader.number(cell, row) for row, cell in numbered(rows, "label")], dtype=np.float64)
    index = {name: number for number, name in enumerate(labels)}
    names_of_rows = labels_of_rows(rows, data, split)
    for row, names in enumerate(names_of_rows, start=1):
        for name in names:
            if name not in index:
                raise DataError(
                    f'data.label: {data.path}, {split}, row {row}: the label "{name}" is not among those of the '
                    "training data, so the model does not know it. Name all labels (data.label_names), or leave "
                    "the row out."
                )
    if data.problem_type != MULTI_LABEL:
        return np.array([index[names[0]] for names in names_of_rows], dtype=np.int64)
    array = np.zeros((len(names_of_rows), len(index)), dtype=np.float32)
    for flags, names in zip(array, names_of_rows, strict=True):
        flags[[index[name] for name in names]] = 1
    return array


def label_value(label: np.ndarray, labels: Sequence[str], data: ClassificationData) -> str | float | list[str]:
    """A label of `label_array` as it appears in predictions: its name, a list of names, or a number."""
    if data.problem_type == REGRESSION:
        return float(label)
    if data.problem_type == MULTI_LABEL:
        return [labels[index] for index in np.flatnonzero(label).tolist()]
    return labels[int(label)]


def as_list(labels: str | list[str]) -> list[str]:
    """One label or several as a list."""
    return [labels] if isinstance(labels, str) else labels
