"""From images to the pixel values that a captioner reads."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from PIL import Image
from torch import Tensor
from transformers import PreTrainedConfig, ViTImageProcessorPil

from kit.data.rows import IMAGE_BYTES
from kit.errors import DataError
from kit.pipelines.image_to_text import read_image
from kit.system.files import check_regular
from kit.tasks.captioning.rows import FILE, cells

MAX_CACHED_BYTES = 2**30
"""Resized images of a split are cached in memory, one byte per value, up to this size; a larger split is read from disk
batch by batch."""

PIXELS_PER_TOKEN = 64
"""Pixels that count as one token where evaluation and inference limit batches by tokens."""


def image_cost(config: PreTrainedConfig) -> int:
    """The number of tokens that an image counts as, where batches are limited by tokens."""
    return max(1, config.image_size**2 // PIXELS_PER_TOKEN)


def image_processor_of(config: PreTrainedConfig) -> ViTImageProcessorPil:
    """The image processor saved with a new captioner: images of `image_size`, values from −1 to 1.

    It is a class of transformers, so that `AutoImageProcessor` loads it anywhere, and it needs only Pillow.
    """
    return ViTImageProcessorPil(
        size={"height": config.image_size, "width": config.image_size},
        do_convert_rgb=config.num_channels == 3,
        image_mean=[0.5] * config.num_channels,
        image_std=[0.5] * config.num_channels,
    )


class PixelReader:
    """Turns images into the pixel values that a model with this configuration reads."""

    def __init__(self, config: PreTrainedConfig):
        self.background, self.channels, self.side = config.background, config.num_channels, config.image_size
        self.processor = image_processor_of(config)
        shape = (1, self.channels, 1, 1)
        self._mean = torch.tensor(self.processor.image_mean).reshape(shape)
        self._deviation = torch.tensor(self.processor.image_std).reshape(shape)

    def open(self, source: Any) -> Image.Image:
        """Open an image and fill its transparent parts with the background. Raises ValueError if it cannot be read."""
        return read_image(source, self.background, self.channels)

    def resized(self, image: Image.Image) -> np.ndarray:
        """Resize an image; returns bytes (channels, side, side)."""
        values = self.processor(image, do_rescale=False, do_normalize=False, return_tensors="np").pixel_values
        return values[0].astype(np.uint8)

    def pixels(self, resized: np.ndarray) -> Tensor:
        """Scale resized images (batch, channels, side, side) to pixel values, as the image processor does."""
        scaled = torch.from_numpy(resized).float() * self.processor.rescale_factor
        return (scaled - self._mean) / self._deviation


class Images:
    """The images of a split, in order."""

    def __init__(self, rows: Dataset, root: Path, reader: PixelReader):
        """Read all images now if they fit into the cache, so that a corrupt one is reported before training."""
        self.root, self.reader = root, reader
        self.files = list(rows[FILE])
        self._rows = (
            rows.select_columns([IMAGE_BYTES]).with_format("arrow") if IMAGE_BYTES in rows.column_names else None
        )
        shape = (len(rows), reader.channels, reader.side, reader.side)
        self._cache: np.ndarray | None = None
        if np.prod(shape, dtype=np.int64) <= MAX_CACHED_BYTES:
            self._cache = np.empty(shape, dtype=np.uint8)
            sources = self.files if self._rows is None else cells(rows, IMAGE_BYTES)
            for index, source in enumerate(sources):
                self._cache[index] = reader.resized(self._open(source, index))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Image.Image:
        """The image in its original size."""
        return self._open(self._sources([index])[0], index)

    def pixels(self, indices: np.ndarray) -> Tensor:
        """The pixel values of these images, (batch, channels, side, side)."""
        if self._cache is not None:
            return self.reader.pixels(self._cache[indices])
        sources = zip(self._sources(indices.tolist()), indices.tolist(), strict=True)
        return self.reader.pixels(np.stack([self.reader.resized(self._open(*source)) for source in sources]))

    def _sources(self, indices: list[int]) -> list[Any]:
        """The file names of these images, or their stored content."""
        if self._rows is None:
            return [self.files[index] for index in indices]
        return self._rows[indices][IMAGE_BYTES].to_pylist()

    def _open(self, source: Any, index: int) -> Image.Image:
        content = source.get("bytes") if isinstance(source, dict) else None
        path = source["path"] if isinstance(source, dict) else source
        try:
            if content is None:
                check_regular(self.root / path)
            return self.reader.open(self.root / path if content is None else content)
        except OSError as error:
            raise DataError(f"data.image: {self.root / path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            name = self.files[index]
            reason = str(error).replace("it cannot", f'"{name}" cannot', 1)
            raise DataError(f"data.image: {reason}. Repair the file, or remove it from the data.") from error
