"""chrF of the whole corpus, by sacrebleu."""

from collections.abc import Sequence
from typing import Any

import sacrebleu.metrics

from kit.evaluation.metrics.sacrebleu_metric import SacrebleuMetric


class Chrf(SacrebleuMetric):
    """Corpus chrF2, 0 to 100: F-score of character n-grams, for all scripts; `word_order=2` gives chrF++."""

    def scorer(self, references: Sequence[Sequence[str]], **options: Any) -> sacrebleu.metrics.CHRF:
        return sacrebleu.metrics.CHRF(**options)
