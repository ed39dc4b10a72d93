"""Cross-entropy over a large vocabulary without the whole logits: a chunk of positions at a time.

The gradient of a chunk's logits is known as soon as its loss is, so it is taken back to the hidden states and the
output layer at once and the logits are forgotten. The arithmetic is that of the plain way; the memory that of a chunk.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from kit.data.examples import IGNORED

CHUNK = 1024  # positions: with 50,000 tokens 200 MB of logits in float32


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
                logits = nn.functional.linear(seen, layer, offset)  # (chunk, vocabulary)
                with torch.enable_grad() if any(wanted) else nullcontext():
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
                (logits_grad,) = torch.autograd.grad(loss, logits)  # (chunk, vocabulary)
                if hidden_grad is not None:
                    hidden_grad[rows] = logits_grad @ layer
                if weight_grad is not None:
                    if weight_grad.dtype == kind:
                        weight_grad.addmm_(logits_grad.t(), seen)
                    else:
                        weight_grad += logits_grad.t() @ seen
                if bias_grad is not None:
                    bias_grad += logits_grad.sum(0)
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale = grads[0]
        scaled = (None if grad is None else grad * scale.to(grad.dtype) for grad in ctx.saved_tensors)
        return (*scaled, None, None, None, None)


def chunked_cross_entropy(
    hidden: Tensor, head: nn.Linear, labels: Tensor, label_smoothing: float = 0.0, chunk: int = CHUNK
) -> Tensor:
    """Cross-entropy, summed, of labels (positions,) under `head(hidden)`, hidden (positions, width); −100: ignored."""
    real = labels != IGNORED
    if not bool(real.all()):
        hidden, labels = hidden[real], labels[real]
    learning = torch.is_grad_enabled()  # within the function it never is
    return _ChunkedCrossEntropy.apply(hidden, head.weight, head.bias, labels, label_smoothing, chunk, learning)
