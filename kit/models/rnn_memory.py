"""What any encoder hands to the recurrent decoder: states to attend to, and a final state to start from."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.modeling_outputs import ModelOutput

from .attention import AttentionMemory
from .configuration_rnn_decoder import RNNDecoderConfig


@dataclass
class RNNEncoderOutput(ModelOutput):
    """What the decoder needs of the source. Every tensor is batch-first, so that beams can be expanded."""

    last_hidden_state: Tensor | None = None  # (batch, source, encoder_size)
    final_hidden: Tensor | None = None  # (batch, layers, encoder_size)
    final_cell: Tensor | None = None  # (batch, layers, encoder_size), LSTM only
    keys: Tensor | None = None  # (batch, source, key_size), with attention
    values: Tensor | None = None  # (batch, source, encoder_size), with attention
    memory_mask: Tensor | None = None  # (batch, source), where the states are not one for each token of the source
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None  # none: the name is there because transformers reads it


def attention_memory(config: RNNDecoderConfig) -> AttentionMemory | None:
    """What makes keys and values of an encoder's states, if the decoder attends to them."""
    if not config.uses_attention:
        return None
    return AttentionMemory(
        config.attention, config.encoder_size, config.key_size, config.attention_layers, config.attention_values
    )


def add_noise(x: Tensor, spread: float, training: bool) -> Tensor:
    """Gaussian noise on what is read, a regulariser of training."""
    return x + spread * torch.randn_like(x) if training and spread > 0 else x
