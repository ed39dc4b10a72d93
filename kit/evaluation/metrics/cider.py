"""CIDEr-D of captions (Vedantam et al. 2015): does a caption mention what is specific to the image?"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from kit.evaluation.metrics.base import Statistics
from kit.evaluation.metrics.rouge import AllScripts
from kit.evaluation.metrics.text import References, reference_lists

MAX_NGRAM = 4
"""In words, as in the paper."""

LENGTH_DEVIATION = 6.0
"""Standard deviation, in words, of CIDEr-D's Gaussian penalty on a difference in length."""

NgramCounts = Counter[tuple[str, ...]]


def cider(predictions: Sequence[str], references: References) -> Statistics:
    """CIDEr-D, 0 to 100: mean cosine of n-grams of one to four words, weighted by how few images they describe.

    All references of an image weigh the same. As in CIDEr-D, a repeated word counts no more often than in the
    reference, and a difference in length lowers the score. Unlike CIDEr-D, n-grams that occur for every image keep a
    small weight, and a reference of fewer than four words is compared only by the n-grams it has, so that a perfect
    caption scores 100 however short it is. Figures in papers are ten times as large. The n-gram weights come from the
    references of all examples: figures of two data sets cannot be compared.
    """
    lists = reference_lists(predictions, references)
    tokenize = AllScripts().tokenize
    counted = [[count_ngrams(tokenize(text)) for text in texts] for texts in lists]
    images = Counter(ngram for texts in counted for ngram in {ngram for counts in texts for ngram in counts})
    idf = {ngram: math.log((1 + len(lists)) / count) for ngram, count in images.items()}
    unseen_idf = math.log(1 + len(lists))
    rows = []
    for prediction, texts in zip(predictions, counted, strict=True):
        predicted = count_ngrams(tokenize(prediction))
        rows.append((sum(similarity(predicted, counts, idf, unseen_idf) for counts in texts) / len(texts), 1))
    return Statistics(
        rows=np.array(rows, dtype=np.float64),
        score_of_sum=lambda total: 100 * total[0] / total[1],
        signature=f"n:{MAX_NGRAM}|sigma:{LENGTH_DEVIATION:g}|words:all-scripts|stem:no|idf:references",
    )


def count_ngrams(words: Sequence[str]) -> NgramCounts:
    """How often each sequence of up to MAX_NGRAM words occurs."""
    spans = ((start, length) for length in range(1, MAX_NGRAM + 1) for start in range(len(words) - length + 1))
    return Counter(tuple(words[start : start + length]) for start, length in spans)


def similarity(
    predicted: NgramCounts, reference: NgramCounts, idf: Mapping[tuple[str, ...], float], unseen_idf: float
) -> float:
    """Similarity of two texts, 0 to 1; `unseen_idf` is the weight of n-grams that occur in no reference."""
    lengths = [sum(count for ngram, count in counts.items() if len(ngram) == 1) for counts in (predicted, reference)]
    if not lengths[1]:
        return float(not lengths[0])  # an empty caption for an empty reference is right
    cosines = []
    for length in range(1, min(MAX_NGRAM, lengths[1]) + 1):
        left, right = (
            {ngram: count * idf.get(ngram, unseen_idf) for ngram, count in counts.items() if len(ngram) == length}
            for counts in (predicted, reference)
        )
        product = sum(min(value, right[ngram]) * right[ngram] for ngram, value in left.items() if ngram in right)
        norms = math.hypot(*left.values()) * math.hypot(*right.values())
        cosines.append(product / norms if norms else 0.0)
    penalty = math.exp(-((lengths[0] - lengths[1]) ** 2) / (2 * LENGTH_DEVIATION**2))
    return penalty * sum(cosines) / len(cosines)
