"""Pairs of text segments for next-sentence prediction, made as in the BERT paper."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

IS_NEXT, IS_NOT_NEXT = 0, 1
SHORT = 0.1
"""Share of the pairs that are made shorter than there is room for, so that the model meets short texts too."""

Document = Sequence[Sequence[int]]
"""A document as its sentences, each a list of token ids."""


@dataclass(frozen=True)
class SentencePair:
    """Two segments and whether the second follows the first (0) or not (1)."""

    first: list[int]
    second: list[int]
    label: int


def make_pairs(
    documents: Sequence[Document], room: int, random: np.random.Generator, swap: bool = False
) -> Iterator[SentencePair]:
    """Go once through all documents and cut them into pairs of segments of whole sentences, `room` tokens at most.

    Half of the time the second segment is what follows. Otherwise it comes from another document, and what would have
    followed is used for the next pair; with `swap` (sentence-order prediction) the two segments change places instead.
    Where there is but one document, all pairs are true ones or swapped.
    """
    filled = [[list(sentence) for sentence in document if len(sentence)] for document in documents]
    filled = [document for document in filled if document]
    forced = 0  # pairs that had to be false ones, of which there are as many fewer later: half and half in the end
    for number, document in enumerate(filled):
        start = 0
        while start < len(document):
            wanted = room if random.random() >= SHORT else int(random.integers(2, room + 1))
            end, length = start, 0
            # at least two sentences where there are two, however long: what is beyond the room is cut off later
            while end < len(document) and (end - start < 2 or length < wanted):
                length += len(document[end])
                end += 1
            cut = start + 1 if end - start < 2 else start + int(random.integers(1, end - start))
            first = joined(document[start:cut])
            follows = joined(document[cut:end])
            apart = random.random() < 0.5
            if swap or len(filled) < 2:
                if not follows:  # one long sentence has no second part
                    start = end
                    continue
                label = IS_NOT_NEXT if apart and swap else IS_NEXT
                second, first = (first, follows) if label == IS_NOT_NEXT else (follows, first)
            elif apart and forced and follows:
                forced -= 1
                second, label = follows, IS_NEXT
            elif apart or not follows:
                forced += not apart
                second, label = other_text(filled, number, wanted - len(first), random), IS_NOT_NEXT
                end = cut  # what would have followed begins the next pair
            else:
                second, label = follows, IS_NEXT
            start = end
            shorten(first, second, room, random)
            yield SentencePair(first, second, label)


def joined(sentences: Document) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def other_text(documents: Sequence[Document], number: int, wanted: int, random: np.random.Generator) -> list[int]:
    """Sentences from a random place of a document that is not number `number`."""
    other = int(random.integers(len(documents) - 1))
    document = documents[other + (other >= number)]
    place = int(random.integers(len(document)))
    text: list[int] = []
    for sentence in document[place:]:
        text += sentence
        if len(text) >= wanted:
            break
    return text


def shorten(first: list[int], second: list[int], room: int, random: np.random.Generator) -> None:
    """Take tokens from the longer segment, at its beginning or its end, until both fit."""
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        del longer[0 if random.random() < 0.5 else -1]
