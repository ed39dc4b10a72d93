"""Packing: documents are concatenated and cut into blocks of equal length, so that almost no position is padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens


@dataclass(frozen=True)
class CausalBlocks:
    """Blocks of equal length for a causal language model, taken from the stream E d₁ E d₂ E … dₙ E of all documents,
    where the separator E ends a document and starts the next one.

    Every token except the first is a label exactly once. Labels are stored at the position that they are predicted
    from (not at their own, as transformers shifts them), so that the end of a block is not wasted. Only the last block
    can be shorter than the others.
    """

    stream: np.ndarray  # all tokens in order
    separator: int
    length: int

    @classmethod
    def pack(cls, documents: RaggedTokens, separator: int, length: int) -> "CausalBlocks":
        """Concatenate documents; empty ones are skipped."""
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
        """Tokens and labels of blocks, each (batch, length).

        A short block is padded with separators. They need no mask: they have no labels, and no earlier position attends
        to them.
        """
        tokens = np.full((len(indices), self.length), self.separator, dtype=np.int64)
        labels = np.full_like(tokens, IGNORE_INDEX)
        for row, index in enumerate(indices):
            start = int(index) * self.length
            end = min(start + self.length, len(self.stream) - 1)
            tokens[row, : end - start] = self.stream[start:end]
            labels[row, : end - start] = self.stream[start + 1 : end + 1]
        return tokens, labels


def document_positions(tokens: np.ndarray, separator: int) -> np.ndarray:
    """Position ids (batch, length) that restart at every separator.

    transformers recognizes packed documents by such positions: no token attends across the start of its document.
    """
    positions = np.arange(tokens.shape[1])
    starts = np.where(tokens == separator, positions, 0)
    return positions - np.maximum.accumulate(starts, axis=1)


def pack_masked_rows(documents: RaggedTokens, first: int, separator: int, length: int) -> RaggedTokens:
    """Rows for a masked language model: [CLS] tokens [SEP] tokens [SEP] …, each of them full except the last.

    Consecutive documents have a separator between them; every token is in exactly one row.
    """
    capacity = length - 2  # without [CLS] and the last [SEP]
    parts: list[np.ndarray] = []
    for i in range(len(documents)):
        if documents.lengths[i]:
            parts += [documents[i], np.array([separator], dtype=np.int32)]
    stream = np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
    rows = []
    for start in range(0, len(stream), capacity):
        row = stream[start : start + capacity]
        # a document boundary at the end of a row needs no separator besides the row's own
        row = row[int(row[0] == separator) : len(row) - int(len(row) > 1 and row[-1] == separator)]
        if len(row):
            rows.append(np.concatenate([[first], row, [separator]]).astype(np.int32))
    return RaggedTokens(rows)
