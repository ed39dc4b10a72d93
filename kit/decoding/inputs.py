"""The encoder inputs of a batch."""

from torch import Tensor

Batch = dict[str, Tensor]

SOURCE = ("input_ids", "attention_mask", "pixel_values", "pixel_mask")
"""Names of encoder inputs."""


def source_of(batch: Batch) -> Batch:
    """The tensors of a batch that an encoder reads, by name."""
    return {name: batch[name] for name in SOURCE if name in batch}
