"""Cross-entropy over a large vocabulary without the whole logits: a chunk of positions at a time.

The gradient of a chunk's logits is known as soon as its loss is, so it is taken back to the hidden states and the
output layer at once, and the logits are forgotten. A chunk lies in memory once: its logits become their own gradient.
The arithmetic is that of the plain way.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kit.data.batching.ragged import IGNORE_INDEX

LOGITS = {"cpu": 2**24, "cuda": 2**27}
"""Logits of a chunk: 64 MB in float32, and more where many processors want to be kept busy."""


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy summed over positions, as a function of hidden states and output layer."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        chunk: int,
        learning: bool,
    ) -> Tensor:
        device = hidden.device.type
        # mixed precision does not reach into a function of our own: what it would do is done here
        mixed = torch.is_autocast_enabled(device)
        kind = torch.get_autocast_dtype(device) if mixed else torch.promote_types(hidden.dtype, weight.dtype)
        precise = torch.promote_types(kind, torch.float32)
        total = torch.zeros((), dtype=precise, device=hidden.device)
        wanted = [learning and needed for needed in ctx.needs_input_grad]
        hidden_grad = torch.empty_like(hidden) if wanted[0] else None
        weight_grad = torch.zeros_like(weight) if wanted[1] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and wanted[2] else None
        with torch.autocast(device, enabled=False):
            layer, offset = weight.detach().to(kind), None if bias is None else bias.detach().to(kind)
            for start in range(0, len(hidden), chunk):
                rows = slice(start, start + chunk)
                seen = hidden[rows].detach().to(kind)  # (chunk, width)
                logits = nn.functional.linear(seen, layer, offset).to(precise)  # (chunk, vocabulary)
                total += _loss_leaving_gradient(logits, labels[rows], smoothing, any(wanted))
                if not any(wanted):
                    continue
                gradient = logits.to(kind)
                del logits
                if hidden_grad is not None:
                    hidden_grad[rows] = gradient @ layer
                if weight_grad is not None:
                    if weight_grad.dtype == kind:
                        weight_grad.addmm_(gradient.t(), seen)
                    else:
                        weight_grad += gradient.t() @ seen
                if bias_grad is not None:
                    bias_grad += gradient.sum(0)
        ctx.gradients = (hidden_grad, weight_grad, bias_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradients of a chunked loss are given away by backward(), which works only once")
        scale, gradients, ctx.gradients = grads[0], ctx.gradients, None
        scaled = (None if gradient is None else gradient.mul_(scale.to(gradient.dtype)) for gradient in gradients)
        return (*scaled, None, None, None, None)


def _loss_leaving_gradient(logits: Tensor, labels: Tensor, smoothing: float, learning: bool) -> Tensor:
    """Cross-entropy, summed, of labels (positions,) under logits (positions, vocabulary), which are gone afterwards:
    where something is learned, their gradient is in their place."""
    place = labels.unsqueeze(1)
    logits -= logits.amax(1, keepdim=True)  # a shift changes no probability, and keeps exp() in its range
    chosen = logits.gather(1, place).squeeze(1)
    average = logits.mean(1) if smoothing else 0.0
    total = logits.exp_().sum(1)
    loss = total.log() - (1 - smoothing) * chosen - smoothing * average
    if learning:
        logits /= total.unsqueeze(1)
        logits.scatter_add_(1, place, torch.full_like(place, smoothing - 1, dtype=logits.dtype))
        if smoothing:
            logits -= smoothing / logits.shape[1]
    return loss.sum()


def chunked_cross_entropy(
    hidden: Tensor, head: nn.Linear, labels: Tensor, label_smoothing: float = 0.0, chunk: int | None = None
) -> Tensor:
    """Cross-entropy, summed, of labels (positions,) under `head(hidden)`, hidden (positions, width); −100: ignored.

    `chunk` positions are computed at a time: by default as many as need little memory.
    """
    real = labels != IGNORE_INDEX
    if not bool(real.all()):
        hidden, labels = hidden[real], labels[real]
    if chunk is None:
        chunk = max(1, LOGITS.get(hidden.device.type, LOGITS["cuda"]) // head.weight.shape[0])
    learning = torch.is_grad_enabled()  # within the function it never is
    return _ChunkedCrossEntropy.apply(hidden, head.weight, head.bias, labels, label_smoothing, chunk, learning)
