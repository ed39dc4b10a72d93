"""Blocks of text as examples: every block is full, and the label of each token is the token that follows."""

from dataclasses import dataclass

import numpy as np
import torch

from kit.data.batching.contiguous import stream_of
from kit.data.batching.packing import CausalBlocks, document_positions
from kit.training.objective import Batch


@dataclass(frozen=True)
class TextBlocks:
    """The blocks of a split, with the size of their text."""

    blocks: CausalBlocks
    sizes: np.ndarray
    """For each document (documents, 3): the number of tokens, of words separated by white space, and of bytes in UTF-8.
    Words and bytes compare models with different tokenizers."""
    separate: bool
    """Whether attention stays within a document."""
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def lengths(self) -> np.ndarray:
        return self.blocks.lengths

    def batch(self, indices: np.ndarray) -> Batch:
        """`input_ids`, and `labels` that are shifted already: the label of a token is the next token."""
        tokens, labels = self.blocks.batch(indices)
        batch = {"input_ids": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
        if self.separate:
            batch["position_ids"] = torch.from_numpy(document_positions(tokens, self.blocks.separator))
        return batch


def in_streams(examples: TextBlocks, streams: int, indices: np.ndarray) -> Batch:
    """A batch of carried-state training: with the `stream` that each row continues, and whether it starts there
    (`fresh`)."""
    numbers, fresh = stream_of(indices, len(examples), streams)
    return {**examples.batch(indices), "stream": torch.from_numpy(numbers), "fresh": torch.from_numpy(fresh)}
