"""From logits to predicted labels: probabilities, and the threshold of each label if a text can have several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.special import expit, softmax
from transformers import PreTrainedConfig

from kit.tasks.classification.labels import MULTI_LABEL, REGRESSION, label_value
from kit.tasks.classification.recipe import ClassificationRecipe
from kit.tasks.families.labeling.labels import THRESHOLDS

DEFAULT_THRESHOLD = 0.5
"""The threshold of a label for which neither the recipe nor validation gives one: more likely than not."""


@dataclass(frozen=True)
class Decision:
    """How a model decides on labels. Pipelines return the same scores."""

    recipe: ClassificationRecipe
    labels: Sequence[str]
    thresholds: np.ndarray
    """The probability above which each label is predicted (labels,), in multi-label classification."""

    @classmethod
    def of(cls, recipe: ClassificationRecipe, labels: Sequence[str], config: PreTrainedConfig) -> Self:
        """The decision with the thresholds of the recipe, else those saved with the model, else the default."""
        chosen = recipe.eval.label_threshold
        saved = getattr(config, THRESHOLDS, None) if chosen is None else None
        default = DEFAULT_THRESHOLD if chosen is None else chosen
        return cls(recipe, labels, np.full(len(labels), default) if saved is None else np.array(saved))

    def tuned(self, logits: np.ndarray, true: np.ndarray) -> Self:
        """The same decision with the thresholds that give each label its best F1 on examples, whose true labels are
        `true` (examples, labels)."""
        return replace(self, thresholds=best_thresholds(self.scores(logits), true))

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """The probabilities of the labels (…, labels); the numbers themselves of a regression."""
        kind = self.recipe.data.problem_type
        if kind == REGRESSION:
            return logits
        return expit(logits) if kind == MULTI_LABEL else softmax(logits, axis=-1)

    def predictions(self, logits: np.ndarray) -> list[dict[str, Any]]:
        """For each example its `prediction`, which is a label, a list of labels or a number, and the `score` of a
        label."""
        return [self.decide(scores) for scores in self.scores(logits)]

    def decide(self, scores: np.ndarray) -> dict[str, Any]:
        """The prediction for one example, from the scores of its labels (labels,)."""
        kind = self.recipe.data.problem_type
        if kind == REGRESSION:
            return {"prediction": float(scores[0])}
        if kind == MULTI_LABEL:
            chosen = scores > self.thresholds
            names = label_value(chosen, self.labels, self.recipe.data)
            return {"prediction": names, "score": scores[chosen].tolist()}
        best = int(scores.argmax())
        return {"prediction": self.labels[best], "score": float(scores[best])}

    def ranked(self, logits: np.ndarray, top_k: int) -> list[list[dict[str, Any]]]:
        """The `top_k` most probable labels of each example with their scores, best first."""
        return [
            [{"label": self.labels[index], "score": float(row[index])} for index in best]
            for row in self.scores(logits)
            for best in [np.argsort(-row, kind="stable")[:top_k].tolist()]
        ]


def best_thresholds(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The threshold of each label (labels,) that gives it the best F1 on examples with scores and labels (examples,
    labels), midway between two scores; the default for a label that no example has."""
    thresholds = np.full(scores.shape[1], DEFAULT_THRESHOLD)
    for column in np.flatnonzero(labels.any(axis=0)).tolist():
        order = np.argsort(-scores[:, column], kind="stable")
        ranked, hits = scores[order, column], np.cumsum(labels[order, column])
        f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + hits[-1])  # of predicting the label for the first n examples
        f1[:-1][ranked[:-1] == ranked[1:]] = -1  # no threshold separates equal scores
        best = int(f1.argmax())
        lowest = 0.0 if ranked[best] > 0 else -1.0  # below every score
        below = ranked[best + 1] if best + 1 < len(ranked) else lowest
        thresholds[column] = (ranked[best] + below) / 2
    return thresholds
