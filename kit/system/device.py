"""The device that models run on."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kit.errors import RunError

if TYPE_CHECKING:
    import torch

FLAGS = ("ACCELERATE_USE_CPU", "ACCELERATE_USE_FSDP", "ACCELERATE_DEBUG_MODE", "ACCELERATE_CPU_AFFINITY")
"""Environment variables that Accelerate reads as true or false."""
NUMBERS = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Environment variables that launchers set, and that Accelerate and torch read as whole numbers."""


def check_environment() -> None:
    """Raise RunError for environment variables whose values Accelerate cannot parse: its exceptions do not name the
    variable. Call it before creating an Accelerator."""
    from accelerate.utils import str_to_bool

    for name in FLAGS:
        try:
            str_to_bool(os.environ.get(name, "false"))
        except ValueError:
            raise _malformed(name, "true or false") from None
    for name in NUMBERS:
        if not re.fullmatch(r"-?[0-9]{1,9}", os.environ.get(name, "0")):  # -1 stands for a single process
            raise _malformed(name, "a whole number")


def _malformed(name: str, expected: str) -> RunError:
    return RunError(f"environment variable {name}={os.environ[name]!r}: expected {expected}. Correct it, or unset it")


def default_device() -> "torch.device":
    """The device that training uses, chosen by Accelerate: a GPU (CUDA, or mps on Apple hardware), otherwise the CPU.

    In a process of a distributed run it is the device of that process. `ACCELERATE_USE_CPU=true` selects the CPU.
    """
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    check_environment()
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
