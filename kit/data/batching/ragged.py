"""Encoded examples: token ids stored compactly, and padded to tensors when a batch is requested."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

IGNORE_INDEX = -100
"""Label of positions without a loss, the `ignore_index` of torch and transformers."""


class RaggedTokens:
    """Many lists of token ids in one flat int32 array: a tenth of the memory of Python lists."""

    def __init__(self, lists: Iterable[Sequence[int] | np.ndarray]):
        arrays = [np.asarray(ids, dtype=np.int32) for ids in lists]
        self.lengths = np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))
        self.flat = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.flat[self._starts[index] : self._starts[index + 1]]

    @classmethod
    def from_flat(cls, flat: np.ndarray, lengths: np.ndarray) -> "RaggedTokens":
        """Consecutive lists of the given lengths in one array."""
        ragged = cls([])
        ragged.lengths, ragged.flat = lengths, flat
        ragged._starts = np.concatenate([[0], np.cumsum(lengths)])
        return ragged

    @classmethod
    def concat(cls, parts: Sequence["RaggedTokens"]) -> "RaggedTokens":
        """The lists of all parts, in order."""
        if not parts:
            return cls([])
        return cls.from_flat(
            np.concatenate([part.flat for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    def select(self, indices: np.ndarray) -> "RaggedTokens":
        """The lists at these indices."""
        return RaggedTokens(self[i] for i in indices)

    def padded(self, indices: np.ndarray, padding: int) -> Tensor:
        """The lists at these indices as rows of a (batch, longest) tensor, padded on the right."""
        rows = np.full((len(indices), int(self.lengths[indices].max(initial=1))), padding, dtype=np.int64)
        for row, index in zip(rows, indices, strict=True):
            row[: self.lengths[index]] = self[index]
        return torch.from_numpy(rows)


@dataclass(frozen=True)
class TokenPairs:
    """Encoded source and target of each example, in the order of the data."""

    source: RaggedTokens
    target: RaggedTokens
    languages: np.ndarray | None = None
    """The target language of each example, for a model that has several."""
    truncated: int = 0
    """Number of examples that were truncated to the model's positions."""

    def __len__(self) -> int:
        return len(self.source)

    @property
    def input_lengths(self) -> np.ndarray:
        """Number of tokens that the model reads of each example."""
        return self.source.lengths

    @classmethod
    def concat(cls, parts: Sequence["TokenPairs"]) -> "TokenPairs":
        """The examples of all parts, in order."""
        source, target = (RaggedTokens.concat([getattr(part, side) for part in parts]) for side in ("source", "target"))
        languages = [part.languages for part in parts if part.languages is not None]
        truncated = sum(part.truncated for part in parts)
        return cls(source, target, np.concatenate(languages) if languages else None, truncated)

    def select(self, indices: np.ndarray) -> "TokenPairs":
        languages = None if self.languages is None else self.languages[indices]
        return TokenPairs(self.source.select(indices), self.target.select(indices), languages)

    def batch(self, indices: np.ndarray, pad: int) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and `labels` of these examples."""
        input_ids = self.source.padded(indices, pad)  # (batch, source)
        lengths = torch.from_numpy(self.source.lengths[indices])
        return {
            "input_ids": input_ids,
            # from the lengths, not from the ids: a text may contain the padding token
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),
            "labels": self.target.padded(indices, IGNORE_INDEX),  # (batch, target)
        }
