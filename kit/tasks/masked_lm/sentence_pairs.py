"""Pairs of text segments for next-sentence and sentence-order prediction, in which neither segment alone, nor the
lengths of both, give the label away.

BERT draws a random second segment for half of the first ones. Then whatever distinguishes random segments from
following ones predicts the label: a document of one sentence, such as a heading on a line of its own, has no following
segment, so that all pairs with it are negative. Here, all text is first divided into pairs of consecutive segments.
Each is coupled with one of another document, and half of the couples, chosen at random, exchange their second segments.
Both labels therefore have the same segments and, as the second segments of a couple are made equally long, the same
lengths.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

IS_NEXT, IS_NOT_NEXT = 0, 1
LABEL_NAMES = {"next_sentence": ("next", "not next"), "sentence_order": ("in order", "swapped")}
"""The names of both labels by data.pairs."""
SHARE_SHORT = 0.1
"""Share of pairs shorter than the maximum, so that the model sees short texts too: `short_seq_prob` of BERT."""
SCHEME = 2
"""Version of the way in which pairs are made: cached pairs of another version are not used."""

Document = Sequence[Sequence[int]]
"""A document as its sentences, each a list of token ids."""


@dataclass(frozen=True)
class SentencePair:
    """Two segments and whether the second follows the first (0) or not (1)."""

    first: list[int]
    second: list[int]
    label: int


@dataclass(frozen=True)
class SentencePairs:
    """The pairs of some documents, and what could not be paired."""

    pairs: list[SentencePair]
    one_sentence: int
    """Number of documents with a single sentence, which has no second segment."""
    uncoupled: int = 0
    """Number of consecutive pairs for which no other document had one left to exchange segments with."""


@dataclass
class Consecutive:
    """Two consecutive segments of a document."""

    document: int
    first: list[int]
    second: list[int]


def make_pairs(
    documents: Sequence[Document], max_length: int, random: np.random.Generator, swap: bool = False
) -> SentencePairs:
    """Divide all documents once into pairs of segments of whole sentences, of at most `max_length` tokens.

    Of half of the pairs, the second segment follows the first; of the others it comes from another document, or with
    `swap` (sentence-order prediction), the two segments are swapped.
    """
    nonempty = [[list(sentence) for sentence in document if len(sentence)] for document in documents]
    consecutive = [
        pair
        for number, document in enumerate(nonempty)
        for pair in divide(number, document, max_length, random)
    ]  # fmt: skip
    one_sentence = sum(len(document) == 1 for document in nonempty)
    if swap:
        swapped = half(len(consecutive), random)
        pairs = [
            SentencePair(pair.second, pair.first, IS_NOT_NEXT) if is_swapped
            else SentencePair(pair.first, pair.second, IS_NEXT)
            for pair, is_swapped in zip(consecutive, swapped, strict=True)
        ]  # fmt: skip
        return SentencePairs(pairs, one_sentence)
    couples = couple(consecutive, random)
    seconds: dict[int, tuple[list[int], int]] = {}
    for (first, second), exchanged in zip(couples, half(len(couples), random), strict=True):
        length = min(len(consecutive[first].second), len(consecutive[second].second))
        for index, partner in ((first, second), (second, first)):
            text = consecutive[partner if exchanged else index].second[:length]
            seconds[index] = text, IS_NOT_NEXT if exchanged else IS_NEXT
    pairs = [SentencePair(consecutive[index].first, *seconds[index]) for index in sorted(seconds)]
    return SentencePairs(pairs, one_sentence, len(consecutive) - len(pairs))


def divide(number: int, document: Document, max_length: int, random: np.random.Generator) -> list[Consecutive]:
    """Divide a document into pairs of consecutive segments, in order; a single last sentence is left out.

    Half of the documents are divided from their end: a pair ends with the sentence that exceeds its length, and a long
    sentence is more likely to. From one side only, second segments would be longer than first ones.
    """
    backward = random.random() < 0.5
    sentences = document[::-1] if backward else document
    pairs, start = [], 0
    while len(sentences) - start >= 2:
        target = max_length if random.random() >= SHARE_SHORT else int(random.integers(2, max_length + 1))
        end, length = start, 0
        # at least two sentences, however long: truncated later
        while end < len(sentences) and (end - start < 2 or length < target):
            length += len(sentences[end])
            end += 1
        part = sentences[start:end][::-1] if backward else sentences[start:end]
        middle = int(random.integers(1, len(part)))
        pair = Consecutive(number, joined(part[:middle]), joined(part[middle:]))
        truncate_pair(pair.first, pair.second, max_length, random)
        pairs.append(pair)
        start = end
    return pairs[::-1] if backward else pairs


def joined(sentences: Document) -> list[int]:
    """The tokens of all sentences in one list."""
    return [token for sentence in sentences for token in sentence]


def truncate_pair(first: list[int], second: list[int], max_length: int, random: np.random.Generator) -> None:
    """Remove tokens from the start or the end of the longer segment, of either if both are equal, until both fit
    `max_length`."""
    while len(first) + len(second) > max_length:
        is_first = random.random() < 0.5 if len(first) == len(second) else len(first) > len(second)
        longer = first if is_first else second
        del longer[0 if random.random() < 0.5 else -1]


def half(count: int, random: np.random.Generator) -> list[bool]:
    """Choose half of `count` items at random; of an odd count, one more or one fewer."""
    chosen = np.arange(count) % 2 == random.integers(2)
    random.shuffle(chosen)
    return chosen.tolist()


def couple(pairs: Sequence[Consecutive], random: np.random.Generator) -> list[tuple[int, int]]:
    """Couple pairs of different documents whose second segments are about equally long; returns their indices.

    There are as many couples as possible. Pairs are left over if their document has more than all others together, or
    if their number is odd.
    """

    def length(index: int) -> int:
        return len(pairs[index].second)

    def without(document: int, couple: tuple[int, int]) -> bool:
        return all(pairs[index].document != document for index in couple)

    shuffled = random.permutation(len(pairs)).tolist()
    couples: list[tuple[int, int]] = []
    waiting: list[int] = []  # all of one document
    for index in sorted(without_surplus(pairs, shuffled), key=length):
        if waiting and pairs[waiting[-1]].document != pairs[index].document:
            couples.append((waiting.pop(), index))
        else:
            waiting.append(index)
    if len(waiting) < 2:
        return couples
    # two that wait can share the members of a couple without their document
    document = pairs[waiting[0]].document
    divisible = [pair for pair in couples if without(document, pair)]
    couples = [pair for pair in couples if not without(document, pair)]
    lengths = [length(longer) for _, longer in divisible]  # ascending
    while len(waiting) >= 2 and divisible:
        longer, shorter = waiting.pop(), waiting.pop()
        nearest = min(bisect_left(lengths, length(longer)), len(divisible) - 1)
        del lengths[nearest]
        first, second = divisible.pop(nearest)
        couples += [(shorter, first), (longer, second)]
    return couples + divisible


def without_surplus(pairs: Sequence[Consecutive], order: list[int]) -> list[int]:
    """Remove from `order` the last pairs of a document that has more pairs than all others together, until it has as
    many."""
    counts = Counter(pair.document for pair in pairs)
    document, count = max(counts.items(), key=itemgetter(1), default=(0, 0))
    surplus = 2 * count - len(pairs)
    if surplus <= 0:
        return order
    dropped = {*[index for index in order if pairs[index].document == document][-surplus:]}
    return [index for index in order if index not in dropped]
