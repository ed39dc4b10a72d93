"""From pictures to the numbers that a captioner reads."""

from collections.abc import Iterator
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
from kit.tasks.captioning.rows import FILE, cells

KEPT_BYTES = 2**30
"""Pictures of a split are kept as the model sees them, a byte for each number, if they need no more memory than this;
else they are read from disk whenever a batch has them."""

PIXELS_PER_TOKEN = 64
"""So many pixels count for a token in batches for evaluation and inference: memory and speed."""


def picture_cost(config: PreTrainedConfig) -> int:
    """Tokens that a picture counts for in such a batch."""
    return max(1, config.image_size**2 // PIXELS_PER_TOKEN)


def image_processor_of(config: PreTrainedConfig) -> ViTImageProcessorPil:
    """The image processor of a new captioner, to be saved beside it: pictures of `image_size`, colors from −1 to 1.

    It is a stock one, so that `AutoImageProcessor` loads it everywhere, and it needs nothing but Pillow.
    """
    return ViTImageProcessorPil(
        size={"height": config.image_size, "width": config.image_size},
        do_convert_rgb=config.num_channels == 3,
        image_mean=[0.5] * config.num_channels,
        image_std=[0.5] * config.num_channels,
    )


class PixelReader:
    """Makes pixels of pictures, as a model of a configuration reads them."""

    def __init__(self, config: PreTrainedConfig):
        self.background, self.channels, self.side = config.background, config.num_channels, config.image_size
        self.processor = image_processor_of(config)
        shape = (1, self.channels, 1, 1)
        self._mean = torch.tensor(self.processor.image_mean).reshape(shape)
        self._deviation = torch.tensor(self.processor.image_std).reshape(shape)

    def picture(self, source: Any) -> Image.Image:
        """A picture without transparent parts; raises ValueError if it cannot be read."""
        return read_image(source, self.background, self.channels)

    def resized(self, picture: Image.Image) -> np.ndarray:
        """Colors from 0 to 255 (channels, side, side), a byte each."""
        found = self.processor(picture, do_rescale=False, do_normalize=False, return_tensors="np").pixel_values
        return found[0].astype(np.uint8)

    def pixels(self, resized: np.ndarray) -> Tensor:
        """What the image processor makes of pictures (batch, channels, side, side)."""
        scaled = torch.from_numpy(resized).float() * self.processor.rescale_factor
        return (scaled - self._mean) / self._deviation


class Pictures:
    """The pictures of a split, in order."""

    def __init__(self, rows: Dataset, root: Path, reader: PixelReader):
        """Reads them all where there is memory to keep them, so that one that is broken is noticed before training."""
        self.root, self.reader = root, reader
        self.files = list(rows[FILE])
        self._rows = (
            rows.select_columns([IMAGE_BYTES]).with_format("arrow") if IMAGE_BYTES in rows.column_names else None
        )
        shape = (len(rows), reader.channels, reader.side, reader.side)
        self._kept: np.ndarray | None = None
        if np.prod(shape, dtype=np.int64) <= KEPT_BYTES:
            kept = np.empty(shape, dtype=np.uint8)
            sources = self.files if self._rows is None else cells(rows, IMAGE_BYTES)
            for place, source in enumerate(sources):
                kept[place] = reader.resized(self._opened(source, place))
            self._kept = kept

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> Image.Image:
        """The picture itself, in its own size."""
        return self._opened(next(self._sources([place])), place)

    def pixels(self, places: np.ndarray) -> Tensor:
        """(batch, channels, side, side)"""
        if self._kept is not None:
            return self.reader.pixels(self._kept[places])
        found = zip(self._sources(places.tolist()), places.tolist(), strict=True)
        return self.reader.pixels(
            np.stack([self.reader.resized(self._opened(source, place)) for source, place in found])
        )

    def _sources(self, places: list[int]) -> Iterator[Any]:
        if self._rows is None:
            return iter([self.files[place] for place in places])
        return iter(self._rows[places][IMAGE_BYTES].to_pylist())

    def _opened(self, source: Any, place: int) -> Image.Image:
        content = source.get("bytes") if isinstance(source, dict) else None
        path = source["path"] if isinstance(source, dict) else source
        try:
            return self.reader.picture(self.root / path if content is None else content)
        except ValueError as error:
            name = self.files[place]
            reason = str(error).replace("it cannot", f'"{name}" cannot', 1)
            raise DataError(f"data.image: {reason}. Mend it, or leave it out of the data.") from error
