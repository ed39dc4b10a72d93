"""Translation edit rate of the whole corpus, by sacrebleu."""

from collections.abc import Sequence
from typing import Any

import sacrebleu.metrics

from kit.evaluation.metrics.sacrebleu_metric import SacrebleuMetric


class Ter(SacrebleuMetric):
    """Corpus TER: edits per 100 words of the reference; 0 is perfect, over 100 is possible; ignores case."""

    def scorer(self, references: Sequence[Sequence[str]], **options: Any) -> sacrebleu.metrics.TER:
        return sacrebleu.metrics.TER(**options)
