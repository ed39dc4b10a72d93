"""The first values of the parameters of every model with the recurrent decoder."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .attention import Attention
from .configuration_rnn_decoder import RNNDecoderConfig
from .recurrent import initialize_recurrent


class RNNPreTrainedModel(PreTrainedModel):
    """A model with the recurrent decoder, and the first values of its parameters."""

    config: RNNDecoderConfig
    base_model_prefix = "model"
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
