"""Documents laid end to end and cut into blocks, so that hardly a position is wasted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens


@dataclass(frozen=True)
class CausalBlocks:
    """Blocks for a causal language model: E d₁ E d₂ E … dₙ E, where E separates documents and starts each.

    Every token but the first is a label exactly once; labels stand beside the token that they are predicted from, so
    that the end of a block is not wasted. Only the last block can be shorter than the others.
    """

    stream: np.ndarray  # all tokens in order
    separator: int
    length: int

    @classmethod
    def of(cls, documents: RaggedTokens, separator: int, length: int) -> "CausalBlocks":
        """Lay documents end to end; empty ones are left out."""
        parts = [np.array([separator], dtype=np.int32)]
        for i in range(len(documents)):
            if documents.lengths[i]:
                parts += [documents[i], parts[0]]
        return cls(np.concatenate(parts), separator, length)

    def __len__(self) -> int:
        return -(-(len(self.stream) - 1) // self.length)

    @property
    def lengths(self) -> np.ndarray:
        """Number of labels of each block."""
        lengths = np.full(len(self), self.length, dtype=np.int64)
        if len(self):
            lengths[-1] = len(self.stream) - 1 - (len(self) - 1) * self.length
        return lengths

    def batch(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and labels of blocks, each (batch, length); a short block is filled up with separators, which are
        neither predicted nor, behind everything, seen."""
        tokens = np.full((len(indices), self.length), self.separator, dtype=np.int64)
        labels = np.full_like(tokens, IGNORE_INDEX)
        for row, index in enumerate(indices):
            start = int(index) * self.length
            end = min(start + self.length, len(self.stream) - 1)
            tokens[row, : end - start] = self.stream[start:end]
            labels[row, : end - start] = self.stream[start + 1 : end + 1]
        return tokens, labels


def document_positions(tokens: np.ndarray, separator: int) -> np.ndarray:
    """Positions (batch, length) counted anew from every separator, which transformers takes as separate documents: no
    token sees what stands before its own document."""
    places = np.arange(tokens.shape[1])
    starts = np.where(tokens == separator, places, 0)
    return places - np.maximum.accumulate(starts, axis=1)


def pack_masked_rows(documents: RaggedTokens, first: int, separator: int, length: int) -> RaggedTokens:
    """Rows for a masked language model: [CLS] tokens [SEP] tokens [SEP] …, each full but the last.

    Documents follow each other with a separator between; every token is in exactly one row.
    """
    room = length - 2
    parts: list[np.ndarray] = []
    for i in range(len(documents)):
        if documents.lengths[i]:
            parts += [documents[i], np.array([separator], dtype=np.int32)]
    stream = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
    rows = []
    for start in range(0, len(stream), room):
        row = stream[start : start + room]
        # a document that ends where the row does needs no separator beside those of the row itself
        row = row[int(row[0] == separator) : len(row) - int(len(row) > 1 and row[-1] == separator)]
        if len(row):
            rows.append(np.concatenate([[first], row, [separator]]).astype(np.int32))
    return RaggedTokens(rows)
