"""The Transformer encoder-decoder (Vaswani et al., 2017).

    source tokens ─► TransformerSeq2SeqEncoder: embeddings + positions ─► layers ─► states
                                                                                      │ cross-attention
    START + target ─► TransformerSeq2SeqDecoder: embeddings + positions ─► layers ◄───┘ ─► lm_head ─► logits

Shapes in comments: batch, source and target (positions), length (either), hidden (width of the model), keys (positions
in the cache), beams of a search, and vocabulary of the target.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_transformer_seq2seq import TransformerSeq2SeqConfig
from .transformer_layers import DecoderLayer, Dropout, EncoderLayer, MultiHeadAttention, Positions, init_weights


# Copied from recurrent.py, so that a Transformer is uploaded without recurrent code; a test compares the two.
def shift_right(labels: Tensor, start: int, pad: int) -> Tensor:
    """Decoder input of the labels: START, then each label but the last; ignored labels (−100) become PAD."""
    shifted = labels.new_full(labels.shape, start)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, pad)


# Copied from recurrent.py
def cross_entropy(logits: Tensor, labels: Tensor, num_items: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of labels (−100 is ignored), summed and divided by `num_items`, or by the number of labels."""
    # half precision is summed in float32; float64 stays float64
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.flatten().to(logits.device)
    total = nn.functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=-100, reduction="sum")
    return total / ((labels != -100).sum() if num_items is None else num_items)


class TransformerSeq2SeqPreTrainedModel(PreTrainedModel):
    """Base class of the models with a `TransformerSeq2SeqConfig`."""

    config: TransformerSeq2SeqConfig
    config_class = TransformerSeq2SeqConfig
    auto_model = "TransformerSeq2SeqEncoderModel"
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        init_weights(module, self.config)

    # Copied from recurrent.py
    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model. If its code is saved too, `auto_map` also gets the class without a head for `AutoModel`:
        transformers lists only the saved class."""
        if self._auto_class is not None and self.auto_model is not None:
            reference = f"{type(self).__module__.rpartition('.')[2]}.{self.auto_model}"
            self.config.auto_map = {**(getattr(self.config, "auto_map", None) or {}), "AutoModel": reference}
        super().save_pretrained(*args, **kwargs)


class TransformerStack(TransformerSeq2SeqPreTrainedModel):
    """What encoder and decoder share: word embeddings with positions, layers, and the final norm."""

    def __init__(self, config: TransformerSeq2SeqConfig, layers: nn.ModuleList, vocabulary: int | None):
        super().__init__(config)
        size = config.hidden_size
        self.embed_tokens = None if vocabulary is None else nn.Embedding(vocabulary, size, config.pad_token_id)
        self.scale = size**0.5 if config.scale_embedding else 1.0
        self.positions = Positions(config)
        self.layers = layers
        # the output of a post-norm layer is normalized already
        self.norm = nn.LayerNorm(size) if config.norm == "pre" else nn.Identity()
        self.dropout = Dropout(config.input_dropout)
        self.gradient_checkpointing = False

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed_tokens = value

    def add_positions(self, embeddings: Tensor, start: int | Tensor = 0, length: int | None = None) -> Tensor:
        """The first layer's input (batch, length, hidden) from word embeddings; see `Positions.forward`."""
        return self.dropout(self.positions(embeddings * self.scale, start, length))


class TransformerSeq2SeqEncoder(TransformerStack):
    """Reads the source."""

    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": MultiHeadAttention}  # noqa: RUF012

    def __init__(self, config: TransformerSeq2SeqConfig):
        layers = nn.ModuleList(EncoderLayer(config, i) for i in range(config.encoder_layers))
        super().__init__(config, layers, config.vocab_size)
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Encode input_ids (batch, source); attention_mask (batch, source) is 1 at real tokens.

        `capture_outputs` reads `output_hidden_states` and adds the states to the output.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("the encoder needs exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        x = self.add_positions(inputs_embeds)  # (batch, source, hidden)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=x, attention_mask=attention_mask)
        for layer in self.layers:
            x = layer(x, mask, output_attentions=output_attentions)
        return BaseModelOutput(last_hidden_state=self.norm(x))


class TransformerSeq2SeqDecoder(TransformerStack):
    """Decodes the target. Where source and target share their word embeddings, the encoder owns them."""

    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": DecoderLayer,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config: TransformerSeq2SeqConfig):
        layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.decoder_layers))
        super().__init__(config, layers, None if config.share_encoder_decoder_embeddings else config.decoder_vocab_size)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        inputs_embeds: Tensor,
        encoder_outputs: BaseModelOutput,
        attention_mask: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode inputs_embeds (batch, target, hidden), which come after what `past_key_values` holds.

        A cache for self-attention alone also works: the keys and values of the source are then computed again.

        `capture_outputs` reads `output_hidden_states` and adds the states to the output.
        """
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if past_key_values is not None and not isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = EncoderDecoderCache(past_key_values, DynamicCache(config=self.config))
        past_length = 0 if past_key_values is None else past_key_values.get_seq_length()
        x = self.add_positions(inputs_embeds, past_length)  # (batch, target, hidden)
        memory = encoder_outputs.last_hidden_state  # (batch, source, hidden)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=None if past_key_values is None else past_key_values.self_attention_cache,
        )
        memory_mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=x, attention_mask=encoder_attention_mask, encoder_hidden_states=memory
        )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.run_layers(x, mask, memory, memory_mask, past_key_values, output_attentions),
            past_key_values=past_key_values if use_cache else None,
        )

    def run_layers(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        past_key_values: EncoderDecoderCache | None,
        output_attentions: bool | None = None,
    ) -> Tensor:
        """Run all layers and the final norm over x (batch, target, hidden); masks are in the form that the attention
        function of transformers takes."""
        for layer in self.layers:
            # gradient checkpointing differentiates positional arguments only
            x = layer(
                x, mask, memory, memory_mask, past_key_values=past_key_values, output_attentions=output_attentions
            )
        return self.norm(x)


class TransformerSeq2SeqModel(TransformerSeq2SeqPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: TransformerSeq2SeqConfig):
        super().__init__(config)
        self.encoder = TransformerSeq2SeqEncoder(config)
        self.decoder = TransformerSeq2SeqDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value

    @property
    def target_embeddings(self) -> nn.Embedding:
        """The word embeddings of the target, which the encoder may own."""
        return self.encoder.embed_tokens if self.decoder.embed_tokens is None else self.decoder.embed_tokens

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> Seq2SeqModelOutput:
        """States (batch, target, hidden) of decoder_input_ids (batch, target), given input_ids (batch, source)."""
        # resolved here: `capture_outputs` treats None as False, whatever the config has
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                output_attentions=output_attentions,
                output_hidden_states=output_hidden_states,
                return_dict=True,
            )
        if isinstance(encoder_outputs, tuple):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        if (decoder_input_ids is None) == (decoder_inputs_embeds is None):
            raise ValueError("the decoder needs exactly one of decoder_input_ids and decoder_inputs_embeds")
        if decoder_inputs_embeds is None:
            decoder_inputs_embeds = self.target_embeddings(decoder_input_ids)
        decoder_outputs = self.decoder(
            inputs_embeds=decoder_inputs_embeds,
            encoder_outputs=encoder_outputs,
            attention_mask=decoder_attention_mask,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class TransformerSeq2SeqForConditionalGeneration(TransformerSeq2SeqPreTrainedModel, GenerationMixin):
    """The encoder-decoder with its output layer: train it with `labels`, decode with `generate()`."""

    # the loss takes `num_items_in_batch`; without this mark the Trainer believes it only of a forward with **kwargs
    accepts_loss_kwargs = True

    beam_layout: ClassVar[str] = "positions"
    """How a beam search lays out its beams: as target positions of one row, see `sibling_beam_logits`."""

    def __init__(self, config: TransformerSeq2SeqConfig):
        super().__init__(config)
        owner = "encoder" if config.share_encoder_decoder_embeddings else "decoder"
        self._tied_weights_keys = {"lm_head.weight": f"model.{owner}.embed_tokens.weight"}
        self.model = TransformerSeq2SeqModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.decoder_vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Seq2SeqLMOutput:
        """Encode the source and decode the target.

        Args:
            input_ids: Tokens of the source, (batch, source).
            attention_mask: 1 at real tokens of the source, 0 at padding on either side, (batch, source).
            decoder_input_ids: Tokens that the decoder reads, (batch, target); by default `labels`, shifted right.
            decoder_attention_mask: 1 at real tokens of the target, (batch, past + target).
            encoder_outputs: What the encoder returned for this source, which is then not encoded again.
            past_key_values: Keys and values of the target so far, and of the source.
            inputs_embeds, decoder_inputs_embeds: Word embeddings instead of the ids.
            labels: Tokens to predict, (batch, target); −100 is ignored.
            num_items_in_batch: Divisor of the summed loss; by default the number of labels.

        Returns:
            `Seq2SeqLMOutput` with logits (batch, target, vocabulary) and, with `labels`, the loss. Cross-attentions
            are (batch, heads, target, source) for each layer, if the attention is `eager`.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.lm_head(outputs.last_hidden_state)  # (batch, target, vocabulary)
        return Seq2SeqLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def sibling_beam_logits(
        self,
        tokens: Tensor,
        position: int,
        mask: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None,
        past_key_values: EncoderDecoderCache,
    ) -> Tensor:
        """Logits (batch, beams, vocabulary) after tokens (batch, beams): one token of each beam, all at one position.

        mask (batch, 1, beams, keys) is added to the attention scores: each beam sees the keys of its own ancestors in
        the cache.
        """
        decoder = self.model.decoder
        x = decoder.add_positions(self.model.target_embeddings(tokens), position, 1)  # (batch, beams, hidden)
        return self.lm_head(decoder.run_layers(x, mask, memory, memory_mask, past_key_values))

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the source's word embeddings, and the target's with them where there is one vocabulary."""
        old = self.model.get_input_embeddings()
        new = self._resize(old, new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.model.set_input_embeddings(new)
        if not self.config.separate_vocabularies:
            self._resize_target(new.weight.shape[0], mean_resizing)
        return new

    def resize_decoder_token_embeddings(self, new_num_tokens: int, mean_resizing: bool = True) -> nn.Embedding:
        """Resize the target's word embeddings and the output layer of a model with two vocabularies.

        Raises ValueError for a model with one, where `resize_token_embeddings` resizes both.
        """
        if not self.config.separate_vocabularies:
            raise ValueError("source and target share one vocabulary: use resize_token_embeddings")
        self._resize_target(new_num_tokens, mean_resizing)
        self.tie_weights()
        return self.model.decoder.embed_tokens

    def _resize_target(self, size: int, mean_resizing: bool) -> None:
        """Resize the target's word embeddings, unless the encoder owns them, and the output layer."""
        decoder = self.model.decoder
        if decoder.embed_tokens is not None:
            decoder.embed_tokens = self._resize(decoder.embed_tokens, size, None, mean_resizing)
        self.lm_head = self._get_resized_lm_head(self.lm_head, size, mean_resizing=mean_resizing)
        self.config.decoder_vocab_size = size

    def _resize(self, old: nn.Embedding, size: int | None, multiple: int | None, mean_resizing: bool) -> nn.Embedding:
        """New word embeddings of this size, rounded up to a multiple; still frozen if the old ones are."""
        new = self._get_resized_embeddings(old, size, multiple, mean_resizing)
        return new.requires_grad_(old.weight.requires_grad)  # transformers makes new ones trainable


class TransformerSeq2SeqEncoderModel(TransformerSeq2SeqPreTrainedModel):
    """The encoder alone, loaded from the folder of a whole model: for sentence embeddings."""

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
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """States (batch, source, hidden) of input_ids (batch, source)."""
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return self.encoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )


TransformerSeq2SeqConfig.register_for_auto_class()
TransformerSeq2SeqEncoderModel.register_for_auto_class("AutoModel")
TransformerSeq2SeqForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "TransformerSeq2SeqEncoderModel",
    "TransformerSeq2SeqForConditionalGeneration",
    "TransformerSeq2SeqModel",
    "TransformerSeq2SeqPreTrainedModel",
]
