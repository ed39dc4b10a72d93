"""CIDEr of captions: do they say what is special about a picture?"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from kit.evaluation.metrics.rouge import AllScripts
from kit.evaluation.metrics.text_metric import Statistics, TextMetric

LONGEST = 4
"""Most words of an n-gram."""

DEVIATION = 6.0
"""In words: how far in length a caption may be off before that costs much."""

Counts = Counter[tuple[str, ...]]


class Cider(TextMetric):
    """CIDEr-D, 0 to 100: mean cosine of n-grams of one to four words, weighted by how few pictures they are said of.

    All references of a picture count alike. As in CIDEr-D, a repeated word counts no more often than a reference has
    it, and a caption is worth less the more it differs in length. Unlike there, n-grams that the references of all
    pictures have still weigh a little, and a reference of fewer than four words is compared by the n-grams that it has,
    so that a perfect caption gets 100, however short. What papers report is ten times as large. An n-gram's weight
    comes from the references of all examples: figures of two sets do not compare.
    """

    def statistics(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Statistics:
        words = AllScripts().tokenize
        counted = [[ngrams(words(text)) for text in texts] for texts in references]
        pictures = Counter(ngram for texts in counted for ngram in {ngram for counts in texts for ngram in counts})
        weight = {ngram: math.log((1 + len(references)) / count) for ngram, count in pictures.items()}
        rare = math.log(1 + len(references))
        rows = []
        for prediction, texts in zip(predictions, counted, strict=True):
            found = ngrams(words(prediction))
            rows.append((sum(similarity(found, counts, weight, rare) for counts in texts) / len(texts), 1))
        return Statistics(
            rows=np.array(rows, dtype=np.float64),
            score=lambda total: 100 * total[0] / total[1],
            signature=f"n:{LONGEST}|sigma:{DEVIATION:g}|words:all-scripts|stem:no|idf:references",
        )


def ngrams(words: Sequence[str]) -> Counts:
    """How often each sequence of up to LONGEST words occurs."""
    starts = ((start, length) for length in range(1, LONGEST + 1) for start in range(len(words) - length + 1))
    return Counter(tuple(words[start : start + length]) for start, length in starts)


def similarity(found: Counts, right: Counts, weight: dict[tuple[str, ...], float], rare: float) -> float:
    """How alike two texts are, 0 to 1; `rare` is the weight of n-grams that no reference has."""
    lengths = [sum(count for ngram, count in counts.items() if len(ngram) == 1) for counts in (found, right)]
    if not lengths[1]:
        return float(not lengths[0])  # nothing to say, and nothing said
    cosines = []
    for length in range(1, min(LONGEST, lengths[1]) + 1):
        ours, theirs = (
            {ngram: count * weight.get(ngram, rare) for ngram, count in counts.items() if len(ngram) == length}
            for counts in (found, right)
        )
        product = sum(min(value, theirs[ngram]) * theirs[ngram] for ngram, value in ours.items() if ngram in theirs)
        norms = math.hypot(*ours.values()) * math.hypot(*theirs.values())
        cosines.append(product / norms if norms else 0.0)
    penalty = math.exp(-((lengths[0] - lengths[1]) ** 2) / (2 * DEVIATION**2))
    return penalty * sum(cosines) / len(cosines)
