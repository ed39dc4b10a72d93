"""Configuration of `rnn_captioner`: a convolutional encoder of images and a recurrent decoder of captions."""

import re
from collections.abc import Iterator
from dataclasses import field
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict

from .configuration_rnn_seq2seq import RNNTextDecoderConfig


@strict
class RNNCaptionerConfig(RNNTextDecoderConfig):
    """An image encoder with the decoder of `rnn_seq2seq`: the image as its initial state, or with visual attention."""

    model_type = "rnn_captioner"
    encoder_width_field: ClassVar[str] = "feature_size"
    attribute_map = {"num_hidden_layers": "decoder_layers"}  # noqa: RUF012

    image_size: int = 64
    """Height and width that images are resized to. The model itself takes other sizes too."""

    num_channels: int = 3
    """Number of color channels: 3, or 1 for gray images."""

    background: str = "#ffffff"
    """Color behind transparent parts of images, as #rrggbb; white by default."""

    cnn_channels: list[int] = field(default_factory=lambda: [32, 64, 128])
    """Channels of each stage of the convolutional encoder; each stage halves height and width."""

    cnn_blocks: int = 1
    """Number of residual blocks in each stage."""

    backbone_config: dict[str, Any] | None = None
    """Encode the image with a backbone of transformers instead: its `model_type` (such as resnet) and other fields of
    its configuration. `cnn_channels` and `cnn_blocks` have no effect then."""

    feature_size: int | None = None
    """Width of the features, one for each position of the image; by default `hidden_size`."""

    feature_positions: bool = True
    """Add its row and column to each feature."""

    def __post_init__(self, **kwargs: Any) -> None:
        if self.feature_size is None:
            self.feature_size = self.hidden_size
        super().__post_init__(**kwargs)

    @property
    def encoder_size(self) -> int:
        return self.feature_size

    def tiny_sizes(self, width: int) -> dict[str, Any]:
        return {
            **super().tiny_sizes(width),
            "feature_size": width if self.feature_size == self.hidden_size else 2 * width,
            "cnn_channels": [width + stage for stage in range(min(2, len(self.cnn_channels)))],
            "cnn_blocks": min(1, self.cnn_blocks),
            "image_size": 12,
        }

    def invalid_values(self) -> Iterator[str]:
        yield from super().invalid_values()
        if not re.fullmatch("#[0-9a-fA-F]{6}", self.background):
            yield f"background must be a color such as #ffffff, not {self.background}"
        if not self.cnn_channels:
            yield f"cnn_channels needs at least one stage, not {self.cnn_channels}"
        if self.backbone_config is not None and "model_type" not in self.backbone_config:
            yield "backbone_config needs a model_type, for example resnet"


__all__ = ["RNNCaptionerConfig"]
