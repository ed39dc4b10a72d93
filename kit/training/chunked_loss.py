"""Cross-entropy over a large vocabulary without the whole logits: a chunk of positions at a time.

The gradient of a chunk's logits is known as soon as its loss is, so it is taken back to the hidden states and the
output layer at once and the logits are forgotten. The arithmetic is that of the plain way; the memory that of a chunk.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kit.data.examples import IGNORED

CHUNK = 1024  # positions: with 50,000 tokens 200 MB of logits in float32


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy summed over positions, as a function of hidden states and output layer."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, chunk: int
    ) -> Tensor:
        precise = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=precise, device=hidden.device)
        wanted = ctx.needs_input_grad
        hidden_grad = torch.empty_like(hidden) if wanted[0] else None
        weight_grad = torch.zeros_like(weight) if wanted[1] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and wanted[2] else None
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            with torch.enable_grad():
                logits = nn.functional.linear(hidden[rows].detach(), weight.detach(), bias).detach()  # (chunk, vocab)
                logits.requires_grad_(any(wanted))
                loss = nn.functional.cross_entropy(
                    logits.to(precise),
                    labels[rows],
                    ignore_index=IGNORED,
                    reduction="sum",
                    label_smoothing=smoothing,
                )
            total += loss.detach()
            if not any(wanted):
                continue
            (logits_grad,) = torch.autograd.grad(loss, logits)  # (chunk, vocab)
            if hidden_grad is not None:
                torch.mm(logits_grad, weight, out=hidden_grad[rows])
            if weight_grad is not None:
                weight_grad.addmm_(logits_grad.t(), hidden[rows])
            if bias_grad is not None:
                bias_grad += logits_grad.sum(0)
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale = grads[0]
        scaled = (None if grad is None else grad * scale.to(grad.dtype) for grad in ctx.saved_tensors)
        return (*scaled, None, None, None)


def chunked_cross_entropy(
    hidden: Tensor, head: nn.Linear, labels: Tensor, label_smoothing: float = 0.0, chunk: int = CHUNK
) -> Tensor:
    """Cross-entropy, summed, of labels (positions,) under `head(hidden)`, hidden (positions, width); −100: ignored."""
    real = labels != IGNORED
    if not bool(real.all()):
        hidden, labels = hidden[real], labels[real]
    return _ChunkedCrossEntropy.apply(hidden, head.weight, head.bias, labels, label_smoothing, chunk)
