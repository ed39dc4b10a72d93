"""How varied texts are: a model that always says the same is near zero."""

from collections.abc import Sequence
from typing import Any

import datasets

from kit.evaluation.metrics.local_metric import LocalMetric, check_pairs


class Distinct1(LocalMetric):
    """Share, 0 to 1, of different words among all words of the predictions; 0 if there is none.

    Words are what stands between white space. References are not looked at.
    """

    inputs = """
    predictions: the texts to judge, a list of strings.
    references: as many texts, which do not matter.
    """
    length = 1

    def columns(self) -> dict[str, Any]:
        return {"predictions": datasets.Value("string"), "references": datasets.Value("string")}

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        check_pairs(predictions, references)
        total, different = 0, set()
        for text in predictions:
            words = text.split()
            parts = [tuple(words[place : place + self.length]) for place in range(len(words) - self.length + 1)]
            total += len(parts)
            different.update(parts)
        return {"score": len(different) / max(1, total)}


class Distinct2(Distinct1):
    """The same of pairs of words that follow each other within a prediction."""

    length = 2
