"""The Transformer encoder-decoder as a `PreTrainedModel`.

source tokens ─► Encoder: embeddings + positions ─► layers ─► states
                                                                │ cross-attention
START + target ─► Decoder: embeddings + positions ─► layers ◄───┘ ─► lm_head ─► logits
"""

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
)
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_transformer_seq2seq import TransformerSeq2SeqConfig
from .encoder_decoder import EncoderDecoderBody, EncoderDecoderHead
from .recurrent import Dropout
from .transformer_layers import DecoderLayer, EncoderLayer, MultiHeadAttention, Positions, initialize


class TransformerSeq2SeqPreTrainedModel(PreTrainedModel):
    config: TransformerSeq2SeqConfig
    config_class = TransformerSeq2SeqConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        initialize(module, self.config)


class Embedded(TransformerSeq2SeqPreTrainedModel):
    """What encoder and decoder have in common: word vectors with positions, layers, and the last norm."""

    def __init__(self, config: TransformerSeq2SeqConfig, layers: nn.ModuleList, vocabulary: int | None):
        super().__init__(config)
        size = config.hidden_size
        self.embed_tokens = None if vocabulary is None else nn.Embedding(vocabulary, size, config.pad_token_id)
        self.scale = size**0.5 if config.scale_embedding else 1.0
        self.positions = Positions(config)
        self.layers = layers
        # post-norm layers end with a norm of their own
        self.norm = nn.LayerNorm(size) if config.norm == "pre" else nn.Identity()
        self.dropout = Dropout(config.first_dropout)
        self.gradient_checkpointing = False

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed_tokens = value

    def placed(self, embeddings: Tensor, start: int = 0, length: int | None = None) -> Tensor:
        """Word vectors (batch, length, hidden) as the first layer sees them."""
        return self.dropout(self.positions(embeddings * self.scale, start, length))


class TransformerSeq2SeqEncoder(Embedded):
    """Reads the source."""

    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": MultiHeadAttention}  # noqa: RUF012

    def __init__(self, config: TransformerSeq2SeqConfig):
        layers = nn.ModuleList(EncoderLayer(config, i) for i in range(config.encoder_layers))
        super().__init__(config, layers, config.vocab_size)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("the encoder needs exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        x = self.placed(inputs_embeds)  # (batch, source, hidden)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=x, attention_mask=attention_mask)
        for layer in self.layers:
            x = layer(x, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.norm(x))


class TransformerSeq2SeqDecoder(Embedded):
    """Writes the target. Where source and target share their word vectors, it has none of its own."""

    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config: TransformerSeq2SeqConfig):
        layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.decoder_layers))
        super().__init__(config, layers, None if config.share_embeddings else config.decoder_vocab_size)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        inputs_embeds: Tensor,
        encoder_outputs: BaseModelOutput,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        x = self.placed(inputs_embeds, seen)  # (batch, target, hidden)
        memory = encoder_outputs.last_hidden_state  # (batch, source, hidden)
        own_cache = None if past_key_values is None else past_key_values.self_attention_cache
        mask = create_causal_mask(
            config=self.config, inputs_embeds=x, attention_mask=attention_mask, past_key_values=own_cache
        )
        memory_mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=memory,
        )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.through_layers(x, mask, memory, memory_mask, past_key_values, **kwargs),
            past_key_values=past_key_values if use_cache else None,
        )

    def through_layers(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        past_key_values: EncoderDecoderCache | None,
        **kwargs: Any,
    ) -> Tensor:
        """Placed word vectors (batch, target, hidden) as the output layer sees them; masks as attention takes them."""
        for layer in self.layers:
            # positional, as gradient checkpointing needs tensors that it is to differentiate
            x = layer(x, mask, memory, memory_mask, past_key_values=past_key_values, **kwargs)
        return self.norm(x)


class TransformerSeq2SeqModel(EncoderDecoderBody, TransformerSeq2SeqPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: TransformerSeq2SeqConfig):
        super().__init__(config)
        self.encoder = TransformerSeq2SeqEncoder(config)
        self.decoder = TransformerSeq2SeqDecoder(config)
        self.post_init()

    def checked(self, encoder_outputs: Any) -> BaseModelOutput:
        return BaseModelOutput(*encoder_outputs) if isinstance(encoder_outputs, tuple) else encoder_outputs


class TransformerSeq2SeqForConditionalGeneration(
    EncoderDecoderHead, TransformerSeq2SeqPreTrainedModel, GenerationMixin
):
    """The encoder-decoder with its output layer: train it with `labels`, decode with `generate()`."""

    beam_layout = "positions"

    def __init__(self, config: TransformerSeq2SeqConfig):
        super().__init__(config)
        self._tied_weights_keys = self.tied_weights()
        self.model = TransformerSeq2SeqModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.decoder_vocab_size, bias=False)
        self.post_init()

    def sibling_beam_logits(
        self,
        tokens: Tensor,
        position: int,
        mask: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        past_key_values: EncoderDecoderCache,
    ) -> Tensor:
        """Logits (batch, rivals, vocabulary) after tokens (batch, rivals) that are rivals for one position: the beams
        of a search. `mask` (batch, 1, rivals, keys) is added to attention and tells each which keys of the cache it
        sees.
        """
        decoder = self.model.decoder
        x = decoder.placed(self.model.target_embeddings(tokens), position, 1)  # (batch, rivals, hidden)
        return self.lm_head(decoder.through_layers(x, mask, memory, memory_mask, past_key_values))


class TransformerSeq2SeqEncoderModel(TransformerSeq2SeqPreTrainedModel):
    """The encoder alone, loaded from the folder of a whole model: for embeddings of sentences."""

    _keys_to_ignore_on_load_unexpected = [r"decoder\.", r"lm_head\."]  # noqa: RUF012

    def __init__(self, config: TransformerSeq2SeqConfig):
        super().__init__(config)
        self.encoder = TransformerSeq2SeqEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        return self.encoder(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)


TransformerSeq2SeqConfig.register_for_auto_class()
TransformerSeq2SeqEncoderModel.register_for_auto_class("AutoModel")
TransformerSeq2SeqForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "TransformerSeq2SeqEncoderModel",
    "TransformerSeq2SeqForConditionalGeneration",
    "TransformerSeq2SeqModel",
    "TransformerSeq2SeqPreTrainedModel",
]
