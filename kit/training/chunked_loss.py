"""Cross-entropy over a large vocabulary without materializing all logits: one chunk of positions at a time.

The gradient of the logits is known as soon as the loss is, so each chunk is backpropagated to the hidden states and the
output layer at once, and its logits are overwritten by their gradient. The arithmetic equals that of the direct loss.
`torch.nn.functional.linear_cross_entropy` of torch 2.13 does the same, as fast on a CPU with a chunk size that is tuned
by hand, but at a quarter of the speed with its automatic one; its sums differ in the last bits.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kit.data.batching.ragged import IGNORE_INDEX

LOGITS_PER_CHUNK = {"cpu": 2**24, "cuda": 2**27}
"""Logits per chunk: 64 MB in float32 on a CPU, and 512 MB on a GPU, which small chunks would leave idle."""


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy summed over positions, as a function of hidden states and output layer."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, chunk: int, learning: bool
    ) -> Tensor:
        device = hidden.device.type
        dtype, loss_dtype = _dtypes(hidden, weight)
        total = torch.zeros((), dtype=loss_dtype, device=hidden.device)
        needs_grad = [learning and needed for needed in ctx.needs_input_grad]
        hidden_grad = torch.empty_like(hidden) if needs_grad[0] else None
        weight_grad = torch.zeros_like(weight) if needs_grad[1] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and needs_grad[2] else None
        with torch.autocast(device, enabled=False):
            layer, offset = weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)
            for start in range(0, len(hidden), chunk):
                rows = slice(start, start + chunk)
                seen = hidden[rows].detach().to(dtype)  # (chunk, width)
                logits = nn.functional.linear(seen, layer, offset).to(loss_dtype)  # (chunk, vocabulary)
                total += _losses_overwriting_logits(logits, labels[rows], any(needs_grad)).sum()
                if not any(needs_grad):
                    continue
                gradient = logits.to(dtype)
                del logits
                if hidden_grad is not None:
                    hidden_grad[rows] = gradient @ layer
                if weight_grad is not None:
                    if weight_grad.dtype == dtype:
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
            raise RuntimeError("backward() through a chunked loss works only once: it frees the gradients")
        scale, gradients, ctx.gradients = grads[0], ctx.gradients, None
        scaled = (None if gradient is None else gradient.mul_(scale.to(gradient.dtype)) for gradient in gradients)
        return (*scaled, None, None, None)


def _dtypes(hidden: Tensor, weight: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """The types that logits and losses are computed in; explicit, because autocast does not reach into a custom
    autograd function."""
    device = hidden.device.type
    mixed = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if mixed else torch.promote_types(hidden.dtype, weight.dtype)
    return dtype, torch.promote_types(dtype, torch.float32)


def _losses_overwriting_logits(logits: Tensor, labels: Tensor, learning: bool) -> Tensor:
    """The cross-entropy of each label (positions,) under logits (positions, vocabulary).

    Overwrites the logits; with `learning`, by their gradient.
    """
    index = labels.unsqueeze(1)
    logits -= logits.amax(1, keepdim=True)  # a shift changes no probability and keeps exp() from overflowing
    label_logits = logits.gather(1, index).squeeze(1)
    total = logits.exp_().sum(1)
    loss = total.log() - label_logits
    if learning:
        logits /= total.unsqueeze(1)
        logits.scatter_add_(1, index, torch.full_like(index, -1, dtype=logits.dtype))
    return loss


def chunked_cross_entropy(hidden: Tensor, head: nn.Linear, labels: Tensor, chunk: int | None = None) -> Tensor:
    """The summed cross-entropy of labels (positions,) under `head(hidden)`, with hidden (positions, width).

    Ignores labels of −100. `chunk` is the number of positions computed at a time, by default from `LOGITS_PER_CHUNK`.
    """
    labeled = labels != IGNORE_INDEX
    if not bool(labeled.all()):
        hidden, labels = hidden[labeled], labels[labeled]
    chunk = chunk or _default_chunk(hidden, head)
    learning = torch.is_grad_enabled()  # always False inside the autograd function
    return _ChunkedCrossEntropy.apply(hidden, head.weight, head.bias, labels, chunk, learning)


@torch.no_grad()
def label_losses(hidden: Tensor, head: nn.Linear, labels: Tensor, chunk: int | None = None) -> Tensor:
    """The cross-entropy of each label (positions,) under `head(hidden)`, without gradients; 0 for labels of −100."""
    dtype, loss_dtype = _dtypes(hidden, head.weight)
    losses = torch.zeros(labels.shape, dtype=loss_dtype, device=hidden.device)
    labeled = torch.nonzero(labels != IGNORE_INDEX).squeeze(1)
    with torch.autocast(hidden.device.type, enabled=False):
        layer, offset = head.weight.to(dtype), None if head.bias is None else head.bias.to(dtype)
        for rows in labeled.split(chunk or _default_chunk(hidden, head)):
            logits = nn.functional.linear(hidden[rows].to(dtype), layer, offset).to(loss_dtype)  # (chunk, vocabulary)
            losses[rows] = _losses_overwriting_logits(logits, labels[rows], learning=False)
    return losses


def _default_chunk(hidden: Tensor, head: nn.Linear) -> int:
    logits = LOGITS_PER_CHUNK.get(hidden.device.type, LOGITS_PER_CHUNK["cuda"])
    return max(1, logits // head.weight.shape[0])
