"""Encoded texts as the inputs of a model: tokenized in chunks, truncated, and padded to batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from kit.data.batching.ragged import RaggedTokens

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

CHUNK_ROWS = 1000
"""Rows that are tokenized at once: bounds the memory of their offsets and word ids."""


@dataclass(frozen=True)
class Inputs:
    """The model inputs of each example."""

    tokens: dict[str, RaggedTokens]
    """`input_ids`, and `token_type_ids` if the model has segments."""
    padding: dict[str, int]
    """The padding value of each."""
    full_lengths: np.ndarray | None = None
    """Number of tokens of each example before truncation, where that differs."""

    @classmethod
    def of(
        cls,
        lists: dict[str, list[list[int]]],
        tokenizer: "PreTrainedTokenizerBase",
        full_lengths: np.ndarray | None = None,
    ) -> Self:
        """Make inputs of the output of a tokenizer, by name. Attention masks are left out, because they follow from
        the lengths."""
        padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        tokens = {name: RaggedTokens(lists[name]) for name in padding if name in lists}
        return cls(tokens, {name: padding[name] for name in tokens}, full_lengths)

    def __len__(self) -> int:
        return len(self.tokens["input_ids"])

    @property
    def lengths(self) -> np.ndarray:
        return self.tokens["input_ids"].lengths

    def select(self, indices: np.ndarray) -> Self:
        full_lengths = None if self.full_lengths is None else self.full_lengths[indices]
        tokens = {name: lists.select(indices) for name, lists in self.tokens.items()}
        return replace(self, tokens=tokens, full_lengths=full_lengths)

    def batch(self, indices: np.ndarray) -> dict[str, Tensor]:
        """The inputs of these examples with their attention mask, padded to the longest one."""
        batch = {name: lists.padded(indices, self.padding[name]) for name, lists in self.tokens.items()}
        lengths = torch.from_numpy(self.lengths[indices])
        mask = torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]  # (batch, longest)
        return batch | {"attention_mask": mask.long()}


@dataclass(frozen=True)
class LabeledExamples(ABC):
    """Encoded examples with their labels, which a subclass adds."""

    inputs: Inputs
    truncated: int = field(default=0, kw_only=True)
    """Number of examples that were truncated to what the model can read."""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    @abstractmethod
    def batch(self, indices: np.ndarray) -> dict[str, Tensor]:
        """The inputs of these examples with their labels."""


@dataclass(frozen=True)
class Tokenized:
    """Rows as the inputs of a model, with what the tokenizer knows about their tokens."""

    inputs: Inputs
    too_long: np.ndarray
    """Whether each row had too many tokens, and is truncated."""
    encodings: "list[tuple[BatchEncoding, int]]"
    """For each row the encoding that contains it, and its index there."""


def tokenize(
    tokenizer: "PreTrainedTokenizerBase",
    encode: "Callable[..., BatchEncoding]",
    rows: Sequence[Any],
    limit: int | None,
    truncation: str,
) -> Tokenized:
    """Tokenize rows with `encode`, which calls the tokenizer, and truncate them to `limit` tokens; None for no limit.

    Rows are truncated in a second pass: the first one gives their full lengths, which the data report shows.
    """
    encodings: list[tuple[BatchEncoding, int]] = []
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = rows[start : start + CHUNK_ROWS]
        encoding = encode(chunk, verbose=False)
        encodings += [(encoding, index) for index in range(len(chunk))]
    lengths = np.array([len(encoding["input_ids"][index]) for encoding, index in encodings], dtype=np.int64)
    too_long = lengths > (np.inf if limit is None else limit)
    selected = np.flatnonzero(too_long)
    # these rows are dropped from train, but evaluated all the same
    strategy = "longest_first" if truncation == "do_not_truncate" else truncation
    for start in range(0, len(selected), CHUNK_ROWS):
        indices = selected[start : start + CHUNK_ROWS]
        encoding = encode([rows[row] for row in indices], truncation=strategy, max_length=limit, verbose=False)
        for index, row in enumerate(indices):
            encodings[row] = (encoding, index)
    names = encodings[0][0].keys() if encodings else ()
    lists = {name: [encoding[name][index] for encoding, index in encodings] for name in names}
    return Tokenized(Inputs.of(lists, tokenizer, lengths), too_long, encodings)
