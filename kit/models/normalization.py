"""Normalisation of numbers, kept with the model that needs it."""

import torch
from torch import Tensor, nn


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
