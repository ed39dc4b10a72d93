"""Examples of masked language modeling: tokens that know which of them begin a word, and batches with masks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.text.sentences import split_sentences
from kit.tasks.families.language_modeling.task import PLAIN
from kit.tasks.masked_lm.masking import Masking
from kit.training.objective import Batch

BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
"""The end of a paragraph. WikiText has a space in its blank lines."""


@dataclass(frozen=True)
class MaskedExamples:
    """Rows of tokens with their special tokens, before masking."""

    rows: RaggedTokens
    """Each token as 2 · id + whether it begins a word."""
    first_lengths: np.ndarray | None
    """Of pairs: the number of tokens up to and including the first separator."""
    pair_labels: np.ndarray | None
    """Of pairs: 0 if the second segment follows the first."""
    masking: Masking
    special: np.ndarray
    """Ids that are never masked."""
    pad: int
    whole_word_mask: bool
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Documents and segments that make no pair, by reason."""
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> np.ndarray:
        return self.rows.lengths

    @cached_property
    def token_counts(self) -> np.ndarray:
        """How often each token that can be masked occurs."""
        ids = np.concatenate([self.rows[i] >> 1 for i in range(len(self))])
        return np.bincount(ids[~np.isin(ids, self.special)])

    @property
    def segments(self) -> tuple[RaggedTokens, RaggedTokens] | None:
        """Of pairs: the tokens of the first and of the second segments, without special tokens."""
        if self.first_lengths is None:
            return None
        rows = [self.rows[index] >> 1 for index in range(len(self))]
        first = RaggedTokens(row[1 : length - 1] for row, length in zip(rows, self.first_lengths, strict=True))
        return first, RaggedTokens(row[length:-1] for row, length in zip(rows, self.first_lengths, strict=True))

    def batch(self, indices: np.ndarray, random: np.random.Generator) -> Batch:
        """Masked `input_ids`, `attention_mask` and `labels`; for pairs also segments and the label of the pair."""
        packed = self.rows.padded(indices, self.pad << 1).numpy()
        ids, begins = packed >> 1, (packed & 1).astype(bool)
        real = np.arange(ids.shape[1]) < self.rows.lengths[indices][:, None]
        words = np.cumsum(begins, axis=1) if self.whole_word_mask else None
        masked, labels = self.masking(ids, real & ~np.isin(ids, self.special), random, words)
        batch = {
            "input_ids": torch.from_numpy(masked),
            "attention_mask": torch.from_numpy(real.astype(np.int64)),
            "labels": torch.from_numpy(labels),
        }
        if self.first_lengths is not None and self.pair_labels is not None:
            second = (np.arange(ids.shape[1]) >= self.first_lengths[indices][:, None]) & real
            batch["token_type_ids"] = torch.from_numpy(second.astype(np.int64))
            batch["next_sentence_label"] = torch.from_numpy(self.pair_labels[indices])
        return batch

    def evaluation_batch(self, indices: np.ndarray) -> Batch:
        """A batch in which the index of each example seeds its mask, whatever the other examples are."""
        singles = [self.batch(np.array([index]), np.random.default_rng([0, int(index)])) for index in indices]
        longest = max(single["input_ids"].shape[1] for single in singles)
        padding = {"input_ids": self.pad, "labels": IGNORE_INDEX, "attention_mask": 0, "token_type_ids": 0}

        def padded(name: str, tensor: torch.Tensor) -> torch.Tensor:
            if name not in padding:
                return tensor
            return nn.functional.pad(tensor, (0, longest - tensor.shape[1]), value=padding[name])

        return {name: torch.cat([padded(name, single[name]) for single in singles]) for name in singles[0]}


@dataclass(frozen=True)
class DocumentTokenizer:
    """Tokenizes documents and marks where words begin; a class, so that worker processes can receive it."""

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, texts: list[str]) -> RaggedTokens:
        """The marked tokens of each document."""
        return RaggedTokens(marked_tokens([one_line(text) for text in texts], self.tokenizer))


@dataclass(frozen=True)
class SentenceTokenizer:
    """Tokenizes the sentences of documents and marks where words begin; a class, as `DocumentTokenizer`."""

    tokenizer: PreTrainedTokenizerBase
    language: str

    def __call__(self, texts: list[str]) -> list[list[list[int]]]:
        """The marked tokens of each sentence of each document."""
        return [marked_tokens(self.sentences(text), self.tokenizer) for text in texts]

    def sentences(self, text: str) -> list[str]:
        """The sentences of a document, each on one line; none crosses the end of a paragraph."""
        return [
            one_line(sentence.text)
            for paragraph in BLANK_LINE.split(text)
            if paragraph.strip()
            for sentence in split_sentences(paragraph, self.language)
        ]


def one_line(text: str) -> str:
    """The text with single spaces and without line ends: the layout of a document is not part of its words."""
    return " ".join(text.split())


def marked_tokens(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The tokens of each text, each as 2 · id + whether it begins a word."""
    if not texts:
        return []
    encoding = tokenizer(texts, **PLAIN)
    marked = []
    for number, ids in enumerate(encoding["input_ids"]):
        words = encoding.word_ids(number) if tokenizer.is_fast else list(range(len(ids)))
        begins = [index == 0 or words[index] != words[index - 1] for index in range(len(ids))]
        marked.append([(token << 1) + begin for token, begin in zip(ids, begins, strict=True)])
    return marked
