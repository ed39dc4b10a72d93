"""Images with captions as examples: every caption is one, and captions of an image share its pixels."""

from dataclasses import dataclass

import numpy as np

from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.tasks.captioning.images import Images
from kit.training.objective import Batch


@dataclass(frozen=True)
class CaptionedImages:
    """Images and their captions. Each caption is an example."""

    images: Images
    captions: RaggedTokens
    owners: np.ndarray
    """Index of the image of each caption."""
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def lengths(self) -> np.ndarray:
        return self.captions.lengths

    def select(self, indices: np.ndarray) -> "CaptionedImages":
        return CaptionedImages(self.images, self.captions.select(indices), self.owners[indices])

    def batch(self, indices: np.ndarray) -> Batch:
        """The pixels and labels of these captions."""
        return {
            "pixel_values": self.images.pixels(self.owners[indices]),  # (batch, channels, side, side)
            "labels": self.captions.padded(indices, IGNORE_INDEX),  # (batch, target)
        }

    def image_batch(self, indices: np.ndarray) -> Batch:
        """The pixels of these images."""
        return {"pixel_values": self.images.pixels(indices)}
