"""What of a batch an encoder reads."""

from torch import Tensor

Batch = dict[str, Tensor]

SOURCE = ("input_ids", "attention_mask", "pixel_values", "pixel_mask")
"""Names of the inputs of encoders."""


def source_of(batch: Batch) -> Batch:
    """What the encoder reads of a batch."""
    return {name: batch[name] for name in SOURCE if name in batch}
