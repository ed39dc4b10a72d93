"""The recurrent encoder-decoder as a `PreTrainedModel`.

source tokens ─► Encoder ─► states, keys and values, final state
                               │                        │ StateHandover
START + target ─► Decoder: cells + Attention ◄──────────┘
                               └─► Readout ─► lm_head ─► logits
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from .attention import Attention
from .configuration_rnn_seq2seq import RNNSeq2SeqConfig
from .recurrent import RecurrentCache, initialize_recurrent
from .rnn_decoder import RNNSeq2SeqDecoder
from .rnn_encoder import RNNEncoderOutput, RNNSeq2SeqEncoder
from .seq2seq_head import Seq2SeqHead, cross_entropy


class RNNSeq2SeqPreTrainedModel(PreTrainedModel):
    config: RNNSeq2SeqConfig
    config_class = RNNSeq2SeqConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    # a state does not hold its past, so assisted decoding cannot take tokens back: transformers then refuses it
    _is_stateful = True
    supports_gradient_checkpointing = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.RNNBase):
            initialize_recurrent(module)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, Attention):
            if module.score == "additive":
                init.xavier_uniform_(module.energy)
            elif module.score == "rbf":
                init.zeros_(module.log_precision)
        else:
            super()._init_weights(module)


class RNNSeq2SeqModel(RNNSeq2SeqPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__(config)
        self.encoder = RNNSeq2SeqEncoder(config)
        self.decoder = RNNSeq2SeqDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.embed_tokens = value

    @property
    def target_embeddings(self) -> nn.Embedding:
        """The word vectors of the target."""
        return self.encoder.embed_tokens if self.decoder.embed_tokens is None else self.decoder.embed_tokens

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
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        outputs = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                return_dict=True,
                **outputs,
            )
        elif isinstance(encoder_outputs, tuple) or "final_hidden" not in encoder_outputs:
            raise ValueError(
                "encoder_outputs must be what this model's encoder returns with return_dict=True: the decoder starts "
                "from the final state in it"
            )
        if (decoder_input_ids is None) == (decoder_inputs_embeds is None):
            raise ValueError("the decoder needs exactly one of decoder_input_ids and decoder_inputs_embeds")
        if decoder_inputs_embeds is None:
            decoder_inputs_embeds = self.target_embeddings(decoder_input_ids)
        decoded = self.decoder(
            inputs_embeds=decoder_inputs_embeds,
            encoder_outputs=encoder_outputs,
            encoder_attention_mask=attention_mask,
            attention_mask=decoder_attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            feed_back=kwargs.get("feed_back"),
            return_dict=True,
            **outputs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
        )


class RNNSeq2SeqForConditionalGeneration(Seq2SeqHead, RNNSeq2SeqPreTrainedModel, GenerationMixin):
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
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits (batch, target, vocabulary), and with `labels` (batch, target; −100 is ignored) the loss.

        `num_items_in_batch` is what the summed loss is divided by, when a step is more than this batch.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        samples = self.training and self.config.scheduled_sampling > 0
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
            feed_back=self._feed_back if samples else None,
            return_dict=True,
        )
        logits = self.lm_head(outputs.last_hidden_state)  # (batch, target, vocabulary)
        return Seq2SeqLMOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
        )

    @torch.no_grad()
    def _predicted_token(self, readout: Tensor) -> Tensor:
        logits = self.lm_head(readout)  # (batch, vocabulary)
        if self.config.feedback == "argmax":
            return logits.argmax(-1)
        return torch.multinomial(logits.float().softmax(-1), 1).squeeze(-1)

    def _feed_back(self, readout: Tensor, true_embedding: Tensor) -> Tensor:
        """Scheduled sampling: the embedding of the model's own token in place of some true ones."""
        own = self.model.target_embeddings(self._predicted_token(readout))  # (batch, embedding)
        own = self.model.decoder.disturbed(own)
        chosen = torch.rand(own.shape[0], 1, device=own.device) < self.config.scheduled_sampling
        return torch.where(chosen, own, true_embedding)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """A recurrent state instead of keys and values."""
        if generation_config.cache_implementation is not None:
            raise ValueError("cache_implementation is for keys and values: a recurrent decoder has a state")
        given = model_kwargs.get("past_key_values")
        if given is not None:
            given._is_user_defined = True  # as transformers marks a cache that it must not reset
        elif generation_config.use_cache:
            model_kwargs["past_key_values"] = RecurrentCache()

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: RecurrentCache | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Leave out the tokens that a given state has seen, which transformers does only if there is a mask of all."""
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        unmasked = kwargs.get("decoder_attention_mask") is None
        if next_sequence_length is None and unmasked and input_ids.shape[1] > seen:
            next_sequence_length = input_ids.shape[1] - seen
        return super().prepare_inputs_for_generation(
            input_ids, next_sequence_length=next_sequence_length, past_key_values=past_key_values, **kwargs
        )


RNNSeq2SeqConfig.register_for_auto_class()
RNNSeq2SeqModel.register_for_auto_class("AutoModel")
RNNSeq2SeqForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["RNNSeq2SeqForConditionalGeneration", "RNNSeq2SeqModel", "RNNSeq2SeqPreTrainedModel"]
