"""A device without float64, as Apple GPUs are, simulated on the CPU."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import kit.models.transformer_layers
import kit.runs.train
import kit.tasks.question_answering.task

HOST_CODE = [(kit.models.transformer_layers, "sinusoid_table"), (kit.tasks.question_answering.task, "find_answers")]
"""Functions that compute in float64 on the host."""


class WithoutFloat64(TorchDispatchMode):
    """Raises where an operation creates a float64 tensor, as a device that lacks it does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64:
                raise TypeError(f"{func} creates a float64 tensor, which Apple GPUs do not have")
        return result


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, free to use float64; its result must not have it."""

    def run(*arguments: Any, **settings: Any) -> Any:
        with _disable_current_modes():
            result = function(*arguments, **settings)
        assert all(leaf.dtype != torch.float64 for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result

    return run


def forbid_float64(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let float64 tensors raise in all steps and evaluations of `kit.train`; returns what has run so, in order."""
    checked = []

    def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **settings: Any) -> Any:
            with WithoutFloat64():
                result = function(*arguments, **settings)
            checked.append(name)
            return result

        return run

    for module, name in HOST_CODE:
        monkeypatch.setattr(module, name, on_host(inspect.unwrap(getattr(module, name))))
    monkeypatch.setattr(kit.runs.train.Loop, "run", guarded("loop", kit.runs.train.Loop.run))
    monkeypatch.setattr(kit.runs.train, "finish", guarded("finish", kit.runs.train.finish))
    return checked
