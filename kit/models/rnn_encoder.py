"""The recurrent encoder: states of the source, what attention needs of them, and the final state."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import ModelOutput
from transformers.utils.generic import can_return_tuple

from .attention import AttentionMemory
from .configuration_rnn_seq2seq import RNNSeq2SeqConfig
from .dropout import Dropout
from .recurrent import gather_time, read_padded, real_tokens_first, recurrent_layer


@dataclass
class RNNEncoderOutput(ModelOutput):
    """What the decoder needs of the source. Every tensor is batch-first, so that beams can be expanded."""

    last_hidden_state: Tensor | None = None  # (batch, source, encoder_size)
    final_hidden: Tensor | None = None  # (batch, layers, encoder_size)
    final_cell: Tensor | None = None  # (batch, layers, encoder_size), LSTM only
    keys: Tensor | None = None  # (batch, source, key_size), with attention
    values: Tensor | None = None  # (batch, source, encoder_size), with attention
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None  # none: the name is there because transformers reads it


def add_noise(embeddings: Tensor, config: RNNSeq2SeqConfig, training: bool) -> Tensor:
    """Embedding noise, a regulariser of training."""
    if not training or config.embedding_noise == 0:
        return embeddings
    return embeddings + config.embedding_noise * torch.randn_like(embeddings)


class RNNSeq2SeqEncoder(nn.Module):
    """Reads the source; padding, on either side, changes nothing."""

    main_input_name = "input_ids"

    def __init__(self, config: RNNSeq2SeqConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.word_vector_size, config.pad_token_id)
        self.layers = nn.ModuleList(
            recurrent_layer(
                config.cell,
                config.word_vector_size if i == 0 else config.encoder_size,
                config.encoder_hidden_size,
                config.bidirectional,
            )
            for i in range(config.encoder_layers)
        )
        self.memory = (
            AttentionMemory(
                config.attention,
                config.encoder_size,
                config.key_size,
                config.attention_layers,
                config.attention_values,
            )
            if config.uses_attention
            else None
        )
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
        x = self.dropout(add_noise(inputs_embeds, self.config, self.training))  # (batch, source, embedding)
        if attention_mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        else:
            mask = attention_mask.bool()
        # an empty row is read as one token: what it gives is masked by whoever made it
        lengths = mask.sum(1).clamp(min=1).cpu()
        order = real_tokens_first(mask, self.config.reverse_source)
        if order is None:
            in_source_order: Callable[[Tensor], Tensor] = lambda y: y  # noqa: E731
        else:
            x, back = gather_time(x, order), order.argsort(dim=1)
            in_source_order = lambda y: gather_time(y, back)  # noqa: E731

        hidden_states, hiddens, cells = [in_source_order(x)], [], []
        for i, layer in enumerate(self.layers):
            if i > 0:
                x = self.dropout(x)
            x, hidden, cell = read_padded(layer, x, lengths)  # (batch, source, encoder_size)
            hidden_states.append(in_source_order(x))
            hiddens.append(hidden)
            cells.append(cell)
        keys, values = (None, None) if self.memory is None else self.memory(hidden_states[-1])
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return RNNEncoderOutput(
            last_hidden_state=hidden_states[-1],
            final_hidden=torch.stack(hiddens, dim=1),
            final_cell=torch.stack(cells, dim=1) if self.config.cell == "lstm" else None,
            keys=keys,
            values=values,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
        )
