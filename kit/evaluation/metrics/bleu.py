"""BLEU of the whole corpus, by sacrebleu."""

from collections.abc import Sequence
from typing import Any

import sacrebleu.metrics

from kit.evaluation.metrics.sacrebleu_metric import SacrebleuMetric, streams


class Bleu(SacrebleuMetric):
    """Corpus BLEU, 0 to 100, on detokenised text (13a tokenisation unless `tokenize=` says otherwise).

    Where no reference is long enough to hold a 4-gram, plain BLEU is 0 even for a perfect output; then the
    longest n-grams that exist are used, and the signature says `eff:yes`. The choice depends on the
    references alone, so runs on the same data stay comparable. Text without spaces is one word under 13a:
    prefer chrF.
    """

    def scorer(self, references: Sequence[Sequence[str]], **options: Any) -> sacrebleu.metrics.BLEU:
        # `force` only silences a warning about outputs that end in " .", which word-level models do produce.
        options = {"force": True, **options}
        options.setdefault("effective_order", not _has_4grams(references, options))
        return sacrebleu.metrics.BLEU(**options)


def _has_4grams(references: Sequence[Sequence[str]], options: dict[str, Any]) -> bool:
    if any(len(text.split()) >= 4 for texts in references for text in texts):
        return True  # every tokenisation splits further, none joins words
    perfect = [max(texts, key=len) for texts in references]
    return sacrebleu.metrics.BLEU(**options).corpus_score(perfect, streams(references)).score > 0
