"""The bridge to sacrebleu: its corpus scores, with the signature that says how they were computed."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric

from kit.evaluation.metrics.text_metric import Statistics, TextMetric


class SacrebleuMetric(TextMetric):
    """A corpus score of sacrebleu; options of `compute` go to sacrebleu's class, and into the signature."""

    @abstractmethod
    def scorer(self, references: Sequence[Sequence[str]], **options: Any) -> Metric:
        """The metric of sacrebleu that judges against these references."""

    def statistics(self, predictions: Sequence[str], references: Sequence[Sequence[str]], **options: Any) -> Statistics:
        scorer = self.scorer(references, **options)
        # These two private methods are what sacrebleu's own significance tests are built on.
        rows = scorer._extract_corpus_statistics(predictions, streams(references))
        return Statistics(
            rows=np.array(rows, dtype=np.float64),
            score=lambda total: scorer._compute_score_from_stats(total).score,
            signature=str(scorer.get_signature()),
        )


def streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """References as sacrebleu wants them: all first ones, all second ones; None where one is missing."""
    return [list(stream) for stream in zip_longest(*references)]
