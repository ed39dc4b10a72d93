"""The encoder of images: a convolutional network, and features of the places of an image that it makes."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoBackbone, AutoConfig
from transformers.utils.generic import can_return_tuple

from .configuration_rnn_captioner import RNNCaptionerConfig
from .dropout import Dropout
from .rnn_memory import RNNEncoderOutput, attention_memory


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of each place alone, so that neither padding nor other images change it."""

    def forward(self, x: Tensor) -> Tensor:  # (batch, channels, rows, columns)
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Blocks(nn.Module):
    """Convolutions, each beside the way straight through."""

    def __init__(self, channels: int, number: int):
        super().__init__()
        self.norms = nn.ModuleList(ChannelNorm(channels) for _ in range(number))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(number))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            x = x + convolution(only(torch.relu(norm(x)), mask))
        return x  # (batch, channels, rows, columns)


def only(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (batch, channels, rows, columns), zero where mask (batch, 1, rows, columns) is."""
    return x if mask is None else x * mask


class ConvolutionalNetwork(nn.Module):
    """Stages that each halve height and width, rounded up.

    What the mask leaves out below and to the right of an image changes nothing: it is zero before every convolution,
    as is what a convolution sees beyond the edge of an image that is not padded.
    """

    def __init__(self, config: RNNCaptionerConfig):
        super().__init__()
        sizes = [config.num_channels, *config.cnn_channels]
        self.halving = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1) for before, after in pairwise(sizes)
        )
        self.blocks = nn.ModuleList(Blocks(channels, config.cnn_blocks) for channels in sizes[1:])
        self.norm = ChannelNorm(sizes[-1])
        self.channels = sizes[-1]

    def forward(self, pixels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Feature map (batch, channels, rows, columns), and the mask (batch, rows, columns) of what is real in it."""
        x, there = pixels, None if mask is None else mask.unsqueeze(1).to(pixels.dtype)
        for halving, blocks in zip(self.halving, self.blocks, strict=True):
            x = halving(only(x, there))
            there = None if there is None else there[:, :, ::2, ::2]  # where the middle of each window was
            x = blocks(x, there)
        return torch.relu(self.norm(x)), None if there is None else there.squeeze(1).bool()


class Backbone(nn.Module):
    """A network of transformers. It cannot be kept from seeing padding, so images must be of one size."""

    def __init__(self, config: RNNCaptionerConfig):
        super().__init__()
        settings = dict(config.backbone_config)
        self.network = AutoBackbone.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
        self.channels = self.network.channels[-1]

    def forward(self, pixels: Tensor, mask: Tensor | None) -> tuple[Tensor, None]:
        if mask is not None and not bool(mask.all()):
            raise ValueError("a backbone would see the padding of images: resize them to one size, without pixel_mask")
        return self.network(pixels, return_dict=True).feature_maps[-1], None


def places(features: Tensor, mask: Tensor | None) -> Tensor:
    """Row and column of each place (batch, rows, columns, 2), from −1 to 1 over the real part of each image."""
    batch, _, rows, columns = features.shape
    if mask is None:
        mask = torch.ones(batch, rows, columns, dtype=torch.bool, device=features.device)
    sides = []
    for axis in (1, 2):
        real = mask.any(dim=3 - axis).sum(1).sub(1).clamp(min=1)  # (batch,) how far it is from the first to the last
        place = torch.arange(mask.shape[axis], device=features.device) * 2 / real.unsqueeze(1) - 1
        sides.append(place.unsqueeze(3 - axis).expand(batch, rows, columns))
    return torch.stack(sides, dim=-1).to(features.dtype)


class ImageEncoder(nn.Module):
    """Reads images: a feature for each place to attend to, and their mean to start from."""

    main_input_name = "pixel_values"

    def __init__(self, config: RNNCaptionerConfig):
        super().__init__()
        self.config = config
        self.network = ConvolutionalNetwork(config) if config.backbone_config is None else Backbone(config)
        self.feature = nn.Linear(self.network.channels + 2 * config.feature_places, config.feature_size)
        self.memory = attention_memory(config)
        self.dropout = Dropout(config.dropout)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> RNNEncoderOutput:
        """Read pixel_values (batch, channels, height, width); pixel_mask (batch, height, width) is 1 at real pixels,
        which start at the upper left corner."""
        if pixel_values is None:
            raise ValueError("the encoder needs pixel_values")
        pixel_values = pixel_values.to(self.feature.weight.dtype)
        features, mask = self.network(pixel_values, pixel_mask)  # (batch, channels, rows, columns)
        x = features.permute(0, 2, 3, 1)  # (batch, rows, columns, channels)
        if self.config.feature_places:
            x = torch.cat([x, places(features, mask)], dim=-1)
        states = self.dropout(torch.tanh(self.feature(x))).flatten(1, 2)  # (batch, rows · columns, feature_size)
        mask = None if mask is None else mask.flatten(1)  # (batch, rows · columns)
        final = mean(states, mask).unsqueeze(1)  # (batch, 1, feature_size)
        keys, values = (None, None) if self.memory is None else self.memory(states)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return RNNEncoderOutput(
            last_hidden_state=states,
            final_hidden=final,
            final_cell=final if self.config.cell == "lstm" else None,
            keys=keys,
            values=values,
            memory_mask=mask,
            hidden_states=(features.flatten(2).transpose(1, 2), states) if output_hidden_states else None,
        )


def mean(states: Tensor, mask: Tensor | None) -> Tensor:
    """Mean (batch, width) of states (batch, places, width), of those that are real."""
    if mask is None:
        return states.mean(1)
    share = mask.to(states.dtype)
    return (states * share.unsqueeze(-1)).sum(1) / share.sum(1, keepdim=True).clamp(min=1)
