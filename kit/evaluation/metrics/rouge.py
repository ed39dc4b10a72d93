"""ROUGE of summaries and other texts, by rouge-score, with words of all scripts."""

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np
import regex
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer, Tokenizer

from kit.evaluation.metrics.base import Statistics
from kit.evaluation.metrics.text import References, reference_lists

_UNSPACED_SCRIPTS = r"\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(
    rf"(?V1)[{_UNSPACED_SCRIPTS}&&[\p{{L}}\p{{N}}]]\p{{M}}*|[[\p{{L}}\p{{M}}\p{{N}}]--[{_UNSPACED_SCRIPTS}]]+"
)


class AllScripts(Tokenizer):
    """Lowercase words: runs of letters and digits; in scripts that put no space between words, single letters.

    On ASCII text this equals rouge-score's own tokenizer, which drops every other letter: there a perfect Russian
    summary scores 0, and "café" counts as "caf".
    """

    def tokenize(self, text: str) -> list[str]:
        """The words of a text."""
        return _WORD.findall(text.lower())


def rouge(predictions: Sequence[str], references: References, variant: str, use_stemmer: bool = False) -> Statistics:
    """Mean F-score of the examples, 0 to 100; of several references the best match counts.

    `variant` is rouge1 (words), rouge2 (word pairs; a text of one word has none and scores 0), rougeL (longest common
    subsequence of words, line breaks ignored) or rougeLsum (the same sentence by sentence, where each line is a
    sentence; it differs from rougeL only if both sides have line breaks). As in rouge-score, an empty text scores 0,
    even against an empty reference. `use_stemmer=True` applies the English Porter stemmer, and with it rouge-score's
    ASCII tokenizer. The signature states which words were compared.
    """
    lists = reference_lists(predictions, references)
    scorer = RougeScorer([variant], tokenizer=DefaultTokenizer(use_stemmer=True) if use_stemmer else AllScripts())
    rows = [
        (scorer.score_multi(texts, prediction)[variant].fmeasure, 1)
        for prediction, texts in zip(predictions, lists, strict=True)
    ]
    sentences = "sentences:lines|" if variant == "rougeLsum" else ""
    words = "words:ascii|stem:porter" if use_stemmer else "words:all-scripts|stem:no"
    return Statistics(
        rows=np.array(rows, dtype=np.float64),
        score_of_sum=lambda total: 100 * total[0] / total[1],
        signature=f"{sentences}{words}|version:{version('rouge-score')}",
    )
