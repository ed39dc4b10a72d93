"""Find weights that are not finite numbers, which no checkpoint and no model folder may have."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from kit.errors import RunError


def nonfinite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors with a value that is not finite."""
    return [name for name, tensor in tensors.items() if tensor.is_floating_point() and not tensor.isfinite().all()]


def check_finite(model: nn.Module, consequence: str) -> None:
    """Raise RunError if a weight of a model is not a finite number; `consequence` is the end of the message."""
    with torch.no_grad():
        if names := nonfinite(model.state_dict()):
            raise RunError(f"{describe(names)} of the model are not finite numbers (NaN or infinite): {consequence}")


def describe(names: Iterable[str]) -> str:
    """A phrase for a message: the name of the first of these weights, and the number of the others."""
    first, *others = names
    return f"weights ({first}{f' and {len(others)} more' if others else ''})"
