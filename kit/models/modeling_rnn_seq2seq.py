"""The recurrent encoder-decoder, and what all models share that decode text with the recurrent decoder.

    source tokens ─► RNNSeq2SeqEncoder ─► states, keys and values, final state
                                            │                        │ StateBridge
    START + target ─► RNNDecoder: cells + Attention ◄────────────────┘
                          └─► Readout ─► lm_head ─► logits

Shapes in comments: batch, source and target (positions), embedding (width of a word embedding), layers (of the
encoder), encoder_size (width of its output, both directions concatenated), and vocabulary of the target.
"""

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_rnn_seq2seq import RNNSeq2SeqConfig, RNNTextDecoderConfig
from .recurrent import (
    Dropout,
    RecurrentCache,
    RecurrentGenerationMixin,
    add_noise,
    cross_entropy,
    recurrent_stack,
    run_stack,
    shift_right,
)
from .rnn_decoder import Feedback, RNNDecoder, RNNEncoder, RNNEncoderOutput, RNNPreTrainedModel, attention_memory


class RNNTextModelMixin:
    """An encoder with a decoder of text, without the output layer. List it before the `PreTrainedModel`."""

    encoder: Any
    decoder: Any

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value

    @property
    def target_embeddings(self) -> nn.Embedding:
        """The word embeddings of the target, which the encoder may own."""
        return self.encoder.embed_tokens if self.decoder.embed_tokens is None else self.decoder.embed_tokens

    def embed_target(self, decoder_input_ids: Tensor | None, decoder_inputs_embeds: Tensor | None) -> Tensor:
        """Word embeddings (batch, target, embedding) of the ids, or those that are passed instead.

        Raises ValueError unless exactly one of the two is passed.
        """
        if (decoder_input_ids is None) == (decoder_inputs_embeds is None):
            raise ValueError("the decoder needs exactly one of decoder_input_ids and decoder_inputs_embeds")
        return self.target_embeddings(decoder_input_ids) if decoder_inputs_embeds is None else decoder_inputs_embeds


class RNNTextGenerationMixin(RecurrentGenerationMixin):
    """A model with its output layer (`lm_head`): scheduled sampling, the loss, and resizing of vocabularies.

    List it first, and `GenerationMixin` last.
    """

    config: RNNTextDecoderConfig
    model: Any
    lm_head: nn.Linear

    beam_layout: ClassVar[str] = "rows"
    """How a beam search lays out its beams: as rows of the decoder, which share a row of the encoder's states."""

    def tied_weights(self) -> dict[str, str]:
        """The matrix that the output layer shares if `tie_word_embeddings` is set."""
        owner = "encoder" if self.config.share_encoder_decoder_embeddings else "decoder"
        return {"lm_head.weight": f"model.{owner}.embed_tokens.weight"}

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return shift_right(labels, self.config.decoder_start_token_id, self.config.pad_token_id)

    def feedback(self, sampling_probability: float | None) -> Feedback | None:
        """The feedback of this forward pass: scheduled sampling (Bengio et al., 2015), or None for teacher forcing."""
        if sampling_probability is None:
            sampling_probability = self.config.scheduled_sampling
        if not self.training or sampling_probability == 0:  # type: ignore[attr-defined]
            return None
        return partial(self._mix_inputs, probability=sampling_probability)

    def _mix_inputs(self, readout: Tensor, true_embedding: Tensor, probability: float) -> Tensor:
        """Next inputs (batch, embedding): in each row, with this probability, the embedding of the token that the model
        predicts, otherwise the true one."""
        predicted = self.model.target_embeddings(self._predict_token(readout))  # (batch, embedding)
        predicted = self.model.decoder.regularize(predicted)
        use_predicted = torch.rand(predicted.shape[0], 1, device=predicted.device) < probability
        return torch.where(use_predicted, predicted, true_embedding)

    @torch.no_grad()
    def _predict_token(self, readout: Tensor) -> Tensor:
        """The tokens (batch,) that scheduled sampling feeds back: the most probable ones, or sampled ones."""
        logits = self.lm_head(readout)  # (batch, vocabulary)
        if self.config.feedback == "argmax":
            return logits.argmax(-1)
        return torch.multinomial(logits.float().softmax(-1), 1).squeeze(-1)

    def lm_output(
        self, outputs: Seq2SeqModelOutput, labels: Tensor | None, num_items_in_batch: Tensor | int | None
    ) -> Seq2SeqLMOutput:
        """Logits (batch, target, vocabulary), and the loss if there are labels."""
        logits = self.lm_head(outputs.last_hidden_state)
        return Seq2SeqLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
        )

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
        self.tie_weights()  # type: ignore[attr-defined]
        return self.model.decoder.embed_tokens

    def _resize_target(self, size: int, mean_resizing: bool) -> None:
        """Resize the target's word embeddings, unless the encoder owns them, and the output layer."""
        decoder = self.model.decoder
        if decoder.embed_tokens is not None:
            decoder.embed_tokens = self._resize(decoder.embed_tokens, size, None, mean_resizing)
        self.lm_head = self._get_resized_lm_head(  # type: ignore[attr-defined]
            self.lm_head, size, mean_resizing=mean_resizing
        )
        self.config.decoder_vocab_size = size

    def _resize(self, old: nn.Embedding, size: int | None, multiple: int | None, mean_resizing: bool) -> nn.Embedding:
        """New word embeddings of this size, rounded up to a multiple; still frozen if the old ones are."""
        new = self._get_resized_embeddings(old, size, multiple, mean_resizing)  # type: ignore[attr-defined]
        return new.requires_grad_(old.weight.requires_grad)  # transformers makes new ones trainable


def validate_encoder_outputs(encoder_outputs: Any) -> RNNEncoderOutput:
    """The encoder outputs, unchanged. Raises ValueError if they lack the final state, as those of other models do."""
    if isinstance(encoder_outputs, tuple) or "final_hidden" not in encoder_outputs:
        raise ValueError(
            "encoder_outputs must be what this model's encoder returns with return_dict=True: the decoder starts "
            "from the final state in it"
        )
    return encoder_outputs


def seq2seq_output(
    encoder_outputs: RNNEncoderOutput, decoder_outputs: BaseModelOutputWithPastAndCrossAttentions
) -> Seq2SeqModelOutput:
    """Both outputs under the names that transformers gives them."""
    return Seq2SeqModelOutput(
        last_hidden_state=decoder_outputs.last_hidden_state,
        past_key_values=decoder_outputs.past_key_values,
        decoder_hidden_states=decoder_outputs.hidden_states,
        cross_attentions=decoder_outputs.cross_attentions,
        encoder_last_hidden_state=encoder_outputs.last_hidden_state,
        encoder_hidden_states=encoder_outputs.hidden_states,
    )


class RNNSeq2SeqPreTrainedModel(RNNPreTrainedModel):
    """Base class of the models with a `RNNSeq2SeqConfig`."""

    config: RNNSeq2SeqConfig
    config_class = RNNSeq2SeqConfig
    auto_model = "RNNSeq2SeqModel"


class RNNSeq2SeqEncoder(RNNEncoder):
    """Reads the source. Padding, on either side, changes nothing."""

    main_input_name = "input_ids"

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.word_embedding_size, config.pad_token_id)
        self.layers = recurrent_stack(
            config.cell,
            config.word_embedding_size,
            config.encoder_hidden_size,
            config.encoder_layers,
            config.bidirectional,
        )
        self.memory = attention_memory(config)
        self.dropout = Dropout(config.dropout)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> RNNEncoderOutput:
        """Encode input_ids (batch, source); attention_mask (batch, source) is 1 at real tokens.

        `output_attentions` has no effect: `generate()` passes it to every encoder.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("the encoder needs exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        # (batch, source, embedding)
        x = self.dropout(add_noise(inputs_embeds, self.config.embedding_noise, self.training))
        if attention_mask is None:
            attention_mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        stack = run_stack(self.layers, self.dropout, x, attention_mask.bool(), self.config.reverse_source)
        # states (batch, source, encoder_size), hidden and cell (batch, layers, encoder_size)
        return self.encoded(stack.states[-1], stack.hidden, stack.cell, None, stack.states, output_hidden_states)


class RNNSeq2SeqModel(RNNTextModelMixin, RNNSeq2SeqPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.encoder = RNNSeq2SeqEncoder(config)
        self.decoder = RNNDecoder(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: RNNEncoderOutput | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        feedback: Feedback | None = None,
    ) -> Seq2SeqModelOutput:
        """Readouts (batch, target, readout size) of decoder_input_ids (batch, target), given input_ids (batch, source).

        With `feedback`, each decoder input but the first is what it returns (scheduled sampling).
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                output_hidden_states=output_hidden_states,
                return_dict=True,
            )
        encoder_outputs = validate_encoder_outputs(encoder_outputs)
        decoder_outputs = self.decoder(
            inputs_embeds=self.embed_target(decoder_input_ids, decoder_inputs_embeds),
            encoder_outputs=encoder_outputs,
            attention_mask=decoder_attention_mask,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            feedback=feedback,
            return_dict=True,
        )
        return seq2seq_output(encoder_outputs, decoder_outputs)


class RNNSeq2SeqForConditionalGeneration(RNNTextGenerationMixin, RNNSeq2SeqPreTrainedModel, GenerationMixin):
    """The encoder-decoder with its output layer: train it with `labels`, decode with `generate()`."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self._tied_weights_keys = self.tied_weights()
        self.model = RNNSeq2SeqModel(config)
        self.lm_head = nn.Linear(self.model.decoder.readout.size, config.decoder_vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: RNNEncoderOutput | None = None,
        past_key_values: RecurrentCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        sampling_probability: float | None = None,
    ) -> Seq2SeqLMOutput:
        """Encode the source and decode the target.

        Args:
            input_ids: Tokens of the source, (batch, source).
            attention_mask: 1 at real tokens of the source, 0 at padding on either side, (batch, source).
            decoder_input_ids: Tokens that the decoder reads, (batch, target); by default `labels`, shifted right.
            decoder_attention_mask: 1 at real tokens of the target, (batch, past + target).
            encoder_outputs: What the encoder returned for this source, which is then not encoded again.
            past_key_values: State of the decoder to continue from.
            inputs_embeds, decoder_inputs_embeds: Word embeddings instead of the ids.
            labels: Tokens to predict, (batch, target); −100 is ignored.
            num_items_in_batch: Divisor of the summed loss; by default the number of labels.
            sampling_probability: Replaces `config.scheduled_sampling` while training.

        Returns:
            `Seq2SeqLMOutput` with logits (batch, target, vocabulary) and, with `labels`, the loss. Cross-attentions
            are one tensor (batch, heads, target, source).
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
            feedback=self.feedback(sampling_probability),
            return_dict=True,
        )
        return self.lm_output(outputs, labels, num_items_in_batch)


RNNSeq2SeqConfig.register_for_auto_class()
RNNSeq2SeqModel.register_for_auto_class("AutoModel")
RNNSeq2SeqForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["RNNSeq2SeqForConditionalGeneration", "RNNSeq2SeqModel", "RNNSeq2SeqPreTrainedModel"]
