"""Sharded training: weights, gradients and optimizer state divided among processes by `fully_shard` (FSDP2).

Sharding is requested by the environment variables of Accelerate's configuration files, which `kit train --shard` sets.
kit calls `fully_shard` itself, on GPUs (NCCL) and CPUs (gloo) alike, because Accelerate silently skips FSDP without a
GPU. A sharded copy of the objective is trained; the original holds weights only during evaluation and export.
Checkpoints store full tensors, so that any number of processes, sharded or not, can resume from them.
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


UNSUPPORTED_FSDP_OPTIONS = {  # environment variable → key of the Accelerate configuration
    "FSDP_OFFLOAD_PARAMS": "fsdp_offload_params",
    "FSDP_ACTIVATION_CHECKPOINTING": "fsdp_activation_checkpointing",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "fsdp_cpu_ram_efficient_loading",
}


def _is_true(variable: str, default: str = "false") -> bool:
    """Whether an environment variable is set to a true value, as Accelerate reads it."""
    return os.environ.get(variable, default).lower() in ("true", "1", "yes")


def is_requested() -> bool:
    """Whether the environment of this process requests sharding."""
    return _is_true("ACCELERATE_USE_FSDP")


def check(recipe: Recipe, accelerator: Accelerator) -> None:
    """Raise RunError or RecipeError for settings that sharding does not support, or that would be silently ignored."""
    train, processes = recipe.train, accelerator.num_processes
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise RunError("sharding requires FSDP2: set fsdp_version: 2 in the Accelerate configuration")
    for variable, key in UNSUPPORTED_FSDP_OPTIONS.items():
        if _is_true(variable):
            raise RunError(f"{key} is not supported: set it to false in the Accelerate configuration")
    if processes == 1:
        raise RunError("sharding splits the weights across processes, and there is only one: add --processes 2 or more")
    if train.micro_batches % processes:
        raise RunError(
            f"a step is computed in {train.micro_batches} parts (train.micro_batches), which {processes} processes "
            f"cannot divide evenly: use a multiple of {processes}, or do not shard"
        )
    if train.optimizer == "adafactor":
        raise RecipeError("train.optimizer: adafactor needs whole rows and columns of weights; with sharding use adamw")
    if train.mixed_precision == "fp16":
        raise RecipeError("train.mixed_precision: fp16 does not work with sharding; use bf16 or no")
    if recipe.peft.method is not None:
        raise RecipeError("peft does not work with sharding: an adapter is small, so remove --shard")
    if train.torch_compile:
        raise RecipeError("train.torch_compile does not work with sharding: turn one of them off")


def shard(objective: "Objective", accelerator: Accelerator) -> "Objective":
    """A sharded copy of an objective, to be trained. The original moves to the device, with its weights freed.

    Each layer in the model class's `_no_split_modules` is gathered only for its forward and backward pass. All other
    parameters form one group, including layers that share weights, such as embeddings tied to the output layer.
    """
    sharded = copy.deepcopy(objective)
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    reshard = _is_true("FSDP_RESHARD_AFTER_FORWARD", "true")
    for layer in shardable_layers(sharded.model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(sharded, mesh=mesh)
    unsharded = [name for name, parameter in sharded.named_parameters() if not isinstance(parameter, DTensor)]
    if unsharded:
        raise RuntimeError(f"these weights were not sharded: {', '.join(unsharded)}")
    free_weights(objective)
    objective.to(accelerator.device)
    return sharded


def shardable_layers(model: nn.Module) -> list[nn.Module]:
    """The layers in `_no_split_modules`, without those that share a parameter with another module."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    holders = Counter(parameter for module in model.modules() for parameter in module.parameters(recurse=False))
    shared = {parameter for parameter, count in holders.items() if count > 1}
    return [
        module
        for module in model.modules()
        if type(module).__name__ in names and shared.isdisjoint(module.parameters())
    ]


def is_sharded(module: nn.Module) -> bool:
    """Whether `shard` returned this module."""
    return isinstance(module, FSDPModule)


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded one. A collective call: all processes must make it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this process holds; any other tensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensors(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """The full tensors by name, on the CPU if they were sharded.

    A collective call that gathers one tensor at a time; a process without `keep` drops each, and returns an empty dict.
    """
    result = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor)
        if keep:
            result[name] = (full if full is tensor else full.cpu()).contiguous()
    return result


def shard_like(tensor: Tensor, whole: Tensor) -> Tensor:
    """Shard a full tensor like `tensor`; returned unchanged if `tensor` is not sharded."""
    if not isinstance(tensor, DTensor):
        return whole
    return distribute_tensor(whole.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


@contextmanager
def no_gradient_sync(module: nn.Module) -> Iterator[None]:
    """Context manager: skip the gradient reduction, because more micro-batches of the step follow."""
    assert isinstance(module, FSDPModule)
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


@torch.no_grad()
def load_full_weights(objective: nn.Module, sharded: nn.Module) -> None:
    """Copy the full weights of a sharded objective into the original. A collective call."""
    parameters = dict(objective.named_parameters())
    for name, parameter in sharded.named_parameters():
        parameters[name].data = full_tensor(parameter.detach())
    buffers = dict(objective.named_buffers())
    for name, buffer in sharded.named_buffers():
        buffers[name].data = buffer.detach().clone()


def free_weights(objective: nn.Module) -> None:
    """Free the memory of the weights; `load_full_weights` restores them."""
    for parameter in objective.parameters():
        parameter.data = parameter.data.new_empty(0)
