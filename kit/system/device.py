"""The device that models run on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def default_device() -> "torch.device":
    """The device that training uses, chosen by Accelerate: a GPU (CUDA, or mps on Apple hardware), otherwise the CPU.

    In a process of a distributed run it is the device of that process. `ACCELERATE_USE_CPU=true` selects the CPU.
    """
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    # PartialState reads the variable only through Accelerator
    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU")).device


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Context manager: torch's random numbers go on after the block as if it had drawn none.

    A run seeds them for each micro-batch, and a Python program that trains has a use of them, too.
    """
    import torch

    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
        yield
