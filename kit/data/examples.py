"""Encoded examples: token ids kept compactly, and turned into padded tensors when a batch is asked for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

IGNORED = -100


class TokenLists:
    """Many lists of token ids in one flat array: a tenth of the memory of Python lists."""

    def __init__(self, lists: Iterable[Sequence[int] | np.ndarray]):
        arrays = [np.asarray(ids, dtype=np.int32) for ids in lists]
        self.lengths = np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))
        self._flat = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._flat[self._starts[index] : self._starts[index + 1]]

    def select(self, indices: np.ndarray) -> "TokenLists":
        """The lists at these indices."""
        return TokenLists(self[i] for i in indices)

    def padded(self, indices: np.ndarray, filler: int) -> Tensor:
        """The lists at these indices as rows of one (batch, longest) tensor, filled up on the right."""
        rows = np.full((len(indices), int(self.lengths[indices].max(initial=1))), filler, dtype=np.int64)
        for row, index in zip(rows, indices, strict=True):
            row[: self.lengths[index]] = self[index]
        return torch.from_numpy(rows)


@dataclass(frozen=True)
class Pairs:
    """Encoded source and target of each example, in the order of the data."""

    source: TokenLists
    target: TokenLists

    def __len__(self) -> int:
        return len(self.source)

    def select(self, indices: np.ndarray) -> "Pairs":
        return Pairs(self.source.select(indices), self.target.select(indices))

    def batch(self, indices: np.ndarray, pad: int) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and `labels` of these examples."""
        input_ids = self.source.padded(indices, pad)  # (batch, source)
        lengths = torch.from_numpy(self.source.lengths[indices])
        return {
            "input_ids": input_ids,
            # from the lengths and not from the ids: a text may contain whatever token stands for padding
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),
            "labels": self.target.padded(indices, IGNORED),  # (batch, target)
        }
