"""Recurrent layers that read sequences of unequal lengths."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .recurrent import gather_time, read_padded, real_tokens_first, recurrent_layer


@dataclass
class Read:
    """What layers have made of a batch of sequences."""

    states: list[Tensor]  # what was read, and the states of each layer: (batch, time, width) each
    hidden: Tensor  # (batch, layers, width), after the last real step
    cell: Tensor | None  # the same, LSTM only


def reading_layers(
    cell: str, input_size: int, hidden_size: int, layers: int, bidirectional: bool = False
) -> nn.ModuleList:
    """Recurrent layers, each on top of the last; both directions, if there are two, side by side."""
    width = hidden_size * (2 if bidirectional else 1)
    return nn.ModuleList(
        recurrent_layer(cell, input_size if i == 0 else width, hidden_size, bidirectional) for i in range(layers)
    )


def read_layers(layers: nn.ModuleList, dropout: nn.Module, x: Tensor, mask: Tensor, reverse: bool = False) -> Read:
    """Read x (batch, time, input) where mask (batch, time) is true, in order or from the end.

    Padding, on either side, changes nothing. A state stands where the step stands that it belongs to, whatever the
    order; there is `dropout` between the layers.
    """
    # an empty row is read as one step: what it gives is masked by whoever made it
    lengths = mask.sum(1).clamp(min=1).cpu()
    order = real_tokens_first(mask, reverse)
    if order is None:
        in_source_order: Callable[[Tensor], Tensor] = lambda y: y  # noqa: E731
    else:
        x, back = gather_time(x, order), order.argsort(dim=1)
        in_source_order = lambda y: gather_time(y, back)  # noqa: E731

    states, hiddens, cells = [in_source_order(x)], [], []
    for i, layer in enumerate(layers):
        if i > 0:
            x = dropout(x)
        x, hidden, cell = read_padded(layer, x, lengths)  # (batch, time, width)
        states.append(in_source_order(x))
        hiddens.append(hidden)
        cells.append(cell)
    held = [cell for cell in cells if cell is not None]
    return Read(states, torch.stack(hiddens, dim=1), torch.stack(held, dim=1) if held else None)


def last_real(x: Tensor, mask: Tensor) -> Tensor:
    """The last step of each row of x (batch, time, width) where mask (batch, time) is true; the first if none is."""
    position = torch.arange(mask.shape[1], device=mask.device)
    return x[torch.arange(len(x), device=x.device), (position * mask).argmax(1)]  # (batch, width)
