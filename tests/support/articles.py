"""Generated articles in the layout of WikiText, whose headings give next-sentence prediction away."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kit.tasks.masked_lm.sentence_pairs import IS_NEXT, IS_NOT_NEXT, SentencePair, joined, truncate_pair

WORDS = ["the", "old", "stone", "bridge", "crosses", "a", "wide", "river", "where", "people", "walk", "under", "trees"]


def sentence(random: np.random.Generator, topic: str) -> str:
    words = [*random.choice(WORDS, random.integers(3, 9)), topic]
    random.shuffle(words)
    return " ".join(words).capitalize() + " ."


def article(random: np.random.Generator, number: int) -> str:
    """An article of two sections, each with two paragraphs; as in WikiText, its blank lines have a space."""
    topic = f"topic{number}"
    paragraphs = [" ".join(sentence(random, topic) for _ in range(random.integers(1, 6))) for _ in range(4)]
    headings = [f"= {topic} =", "= = First = =", "= = Second = ="]
    parts = [headings[0], headings[1], *paragraphs[:2], headings[2], *paragraphs[2:]]
    return "".join(f" {part}\n \n" for part in parts)


def write_articles(folder: Path, number: int = 60) -> Path:
    """A text file with articles, and one with a few others for validation."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    texts = [article(random, index) for index in range(number + 12)]
    (folder / "train.txt").write_text("".join(texts[:number]), encoding="utf-8")
    (folder / "validation.txt").write_text("".join(texts[number:]), encoding="utf-8")
    return folder


def bert_pairs(
    documents: Sequence[Sequence[list[int]]], max_length: int, random: np.random.Generator
) -> Iterator[SentencePair]:
    """Pairs as the BERT paper makes them: the second segment is a random one if there is no other, and so often
    otherwise that about half of the pairs are in sequence."""
    forced = 0
    for number, document in enumerate(documents):
        start = 0
        while start < len(document):
            end, length = start, 0
            while end < len(document) and (end - start < 2 or length < max_length):
                length += len(document[end])
                end += 1
            middle = start + 1 if end - start < 2 else start + int(random.integers(1, end - start))
            first, second, label = joined(document[start:middle]), joined(document[middle:end]), IS_NEXT
            negative = random.random() < 0.5
            if second and negative and forced:
                forced -= 1
            elif negative or not second:
                forced += not negative
                other = int(random.integers(len(documents) - 1))
                second, label, end = joined(documents[other + (other >= number)]), IS_NOT_NEXT, middle
            start = end
            truncate_pair(first, second, max_length, random)
            yield SentencePair(first, second, label)
