"""The recurrent encoder: states of the source, what attention needs of them, and the final state."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.generic import can_return_tuple

from .configuration_rnn_seq2seq import RNNSeq2SeqConfig
from .dropout import Dropout
from .reader import read_layers, reading_layers
from .rnn_memory import RNNEncoderOutput, add_noise, attention_memory


class RNNSeq2SeqEncoder(nn.Module):
    """Reads the source; padding, on either side, changes nothing."""

    main_input_name = "input_ids"

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.word_vector_size, config.pad_token_id)
        self.layers = reading_layers(
            config.cell,
            config.word_vector_size,
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
        **kwargs: Any,
    ) -> RNNEncoderOutput:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("the encoder needs exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        # (batch, source, embedding)
        x = self.dropout(add_noise(inputs_embeds, self.config.embedding_noise, self.training))
        if attention_mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        else:
            mask = attention_mask.bool()
        read = read_layers(self.layers, self.dropout, x, mask, self.config.reverse_source)
        states = read.states[-1]  # (batch, source, encoder_size)
        keys, values = (None, None) if self.memory is None else self.memory(states)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return RNNEncoderOutput(
            last_hidden_state=states,
            final_hidden=read.hidden,
            final_cell=read.cell,
            keys=keys,
            values=values,
            hidden_states=tuple(read.states) if output_hidden_states else None,
        )
