"""Weights, gradients and optimizer state divided among processes by torch's `fully_shard` (FSDP2).

It is asked for as Accelerate's configuration files do, by environment variables; `kit train --shard` sets them. kit
shards the objective itself, the same way on GPUs (NCCL) and on CPUs (gloo): Accelerate would leave out FSDP without a
word where there is no GPU. What learns is a sharded copy; the objective beside it has weights only while it is needed
whole, to evaluate and to export. Checkpoints hold whole tensors, so that any number and kind of processes can go on.
"""

import copy
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from kit.errors import RecipeError, RunError
from kit.recipe.base import Recipe

if TYPE_CHECKING:
    from kit.training.objective import Objective


UNSUPPORTED_FSDP_OPTIONS = {
    "FSDP_OFFLOAD_PARAMS": "fsdp_offload_params",
    "FSDP_ACTIVATION_CHECKPOINTING": "fsdp_activation_checkpointing",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "fsdp_cpu_ram_efficient_loading",
}


def _is_true(variable: str, default: str = "false") -> bool:
    return os.environ.get(variable, default).lower() in ("true", "1", "yes")


def is_requested() -> bool:
    """Whether this process was started to share the weights with others."""
    return _is_true("ACCELERATE_USE_FSDP")


def check(recipe: Recipe, accelerator: Accelerator) -> None:
    """Refuse what would not work together with sharding, or would be left out in silence."""
    train, processes = recipe.train, accelerator.num_processes
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise RunError("sharding works by FSDP2 alone: set fsdp_version: 2 in the configuration of Accelerate")
    for variable, key in UNSUPPORTED_FSDP_OPTIONS.items():
        if _is_true(variable):
            raise RunError(f"{key} is not supported: set it to false in the configuration of Accelerate")
    if processes == 1:
        raise RunError("sharding divides the weights among processes, and there is one: add --processes 2 or more")
    if train.micro_batches % processes:
        raise RunError(
            f"a step is computed in {train.micro_batches} parts (train.micro_batches), which {processes} processes "
            f"that share the weights cannot divide evenly: use a multiple of {processes}, or do not shard"
        )
    if train.optimizer == "adafactor":
        raise RecipeError("train.optimizer: adafactor needs whole rows and columns of weights; with sharding use adamw")
    if train.mixed_precision == "fp16":
        raise RecipeError("train.mixed_precision: fp16 does not work with sharding; use bf16 or no")
    if recipe.peft.method is not None:
        raise RecipeError("peft does not work with sharding: an adapter is small, so leave --shard out")
    if train.torch_compile:
        raise RecipeError("train.torch_compile does not work with sharding: switch one of the two off")


def shard(objective: "Objective", accelerator: Accelerator) -> "Objective":
    """A copy of an objective that learns, its weights divided among all processes; the objective itself is emptied.

    Each layer that its model class names as one (`_no_split_modules`) is gathered for its own forward and backward pass
    only; everything else belongs to the whole objective, and so does a layer that shares weights with another part, as
    embeddings do with the output.
    """
    sharded = copy.deepcopy(objective)
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    reshard = _is_true("FSDP_RESHARD_AFTER_FORWARD", "true")
    for layer in shardable_layers(sharded.model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(sharded, mesh=mesh)
    whole = [name for name, parameter in sharded.named_parameters() if not isinstance(parameter, DTensor)]
    if whole:
        raise RuntimeError(f"these weights were not sharded: {', '.join(whole)}")
    free_weights(objective)
    objective.to(accelerator.device)
    return sharded


def shardable_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that a model class names as such, without those that share a parameter with another module."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    holders = Counter(parameter for module in model.modules() for parameter in module.parameters(recurse=False))
    shared = {parameter for parameter, count in holders.items() if count > 1}
    return [
        module
        for module in model.modules()
        if type(module).__name__ in names and shared.isdisjoint(module.parameters())
    ]


def is_sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor with all its parts; all processes must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_tensors(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """All tensors whole, one after the other; those that do not `keep` them only take part."""
    found = {}
    for name, tensor in tensors.items():
        one = full_tensor(tensor)
        if keep:
            found[name] = (one if one is tensor else one.cpu()).contiguous()
    return found


def shard_like(tensor: Tensor, whole: Tensor) -> Tensor:
    """A whole tensor, divided as another one is (or as it is, where that is not divided)."""
    if not isinstance(tensor, DTensor):
        return whole
    return distribute_tensor(whole.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


@contextmanager
def no_gradient_sync(module: nn.Module) -> Iterator[None]:
    """Within the block gradients stay with the process that computed them: more of the step is to come."""
    assert isinstance(module, FSDPModule)
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


@torch.no_grad()
def load_full_weights(objective: nn.Module, sharded: nn.Module) -> None:
    """Give the objective beside a sharded one the present weights, whole; all processes must do it."""
    parameters = dict(objective.named_parameters())
    for name, parameter in sharded.named_parameters():
        parameters[name].data = full_tensor(parameter.detach())
    buffers = dict(objective.named_buffers())
    for name, buffer in sharded.named_buffers():
        buffers[name].data = buffer.detach().clone()


def free_weights(objective: nn.Module) -> None:
    """Free the weights of an objective that is not needed for now."""
    for parameter in objective.parameters():
        parameter.data = parameter.data.new_empty(0)
