"""ROUGE of summaries and other texts, by rouge-score, with words of all scripts."""

from collections.abc import Sequence
from importlib.metadata import version

import numpy as np
import regex
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer, Tokenizer

from kit.evaluation.metrics.text_metric import Statistics, TextMetric

_WITHOUT_SPACES = r"\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_WORD = regex.compile(
    rf"(?V1)[{_WITHOUT_SPACES}&&[\p{{L}}\p{{N}}]]\p{{M}}*|[[\p{{L}}\p{{M}}\p{{N}}]--[{_WITHOUT_SPACES}]]+"
)


class AllScripts(Tokenizer):
    """Words in lower case: runs of letters and digits; in scripts that put no space between words, single letters.

    On text whose letters are all ASCII this is what rouge-score itself does. That, however, drops every other letter:
    a perfect Russian summary scores 0 there, and "café" counts as "caf".
    """

    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text.lower())


class Rouge(TextMetric):
    """Mean F-score of the examples, 0 to 100; of several references the one that fits best counts.

    As rouge-score computes it, so that an empty text scores 0, even against an empty reference. Without stemming
    unless `use_stemmer=True`, which knows English only and hence splits words as rouge-score does. The signature says
    which words were compared.
    """

    kind: str
    sentences = ""
    """What the signature says about sentences."""

    def statistics(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]], use_stemmer: bool = False
    ) -> Statistics:
        scorer = RougeScorer([self.kind], tokenizer=DefaultTokenizer(use_stemmer=True) if use_stemmer else AllScripts())
        rows = [
            (scorer.score_multi(texts, prediction)[self.kind].fmeasure, 1)
            for prediction, texts in zip(predictions, references, strict=True)
        ]
        words = "words:ascii|stem:porter" if use_stemmer else "words:all-scripts|stem:no"
        return Statistics(
            rows=np.array(rows, dtype=np.float64),
            score=lambda total: 100 * total[0] / total[1],
            signature=f"{self.sentences}{words}|version:{version('rouge-score')}",
        )


class Rouge1(Rouge):
    """ROUGE-1, 0 to 100: mean F-score of single words."""

    kind = "rouge1"


class Rouge2(Rouge):
    """ROUGE-2, 0 to 100: mean F-score of pairs of neighbouring words; a text of one word has none, and scores 0."""

    kind = "rouge2"


class RougeL(Rouge):
    """ROUGE-L, 0 to 100: mean F-score of the longest common subsequence of words, line breaks ignored."""

    kind = "rougeL"


class RougeLsum(Rouge):
    """ROUGE-Lsum, 0 to 100: as ROUGE-L, but sentence by sentence, where each line is a sentence.

    Text on one line is one sentence, whatever it holds: then this is ROUGE-L. Only texts of which both sides have
    line breaks between sentences are worth comparing by it.
    """

    kind = "rougeLsum"
    sentences = "sentences:lines|"
