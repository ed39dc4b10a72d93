"""Pairs of text segments for next-sentence prediction, built as in the BERT paper."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

IS_NEXT, IS_NOT_NEXT = 0, 1
SHARE_SHORT = 0.1
"""Share of pairs that are shorter than the maximum, so that the model sees short texts too."""

Document = Sequence[Sequence[int]]
"""A document as its sentences, each a list of token ids."""


@dataclass(frozen=True)
class SentencePair:
    """Two segments and whether the second follows the first (0) or not (1)."""

    first: list[int]
    second: list[int]
    label: int


def make_pairs(
    documents: Sequence[Document], max_length: int, random: np.random.Generator, swap: bool = False
) -> Iterator[SentencePair]:
    """Split all documents once into pairs of segments of whole sentences, of at most `max_length` tokens.

    Half of the time the second segment follows the first. Otherwise it comes from another document, and what would have
    followed starts the next pair; with `swap` (sentence-order prediction) the two segments are swapped instead. With a
    single document, all pairs are in sequence or swapped.
    """
    nonempty = [[list(sentence) for sentence in document if len(sentence)] for document in documents]
    nonempty = [document for document in nonempty if document]
    forced = 0  # pairs that had to be negative: as many later ones are positive instead, so that half are in the end
    for number, document in enumerate(nonempty):
        start = 0
        while start < len(document):
            target = max_length if random.random() >= SHARE_SHORT else int(random.integers(2, max_length + 1))
            end, length = start, 0
            # at least two sentences where there are two, however long: truncated later
            while end < len(document) and (end - start < 2 or length < target):
                length += len(document[end])
                end += 1
            middle = start + 1 if end - start < 2 else start + int(random.integers(1, end - start))
            first = joined(document[start:middle])
            follows = joined(document[middle:end])
            negative = random.random() < 0.5
            if swap or len(nonempty) < 2:
                if not follows:  # one long sentence has no second part
                    start = end
                    continue
                label = IS_NOT_NEXT if negative and swap else IS_NEXT
                second, first = (first, follows) if label == IS_NOT_NEXT else (follows, first)
            elif negative and forced and follows:
                forced -= 1
                second, label = follows, IS_NEXT
            elif negative or not follows:
                forced += not negative
                second, label = other_text(nonempty, number, target - len(first), random), IS_NOT_NEXT
                end = middle  # what would have followed starts the next pair
            else:
                second, label = follows, IS_NEXT
            start = end
            truncate_pair(first, second, max_length, random)
            yield SentencePair(first, second, label)


def joined(sentences: Document) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def other_text(documents: Sequence[Document], number: int, length: int, random: np.random.Generator) -> list[int]:
    """At least `length` tokens, if there are as many, from a random sentence on of a document other than `number`."""
    other = int(random.integers(len(documents) - 1))
    document = documents[other + (other >= number)]
    start = int(random.integers(len(document)))
    text: list[int] = []
    for sentence in document[start:]:
        text += sentence
        if len(text) >= length:
            break
    return text


def truncate_pair(first: list[int], second: list[int], max_length: int, random: np.random.Generator) -> None:
    """Remove tokens at the start or the end of the longer segment until both fit."""
    while len(first) + len(second) > max_length:
        longer = first if len(first) > len(second) else second
        del longer[0 if random.random() < 0.5 else -1]
