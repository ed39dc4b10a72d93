"""Dropout that costs little on a CPU."""

import torch
from torch import Tensor, nn

STEPS = 2**16
"""Values of the random numbers that decide; a probability is met to the nearest of these steps."""


class Dropout(nn.Dropout):
    """Sets each number to zero with a probability, and scales the others so that the mean stays what it was.

    On a CPU torch draws a random number for each element, one after the other, which took a tenth of a training step.
    Here one draw of 64 bits decides for four elements. It comes from torch's generator, as ever.
    """

    def forward(self, x: Tensor) -> Tensor:
        return thinned(x, self.p) if self.training else x


def thinned(x: Tensor, p: float) -> Tensor:
    """What dropout with probability p leaves of x."""
    refused = round(p * STEPS)
    if refused == 0:
        return x
    if x.device.type != "cpu" or refused == STEPS or torch.compiler.is_compiling():
        return nn.functional.dropout(x, p)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= refused - STEPS // 2
    return x * kept.to(x.dtype).mul_(STEPS / (STEPS - refused))
