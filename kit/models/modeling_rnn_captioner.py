"""The image captioner: a convolutional encoder, and the decoder of `rnn_seq2seq`.

    pixels ─► ImageEncoder ─► a feature for each position, keys and values, their mean
                                   │                        │ StateBridge
    START + caption ─► RNNDecoder: cells + Attention ◄──────┘
                           └─► Readout ─► lm_head ─► logits

Shapes in comments: batch, channels, height and width (of an image), rows and columns (of the feature map), positions
(rows · columns), feature_size (width of a feature), target (positions of a caption), vocabulary.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from transformers import AutoBackbone, AutoConfig, GenerationMixin
from transformers import initialization as init
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_rnn_captioner import RNNCaptionerConfig
from .modeling_rnn_seq2seq import RNNTextGenerationMixin, RNNTextModelMixin, seq2seq_output, validate_encoder_outputs
from .recurrent import Dropout, RecurrentCache, float_dtype
from .rnn_decoder import Feedback, RNNDecoder, RNNEncoder, RNNEncoderOutput, RNNPreTrainedModel, attention_memory


class RNNCaptionerPreTrainedModel(RNNPreTrainedModel):
    """Base class of the models with a `RNNCaptionerConfig`."""

    config: RNNCaptionerConfig
    config_class = RNNCaptionerConfig
    auto_model = "RNNCaptionerModel"
    main_input_name = "pixel_values"
    input_modalities = ("image",)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            init.kaiming_normal_(module.weight, nonlinearity="relu")
            init.zeros_(module.bias)
        else:
            super()._init_weights(module)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of each position alone, so that neither padding nor other images change it."""

    def forward(self, x: Tensor) -> Tensor:  # (batch, channels, rows, columns)
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (batch, channels, rows, columns), set to zero where mask (batch, 1, rows, columns) is zero."""
    return x if mask is None else x * mask


class ResidualBlocks(nn.Module):
    """Pre-norm convolutions, each with a residual connection."""

    def __init__(self, channels: int, number: int):
        super().__init__()
        self.norms = nn.ModuleList(ChannelNorm(channels) for _ in range(number))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(number))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            x = x + convolution(masked(torch.relu(norm(x)), mask))
        return x  # (batch, channels, rows, columns)


class ConvolutionalNetwork(nn.Module):
    """Stages that each halve height and width, rounded up.

    Padding below and to the right of an image changes nothing: it is set to zero before every convolution, just as a
    convolution sees zeros beyond the edge of an image that is not padded.
    """

    def __init__(self, config: RNNCaptionerConfig):
        super().__init__()
        sizes = [config.num_channels, *config.cnn_channels]
        self.downsampling = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1) for before, after in pairwise(sizes)
        )
        self.blocks = nn.ModuleList(ResidualBlocks(channels, config.cnn_blocks) for channels in sizes[1:])
        self.norm = ChannelNorm(sizes[-1])
        self.channels = sizes[-1]

    def forward(self, pixels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Feature map (batch, channels, rows, columns), and the mask (batch, rows, columns) of its real positions."""
        x, mask = pixels, None if mask is None else mask.unsqueeze(1).to(pixels.dtype)
        for downsample, blocks in zip(self.downsampling, self.blocks, strict=True):
            x = downsample(masked(x, mask))
            mask = None if mask is None else mask[:, :, ::2, ::2]  # the center of each window
            x = blocks(x, mask)
        return torch.relu(self.norm(x)), None if mask is None else mask.squeeze(1).bool()


class Backbone(nn.Module):
    """A backbone of transformers. It takes no mask, so all images of a batch must have the same size."""

    def __init__(self, config: RNNCaptionerConfig):
        super().__init__()
        settings = dict(config.backbone_config)
        for kernel in ("attn_implementation", "_attn_implementation"):  # can name code on the Hub, to be executed
            settings.pop(kernel, None)
        backbone = AutoConfig.for_model(settings.pop("model_type"), **settings)
        self.network = AutoBackbone.from_config(backbone, trust_remote_code=False)
        self.channels = self.network.channels[-1]

    def forward(self, pixels: Tensor, mask: Tensor | None) -> tuple[Tensor, None]:
        if mask is not None and not bool(mask.all()):
            raise ValueError("a backbone would see the padding of images: resize them to one size, without pixel_mask")
        return self.network(pixels, return_dict=True).feature_maps[-1], None


def position_coordinates(features: Tensor, mask: Tensor | None) -> Tensor:
    """Row and column of each position (batch, rows, columns, 2), from −1 to 1 over the real part of each image."""
    batch, _, rows, columns = features.shape
    if mask is None:
        mask = torch.ones(batch, rows, columns, dtype=torch.bool, device=features.device)
    coordinates = []
    for axis in (1, 2):
        steps = mask.any(dim=3 - axis).sum(1).sub(1).clamp(min=1)  # (batch,) from the first real one to the last
        coordinate = torch.arange(mask.shape[axis], device=features.device) * 2 / steps.unsqueeze(1) - 1
        coordinates.append(coordinate.unsqueeze(3 - axis).expand(batch, rows, columns))
    return torch.stack(coordinates, dim=-1).to(features.dtype)


def masked_mean(states: Tensor, mask: Tensor | None) -> Tensor:
    """Mean (batch, width) of states (batch, positions, width) where mask (batch, positions) is true."""
    if mask is None:
        return states.mean(1)
    weights = mask.to(states.dtype)
    return (states * weights.unsqueeze(-1)).sum(1) / weights.sum(1, keepdim=True).clamp(min=1)


class ImageEncoder(RNNEncoder):
    """Reads images: a feature for each position to attend to, and their mean as final state."""

    main_input_name = "pixel_values"

    def __init__(self, config: RNNCaptionerConfig):
        super().__init__()
        self.config = config
        self.network = ConvolutionalNetwork(config) if config.backbone_config is None else Backbone(config)
        self.projection = nn.Linear(self.network.channels + 2 * config.feature_positions, config.feature_size)
        self.memory = attention_memory(config)
        self.dropout = Dropout(config.dropout)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> RNNEncoderOutput:
        """Encode pixel_values (batch, channels, height, width); pixel_mask (batch, height, width) is 1 at real pixels,
        which start at the upper left corner.

        `output_attentions` has no effect: `generate()` passes it to every encoder.
        """
        channels = self.config.num_channels
        if pixel_values is None or pixel_values.dim() != 4 or pixel_values.shape[1] != channels:
            # without an image, `generate()` passes the start token as pixels
            got = "none" if pixel_values is None else f"a tensor of shape {tuple(pixel_values.shape)}"
            raise ValueError(f"the encoder needs pixel_values (batch, {channels}, height, width), got {got}")
        pixel_values = pixel_values.to(float_dtype(self))
        feature_map, mask = self.network(pixel_values, pixel_mask)  # (batch, channels, rows, columns)
        x = features = feature_map.flatten(2).transpose(1, 2)  # (batch, positions, channels)
        if self.config.feature_positions:
            x = torch.cat([features, position_coordinates(feature_map, mask).flatten(1, 2)], dim=-1)
        states = self.dropout(torch.tanh(self.projection(x)))  # (batch, positions, feature_size)
        mask = None if mask is None else mask.flatten(1)  # (batch, positions)
        final = masked_mean(states, mask).unsqueeze(1)  # (batch, 1, feature_size)
        cell = final if self.config.cell == "lstm" else None
        return self.encoded(states, final, cell, mask, (features, states), output_hidden_states)


class RNNCaptionerModel(RNNTextModelMixin, RNNCaptionerPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: RNNCaptionerConfig):
        super().__init__(config)
        self.encoder = ImageEncoder(config)
        self.decoder = RNNDecoder(config)
        self.post_init()

    # only the decoder has word embeddings

    def get_input_embeddings(self) -> nn.Embedding:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: RNNEncoderOutput | None = None,
        past_key_values: RecurrentCache | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        feedback: Feedback | None = None,
    ) -> Seq2SeqModelOutput:
        """Readouts (batch, target, readout size) of decoder_input_ids (batch, target), given pixel_values (batch,
        channels, height, width).

        With `feedback`, each decoder input but the first is what it returns (scheduled sampling).
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                pixel_values=pixel_values,
                pixel_mask=pixel_mask,
                output_hidden_states=output_hidden_states,
                return_dict=True,
            )
        encoder_outputs = validate_encoder_outputs(encoder_outputs)
        decoder_outputs = self.decoder(
            inputs_embeds=self.embed_target(decoder_input_ids, decoder_inputs_embeds),
            encoder_outputs=encoder_outputs,
            attention_mask=decoder_attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            feedback=feedback,
            return_dict=True,
        )
        return seq2seq_output(encoder_outputs, decoder_outputs)


class RNNCaptionerForConditionalGeneration(RNNTextGenerationMixin, RNNCaptionerPreTrainedModel, GenerationMixin):
    """The captioner with its output layer: train it with `labels`, caption with `generate()`."""

    def __init__(self, config: RNNCaptionerConfig):
        super().__init__(config)
        self._tied_weights_keys = self.tied_weights()
        self.model = RNNCaptionerModel(config)
        self.lm_head = nn.Linear(self.model.decoder.readout.size, config.decoder_vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: RNNEncoderOutput | None = None,
        past_key_values: RecurrentCache | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        sampling_probability: float | None = None,
    ) -> Seq2SeqLMOutput:
        """Encode images and decode their captions.

        Args:
            pixel_values: Images, (batch, channels, height, width).
            pixel_mask: 1 at real pixels, which start at the upper left corner, (batch, height, width).
            decoder_input_ids: Tokens that the decoder reads, (batch, target); by default `labels`, shifted right.
            decoder_attention_mask: 1 at real tokens of the caption, (batch, past + target).
            encoder_outputs: What the encoder returned for these images, which are then not encoded again.
            past_key_values: State of the decoder to continue from.
            decoder_inputs_embeds: Word embeddings instead of the ids.
            labels: Tokens to predict, (batch, target); −100 is ignored.
            num_items_in_batch: Divisor of the summed loss; by default the number of labels.
            sampling_probability: Replaces `config.scheduled_sampling` while training.

        Returns:
            `Seq2SeqLMOutput` with logits (batch, target, vocabulary) and, with `labels`, the loss. Cross-attentions
            are one tensor (batch, heads, target, positions), which `feature_shape` unfolds into a heat map.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            pixel_values=pixel_values,
            pixel_mask=pixel_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            feedback=self.feedback(sampling_probability),
            return_dict=True,
        )
        return self.lm_output(outputs, labels, num_items_in_batch)

    @torch.no_grad()
    def feature_shape(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the feature map for this image size: how to unfold cross-attention into a heat map."""
        pixels = torch.zeros(1, self.config.num_channels, height, width, device=self.device, dtype=self.dtype)
        rows, columns = self.model.encoder.network(pixels, None)[0].shape[-2:]
        return rows, columns


RNNCaptionerConfig.register_for_auto_class()
RNNCaptionerModel.register_for_auto_class("AutoModel")
RNNCaptionerForConditionalGeneration.register_for_auto_class("AutoModelForImageTextToText")

__all__ = ["RNNCaptionerForConditionalGeneration", "RNNCaptionerModel", "RNNCaptionerPreTrainedModel"]
