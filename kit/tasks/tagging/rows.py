"""Sentences and their tags as the data has them: words, tags in the scheme of the recipe, and all tags there are."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from datasets import Dataset

from kit.data.rows import ColumnView
from kit.data.text.tag_schemes import OUTSIDE, Conversion, all_tags, convert, split_tag
from kit.errors import DataError
from kit.tasks.families.labeling.labels import LabelReader, feature_names, in_order, numbered
from kit.tasks.tagging.recipe import TaggingData

Sentences = list[list[str]]
"""A word or a tag for each word of each sentence."""


def words_of_rows(rows: Dataset, data: TaggingData, split: str) -> Sentences:
    """The words of each sentence. Raises DataError if a row does not hold a list of texts."""
    sentences: list[Any] = list(ColumnView(rows, "tokens"))
    for row, words in enumerate(sentences, start=1):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DataError(
                f"data.tokens: {data.path}, {split}, row {row}: expected a list of words, got "
                f"{str(words)[:60]!r}. Sentences in columns of words and tags are read from .conll files."
            )
    return sentences


def tags_of_rows(rows: Dataset, data: TaggingData, split: str) -> Conversion:
    """The tags of each sentence, converted to the scheme of the recipe. Raises DataError for unusable tags."""
    reader = LabelReader.of(rows, "tags", data.label_names, f"data.tags: {data.path}, {split}")
    sequences: Sentences = []
    for (row, cell), words in zip(numbered(rows, "tags"), ColumnView(rows, "tokens"), strict=True):
        tags = reader.listed(cell, row)
        if len(tags) != len(words):
            raise DataError(f"{reader.where}, row {row}: {len(tags)} tags for {len(words)} words.")
        sequences.append(tags)
    if data.scheme == "none":
        return Conversion(sequences, "none", 0)
    try:
        return convert(sequences, data.scheme)
    except DataError as error:
        raise DataError(f"{reader.where}: {error} For tags that are not spans, set data.scheme: none.") from None


def find_labels(train: Dataset, data: TaggingData) -> list[str]:
    """All tags that a word can have, in the model's order. Raises DataError if there is only one.

    They are those of the training data and those that the recipe or the data set names; in a scheme of spans, every
    tag of their types.
    """
    seen = {tag for tags in tags_of_rows(train, data, "train").sequences for tag in tags}
    named = data.label_names or feature_names(train, "tags") or ()
    tags = [*seen, *named]
    labels = in_order(tags) if data.scheme == "none" else all_tags(span_types(tags), data.scheme)
    if len(labels) < 2:
        only = f'only the tag "{labels[0]}"' if labels else "no tags"
        raise DataError(f"data.tags: the training data of {data.path} has {only}: there is nothing to learn.")
    return labels


def span_types(tags: Iterable[str]) -> set[str]:
    """The types of the spans that these tags mark; names of other tags, which a data set may list, mark none."""
    types = set[str]()
    for tag in tags:
        with suppress(DataError):
            letter, kind = split_tag(tag)
            types |= {kind} if letter != OUTSIDE else set()
    return types


def continuation_tag(tag: str, scheme: str) -> str:
    """The tag of the second and later tokens of a word with this tag."""
    return f"I{tag[1:]}" if scheme in ("BIO", "IOB1") and tag[:1] == "B" else tag
