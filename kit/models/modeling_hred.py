"""The hierarchical recurrent encoder-decoder (Serban et al., 2016): a dialogue is a sequence of turns, and a turn a
sequence of tokens.

    tokens of each turn ─► utterance layers ─► one vector for each turn ──────┐ concatenated
                                                  │                           ▼
                                  context layers over the turns ─► states, keys and values, final state
                                                                     │                        │ StateBridge
                                    START + answer ─► RNNDecoder: cells + Attention ◄─────────┘
                                                          └─► Readout ─► lm_head ─► logits

Shapes in comments: batch, turns (of a dialogue), tokens (of a turn), target (positions), embedding (width of a word
embedding), utterance_width (of the vector of a turn), encoder_size (of the encoder's output), vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_hred import HREDConfig
from .modeling_rnn_seq2seq import RNNTextGenerationMixin, RNNTextModelMixin, seq2seq_output, validate_encoder_outputs
from .recurrent import Dropout, RecurrentCache, add_noise, float_dtype, last_real_step, recurrent_stack, run_stack
from .rnn_decoder import Feedback, RNNDecoder, RNNEncoder, RNNEncoderOutput, RNNPreTrainedModel, attention_memory


class HREDPreTrainedModel(RNNPreTrainedModel):
    """Base class of the models with a `HREDConfig`."""

    config: HREDConfig
    config_class = HREDConfig
    auto_model = "HREDModel"


class HREDEncoder(RNNEncoder):
    """Reads the turns of a dialogue. Padding, of turns or of their tokens, on either side, changes nothing."""

    main_input_name = "input_ids"

    def __init__(self, config: HREDConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.word_embedding_size, config.pad_token_id)
        self.utterance_layers = recurrent_stack(
            config.cell,
            config.word_embedding_size,
            config.utterance_hidden_size,
            config.utterance_layers,
            config.bidirectional,
        )
        self.context_layers = recurrent_stack(
            config.cell, config.utterance_width, config.context_hidden_size, config.context_layers
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
        """Encode input_ids (batch, turns, tokens); attention_mask, of the same shape, is 1 at real tokens. A turn
        without any is padding.

        `output_attentions` has no effect: `generate()` passes it to every encoder.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("the encoder needs exactly one of input_ids and inputs_embeds")
        shape = input_ids.shape if inputs_embeds is None else inputs_embeds.shape[:-1]
        device = (inputs_embeds if input_ids is None else input_ids).device
        mask = self._token_mask(attention_mask, shape, device)  # (batch, turns, tokens)
        is_turn = mask.any(-1)  # (batch, turns)
        turns = self._encode_turns(input_ids, inputs_embeds, mask, is_turn)  # (batch, turns, utterance_width)
        stack = run_stack(self.context_layers, self.dropout, self.dropout(turns), is_turn)
        # (batch, turns, context_hidden_size), and (batch, context layers, context_hidden_size)
        states, hidden, cell = stack.states[-1], stack.hidden, stack.cell
        if self.config.include_utterances:
            states = torch.cat([states, turns], dim=-1)  # (batch, turns, encoder_size)
            last = last_real_step(turns, is_turn).unsqueeze(1).expand(-1, hidden.shape[1], -1)
            hidden = torch.cat([hidden, last], dim=-1)  # (batch, context layers, encoder_size)
            cell = None if cell is None else torch.cat([cell, last], dim=-1)
        return self.encoded(states, hidden, cell, is_turn, stack.states, output_hidden_states)

    def _token_mask(self, attention_mask: Tensor | None, shape: torch.Size, device: torch.device) -> Tensor:
        """Real tokens (batch, turns, tokens), also from a mask whose turns `generate()` has flattened."""
        if len(shape) != 3:
            raise ValueError(f"input_ids must be (batch, turns, tokens), not of shape {tuple(shape)}")
        if attention_mask is None:
            return torch.ones(shape, dtype=torch.bool, device=device)
        if attention_mask.shape not in (shape, (shape[0], shape[1] * shape[2])):
            raise ValueError(
                f"attention_mask must have the shape of input_ids, {tuple(shape)}, not {tuple(attention_mask.shape)}"
            )
        return attention_mask.bool().view(shape)

    def _encode_turns(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, mask: Tensor, is_turn: Tensor
    ) -> Tensor:
        """The final state of each turn (batch, turns, utterance_width), zero for padding."""
        if torch.compiler.is_exporting():  # the shapes of a graph cannot depend on values: padding is encoded too
            input_ids, inputs_embeds = (None if x is None else x.flatten(0, 1) for x in (input_ids, inputs_embeds))
            vectors = self._encode_tokens(input_ids, inputs_embeds, mask.flatten(0, 1))
            return vectors.unflatten(0, is_turn.shape).masked_fill(~is_turn.unsqueeze(-1), 0.0)
        input_ids, inputs_embeds = (None if x is None else x[is_turn] for x in (input_ids, inputs_embeds))
        size = (*is_turn.shape, self.config.utterance_width)
        if not bool(is_turn.any()):  # a batch of empty dialogues has no turn to encode
            return torch.zeros(size, dtype=float_dtype(self), device=mask.device)
        vectors = self._encode_tokens(input_ids, inputs_embeds, mask[is_turn])
        turns = vectors.new_zeros(size)  # autocast may have changed the dtype
        turns[is_turn] = vectors
        return turns

    def _encode_tokens(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, mask: Tensor) -> Tensor:
        """The final states (turns, utterance_width) of turns (turns, tokens); mask is true at real tokens."""
        embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        x = self.dropout(add_noise(embeds, self.config.embedding_noise, self.training))
        return run_stack(self.utterance_layers, self.dropout, x, mask).hidden[:, -1]


class HREDModel(RNNTextModelMixin, HREDPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: HREDConfig):
        super().__init__(config)
        self.encoder = HREDEncoder(config)
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
        """Readouts (batch, target, readout size) of decoder_input_ids (batch, target), given input_ids (batch, turns,
        tokens).

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
            past_key_values=past_key_values,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            feedback=feedback,
            return_dict=True,
        )
        return seq2seq_output(encoder_outputs, decoder_outputs)


class HREDForConditionalGeneration(RNNTextGenerationMixin, HREDPreTrainedModel, GenerationMixin):
    """The dialogue model with its output layer: train it with `labels`, answer with `generate()`."""

    def __init__(self, config: HREDConfig):
        super().__init__(config)
        self._tied_weights_keys = self.tied_weights()
        self.model = HREDModel(config)
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
        """Encode the turns of a dialogue and decode the answer.

        Args:
            input_ids: Tokens of each turn, (batch, turns, tokens).
            attention_mask: 1 at real tokens, of the same shape; a turn without any is padding.
            decoder_input_ids: Tokens that the decoder reads, (batch, target); by default `labels`, shifted right.
            decoder_attention_mask: 1 at real tokens of the answer, (batch, past + target).
            encoder_outputs: What the encoder returned for this source, which is then not encoded again.
            past_key_values: State of the decoder to continue from.
            inputs_embeds, decoder_inputs_embeds: Word embeddings instead of the ids.
            labels: Tokens to predict, (batch, target); −100 is ignored.
            num_items_in_batch: Divisor of the summed loss; by default the number of labels.
            sampling_probability: Replaces `config.scheduled_sampling` while training.

        Returns:
            `Seq2SeqLMOutput` with logits (batch, target, vocabulary) and, with `labels`, the loss. Cross-attentions
            are one tensor (batch, heads, target, turns).
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

    def _prepare_model_inputs(
        self, inputs: Tensor | None, bos_token_id: Tensor | None, model_kwargs: dict[str, Any]
    ) -> tuple[Tensor, str, dict[str, Any]]:
        """Flatten the turns of the mask: `generate()` expects two dimensions, and the encoder takes both shapes."""
        mask = model_kwargs.get("attention_mask")
        if mask is not None:
            model_kwargs = {**model_kwargs, "attention_mask": mask.flatten(1)}
        return super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)


HREDConfig.register_for_auto_class()
HREDModel.register_for_auto_class("AutoModel")
HREDForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["HREDForConditionalGeneration", "HREDModel", "HREDPreTrainedModel"]
