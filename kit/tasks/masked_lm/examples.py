"""Masked texts as examples: tokens, some of which a batch masks, differently each time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from kit.data.batching.packing import pack_masked_rows
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.tasks.masked_lm.masking import Masking
from kit.tasks.masked_lm.sentence_pairs import SentencePair
from kit.training.objective import Batch


@dataclass(frozen=True)
class MaskedExamples:
    """Rows of tokens with their special tokens, before masking."""

    rows: RaggedTokens
    """Each token as 2 · id + whether it begins a word."""
    first_lengths: np.ndarray | None
    """For pairs: the number of tokens up to and including the first separator."""
    pair_labels: np.ndarray | None
    """For pairs: 0 if the second segment follows the first."""
    masking: Masking
    special: np.ndarray
    """Ids that are never masked."""
    pad: int
    whole_word_mask: bool
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Documents and segments that make no pair, by reason."""
    truncated: int = 0
    """Always 0: blocks and pairs are made to fit."""

    @classmethod
    def of_blocks(
        cls, documents: RaggedTokens, tokenizer: PreTrainedTokenizerBase, block_size: int, **settings: Any
    ) -> Self:
        """Pack the marked tokens of documents into full blocks."""
        start, separator = marked_specials(tokenizer)
        return cls(pack_masked_rows(documents, start, separator, block_size), None, None, **settings)

    @classmethod
    def of_pairs(cls, pairs: Sequence[SentencePair], tokenizer: PreTrainedTokenizerBase, **settings: Any) -> Self:
        """Make examples of pairs of segments of marked tokens: [CLS] first [SEP] second [SEP]."""
        start, separator = marked_specials(tokenizer)
        return cls(
            RaggedTokens([start, *pair.first, separator, *pair.second, separator] for pair in pairs),
            np.array([len(pair.first) + 2 for pair in pairs], dtype=np.int64),
            np.array([pair.label for pair in pairs], dtype=np.int64),
            **settings,
        )

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
        """The tokens of the first and of the second segments of pairs, without special tokens; None for blocks."""
        if self.first_lengths is None:
            return None
        rows = [self.rows[index] >> 1 for index in range(len(self))]
        first = RaggedTokens(row[1 : length - 1] for row, length in zip(rows, self.first_lengths, strict=True))
        return first, RaggedTokens(row[length:-1] for row, length in zip(rows, self.first_lengths, strict=True))

    def batch(self, indices: np.ndarray, random: np.random.Generator) -> Batch:
        """Mask these examples: `input_ids`, `attention_mask` and `labels`, and for pairs also segments and labels of
        pairs."""
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

    @property
    def can_be_evaluated(self) -> bool:
        """Whether an evaluation masks any token of these examples."""
        batches = (self.evaluation_batch(np.array([index])) for index in range(len(self)))
        return any(bool((batch["labels"] != IGNORE_INDEX).any()) for batch in batches)

    def evaluation_batch(self, indices: np.ndarray) -> Batch:
        """Make a batch for evaluation. The index of each example seeds its mask, so that the other examples do not
        matter."""
        singles = [self.batch(np.array([index]), np.random.default_rng([0, int(index)])) for index in indices]
        longest = max(single["input_ids"].shape[1] for single in singles)
        padding = {"input_ids": self.pad, "labels": IGNORE_INDEX, "attention_mask": 0, "token_type_ids": 0}

        def padded(name: str, tensor: torch.Tensor) -> torch.Tensor:
            if name not in padding:
                return tensor
            return nn.functional.pad(tensor, (0, longest - tensor.shape[1]), value=padding[name])

        return {name: torch.cat([padded(name, single[name]) for single in singles]) for name in singles[0]}


def marked_specials(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """The first token of every text and the one that ends a segment, each as 2 · id + 1: it begins a word."""
    return (tokenizer.cls_token_id << 1) + 1, (tokenizer.sep_token_id << 1) + 1
