"""Sentences with tags as examples: which tokens belong to which word, and the label of each token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.errors import DataError
from kit.tasks.families.labeling.examples import Inputs, LabeledExamples, tokenize
from kit.tasks.tagging.recipe import TaggingData
from kit.tasks.tagging.rows import Sentences, continuation_tag
from kit.training.objective import Batch


@dataclass(frozen=True)
class TaggedSentences(LabeledExamples):
    """Encoded sentences with the tags of their tokens."""

    labels: RaggedTokens
    """The index of the tag of each token, or -100."""
    first_tokens: RaggedTokens
    """The first token of each word; -1 for a word without tokens."""

    @property
    def without_tokens(self) -> int:
        """Number of words without a token: words of control characters only, and words beyond the length limit."""
        return int((self.first_tokens.flat < 0).sum())

    def batch(self, indices: np.ndarray) -> Batch:
        return self.inputs.batch(indices) | {"labels": self.labels.padded(indices, IGNORE_INDEX)}

    def select(self, indices: np.ndarray) -> "TaggedSentences":
        inputs, labels = self.inputs.select(indices), self.labels.select(indices)
        return TaggedSentences(inputs, labels, self.first_tokens.select(indices))


@dataclass(frozen=True)
class WordTokens:
    """Encoded sentences, with the alignment of tokens and words."""

    inputs: Inputs
    word_ids: list[list[int | None]]
    """The index of the word of each token; None for special tokens."""
    first_tokens: list[list[int]]
    """The first token of each word; -1 for a word without tokens."""
    too_long: np.ndarray
    """Whether each sentence had too many tokens, and is truncated."""


def tokenize_words(
    sentences: Sentences, tokenizer: PreTrainedTokenizerBase, limit: int | None, truncation: str
) -> WordTokens:
    """Tokenize sentences, truncated to `limit` tokens, and align tokens with words."""
    tokenized = tokenize(
        tokenizer,
        lambda chunk, **options: tokenizer(chunk, is_split_into_words=True, **options),
        sentences, limit, truncation,
    )  # fmt: skip
    word_ids, first_tokens = [encoding.word_ids(index) for encoding, index in tokenized.encodings], []
    for words, ids in zip(sentences, word_ids, strict=True):
        firsts = [-1] * len(words)
        for token, word in reversed(list(enumerate(ids))):  # backwards: the first token of a word is written last
            if word is not None:
                firsts[word] = token
        first_tokens.append(firsts)
    return WordTokens(tokenized.inputs, word_ids, first_tokens, tokenized.too_long)


def token_labels(
    words: WordTokens, tags: Sentences, labels: Sequence[str], data: TaggingData, split: str
) -> RaggedTokens:
    """The index in `labels` of the tag of each token, or -100.

    Raises DataError for a tag that is not among the labels.
    """
    index = {label: number for number, label in enumerate(labels)}
    ids_of_rows = []
    for row, (word_ids, first_tokens, tags_of_words) in enumerate(
        zip(words.word_ids, words.first_tokens, tags, strict=True), start=1
    ):
        ids = []
        for token, word in enumerate(word_ids):
            if word is None:
                ids.append(IGNORE_INDEX)
                continue
            is_first = first_tokens[word] == token
            tag = tags_of_words[word] if is_first else continuation_tag(tags_of_words[word], data.scheme)
            if tag not in index:
                raise DataError(
                    f'data.tags: {data.path}, {split}, row {row}: the tag "{tag}" is not among those of the training '
                    "data, so the model does not know it. Name all tags (data.label_names), leave the row out, or "
                    "train on such rows."
                )
            ids.append(index[tag] if is_first or data.label_all_tokens else IGNORE_INDEX)
        ids_of_rows.append(ids)
    return RaggedTokens(ids_of_rows)
