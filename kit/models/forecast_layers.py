"""The parts of the forecaster: normalisation of its numbers, and what reads and writes them."""

import torch
from torch import Tensor, nn

from .configuration_rnn_forecaster import RNNForecasterConfig
from .recurrent import Dropout, recurrent_stack, run_stack
from .rnn_decoder import RNNDecoder, RNNEncoderOutput, attention_memory


class Normalization(nn.Module):
    """Numbers in units of their spread around their mean; both are saved with the model."""

    mean: Tensor
    scale: Tensor

    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:  # (…, size)
        return (x - self.mean) / self.scale

    def back(self, x: Tensor) -> Tensor:
        """In the units of the data again."""
        return x * self.scale + self.mean

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Take mean and spread from x (number, size). What never changes is not scaled."""
        x = x.double()
        spread = x.std(0, correction=0)
        self.mean.copy_(x.mean(0))
        self.scale.copy_(torch.where(spread > 0, spread, 1))


class ForecastEncoder(nn.Module):
    """Reads the past; padding, on either side, changes nothing."""

    def __init__(self, config: RNNForecasterConfig):
        super().__init__()
        self.layers = recurrent_stack(
            config.cell,
            config.decoder_input_size,
            config.encoder_hidden_size,
            config.encoder_layers,
            config.bidirectional,
        )
        self.memory = attention_memory(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> RNNEncoderOutput:
        read = run_stack(self.layers, self.dropout, x, mask)
        states = read.states[-1]  # (batch, time, encoder_size)
        keys, values = (None, None) if self.memory is None else self.memory(states)
        return RNNEncoderOutput(
            last_hidden_state=states,
            final_hidden=read.hidden,
            final_cell=read.cell,
            keys=keys,
            values=values,
            memory_mask=mask,
        )


class ForecastDecoder(RNNDecoder):
    """The decoder of numbers: what it reads has its noise already, and no dropout."""

    def regularize(self, embeds: Tensor) -> Tensor:
        return embeds
