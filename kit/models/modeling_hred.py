"""The hierarchical recurrent encoder-decoder as a `PreTrainedModel`.

tokens of each turn ─► utterance layers ─► one vector for each turn ──────┐ beside
                                              │                          ▼
                              context layers over the turns ─► states, keys and values, final state
                                                                 │                        │ StateHandover
                                START + answer ─► Decoder: cells + Attention ◄────────────┘
                                                                 └─► Readout ─► lm_head ─► logits
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.utils.generic import can_return_tuple

from .configuration_hred import HREDConfig
from .dropout import Dropout
from .reader import last_real, read_layers, reading_layers
from .rnn_decoder import RNNSeq2SeqDecoder
from .rnn_memory import RNNEncoderOutput, add_noise, attention_memory
from .rnn_pretrained import RNNPreTrainedModel
from .rnn_writer import RNNWriterBody, RNNWriterHead


class HREDPreTrainedModel(RNNPreTrainedModel):
    config: HREDConfig
    config_class = HREDConfig
    main_input_name = "input_ids"


class HREDEncoder(nn.Module):
    """Reads the turns of a dialogue; padding, of turns or of their tokens, on either side, changes nothing."""

    main_input_name = "input_ids"

    def __init__(self, config: HREDConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.word_vector_size, config.pad_token_id)
        self.utterance_layers = reading_layers(
            config.cell,
            config.word_vector_size,
            config.utterance_hidden_size,
            config.utterance_layers,
            config.bidirectional,
        )
        self.context_layers = reading_layers(
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
        **kwargs: Any,
    ) -> RNNEncoderOutput:
        """Read input_ids (batch, turns, tokens); attention_mask, of the same shape, is 1 at real tokens. A turn without
        any is no turn."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("the encoder needs exactly one of input_ids and inputs_embeds")
        shape = input_ids.shape if inputs_embeds is None else inputs_embeds.shape[:-1]
        if len(shape) != 3:
            raise ValueError(f"input_ids must be (batch, turns, tokens), not of shape {tuple(shape)}")
        if attention_mask is None:
            attention_mask = torch.ones(shape, dtype=torch.bool, device=self.embed_tokens.weight.device)
        if attention_mask.shape not in (shape, (shape[0], shape[1] * shape[2])):
            raise ValueError(
                f"attention_mask must have the shape of input_ids, {tuple(shape)}, not {tuple(attention_mask.shape)}"
            )
        mask = attention_mask.bool().view(shape)
        is_turn = mask.any(-1)  # (batch, turns)
        embeds = self.embed_tokens(input_ids[is_turn]) if inputs_embeds is None else inputs_embeds[is_turn]
        turns = self._turns(embeds, mask, is_turn)  # (batch, turns, utterance_width)
        read = read_layers(self.context_layers, self.dropout, self.dropout(turns), is_turn)
        states, hidden, cell = read.states[-1], read.hidden, read.cell  # (batch, turns or layers, context_hidden_size)
        if self.config.sees_utterances:
            states = torch.cat([states, turns], dim=-1)
            last = last_real(turns, is_turn).unsqueeze(1).expand(-1, hidden.shape[1], -1)
            hidden = torch.cat([hidden, last], dim=-1)
            cell = None if cell is None else torch.cat([cell, last], dim=-1)
        keys, values = (None, None) if self.memory is None else self.memory(states)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return RNNEncoderOutput(
            last_hidden_state=states,
            final_hidden=hidden,
            final_cell=cell,
            keys=keys,
            values=values,
            memory_mask=is_turn,
            hidden_states=tuple(read.states) if output_hidden_states else None,
        )

    def _turns(self, embeds: Tensor, mask: Tensor, is_turn: Tensor) -> Tensor:
        """The final state of each utterance, from the word vectors (number of turns, tokens, embedding) of real turns;
        zero where there is no turn."""
        turns = embeds.new_zeros(*is_turn.shape, self.config.utterance_width)
        if len(embeds) > 0:  # otherwise nothing has been said
            x = self.dropout(add_noise(embeds, self.config.embedding_noise, self.training))
            turns[is_turn] = read_layers(self.utterance_layers, self.dropout, x, mask[is_turn]).hidden[:, -1]
        return turns


class HREDModel(RNNWriterBody, HREDPreTrainedModel):
    """Encoder and decoder, without the output layer."""

    def __init__(self, config: HREDConfig):
        super().__init__(config)
        self.encoder = HREDEncoder(config)
        self.decoder = RNNSeq2SeqDecoder(config)
        self.post_init()


class HREDForConditionalGeneration(RNNWriterHead, HREDPreTrainedModel, GenerationMixin):
    """The dialogue model with its output layer: train it with `labels`, answer with `generate()`.

    `input_ids` and `attention_mask` are (batch, turns, tokens), `labels` (batch, target); cross-attentions are
    (batch, heads, target, turns).
    """

    def __init__(self, config: HREDConfig):
        super().__init__(config)
        self._tied_weights_keys = self.tied_weights()
        self.model = HREDModel(config)
        self.lm_head = nn.Linear(self.model.decoder.readout.size, config.decoder_vocab_size)
        self.post_init()

    def _prepare_model_inputs(
        self, inputs: Tensor | None, bos_token_id: Tensor | None, model_kwargs: dict[str, Any]
    ) -> tuple[Tensor, str, dict[str, Any]]:
        """`generate()` insists on masks of two dimensions: turns one after the other, as the encoder takes them too."""
        mask = model_kwargs.get("attention_mask")
        if mask is not None:
            model_kwargs = {**model_kwargs, "attention_mask": mask.flatten(1)}
        return super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)


HREDConfig.register_for_auto_class()
HREDModel.register_for_auto_class("AutoModel")
HREDForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["HREDForConditionalGeneration", "HREDModel", "HREDPreTrainedModel"]
