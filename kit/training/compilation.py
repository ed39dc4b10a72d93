"""torch.compile for training steps. Evaluations run uncompiled, so that their figures are those of any other run."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

RECURRENT = (
    "torch_compile: nothing is compiled, because the model has recurrent layers: their loops over positions would be "
    "compiled anew for every length"
)
INSEPARABLE = (
    "torch_compile: nothing is compiled, because the output layer of {name} cannot be separated from its other layers"
)


def compile_model(model: PreTrainedModel, backend: str | Callable[..., Any] = "inductor") -> str:
    """Compile a model except its output layer, in place, for batches of any size; returns a line for the log.

    Objectives of language models add hooks to the output layer, which a compiled graph would ignore.
    """
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return RECURRENT
    parts = list(separable_parts(model))
    for part in parts:
        part.compile(dynamic=True, backend=backend)
    if not parts:
        return INSEPARABLE.format(name=type(model).__name__)
    names = " and ".join(type(part).__name__ for part in parts)
    return f"torch_compile: training steps run {names} compiled; evaluations run it uncompiled"


def separable_parts(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """The largest models within a model that do not hold its output layer; the model itself if it has none."""
    output = model.get_output_embeddings()

    def parts(module: nn.Module) -> Iterator[PreTrainedModel]:
        if not any(inner is output for inner in module.modules()):
            if isinstance(module, PreTrainedModel):
                yield module
            return
        for child in module.children():
            yield from parts(child)

    yield from parts(model)


def without_compilation(compiled: bool) -> AbstractContextManager[Any]:
    """Context manager: compiled modules run uncompiled inside the block."""
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()
