"""The image captioner as a `PreTrainedModel`.

pixels ─► ImageEncoder ─► a feature for each place, keys and values, their mean
                               │                        │ StateHandover
START + caption ─► Decoder: cells + Attention ◄─────────┘
                               └─► Readout ─► lm_head ─► logits
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers import initialization as init
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput

from .configuration_rnn_captioner import RNNCaptionerConfig
from .image_encoder import ImageEncoder
from .rnn_decoder import RNNSeq2SeqDecoder
from .rnn_pretrained import RNNPreTrainedModel
from .rnn_writer import RNNWriterBody, RNNWriterHead


class RNNCaptionerPreTrainedModel(RNNPreTrainedModel):
    config: RNNCaptionerConfig
    config_class = RNNCaptionerConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            init.kaiming_normal_(module.weight, nonlinearity="relu")
            init.zeros_(module.bias)
        else:
            super()._init_weights(module)


class RNNCaptionerModel(RNNWriterBody, RNNCaptionerPreTrainedModel):
    """Encoder and decoder, without the output layer. Words are the decoder's alone."""

    def __init__(self, config: RNNCaptionerConfig):
        super().__init__(config)
        self.encoder = ImageEncoder(config)
        self.decoder = RNNSeq2SeqDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.decoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.decoder.embed_tokens = value

    def forward(
        self,
        pixel_values: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """States of the captions `decoder_input_ids` (batch, target), given images (batch, channels, height, width)."""
        return super().forward(
            pixel_values=pixel_values,
            pixel_mask=pixel_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )


class RNNCaptionerForConditionalGeneration(RNNWriterHead, RNNCaptionerPreTrainedModel, GenerationMixin):
    """The captioner with its output layer: train it with `labels`, caption with `generate()`."""

    def __init__(self, config: RNNCaptionerConfig):
        super().__init__(config)
        self._tied_weights_keys = self.tied_weights()
        self.model = RNNCaptionerModel(config)
        self.lm_head = nn.Linear(self.model.decoder.readout.size, config.decoder_vocab_size)
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits (batch, target, vocabulary), and with `labels` (batch, target; −100 is ignored) the loss.

        `pixel_values` (batch, channels, height, width); `pixel_mask` (batch, height, width) is 1 at real pixels, which
        start at the upper left corner. Cross-attentions are (batch, heads, target, places): see `feature_shape`.
        """
        return super().forward(
            pixel_values=pixel_values,
            pixel_mask=pixel_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            decoder_inputs_embeds=decoder_inputs_embeds,
            labels=labels,
            use_cache=use_cache,
            num_items_in_batch=num_items_in_batch,
            **kwargs,
        )

    @torch.no_grad()
    def feature_shape(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the places in an image of this size: what to fold cross-attention into for a heat map."""
        pixels = torch.zeros(1, self.config.num_channels, height, width, device=self.device, dtype=self.dtype)
        rows, columns = self.model.encoder.network(pixels, None)[0].shape[-2:]
        return rows, columns


RNNCaptionerConfig.register_for_auto_class()
RNNCaptionerModel.register_for_auto_class("AutoModel")
RNNCaptionerForConditionalGeneration.register_for_auto_class("AutoModelForImageTextToText")

__all__ = ["RNNCaptionerForConditionalGeneration", "RNNCaptionerModel", "RNNCaptionerPreTrainedModel"]
