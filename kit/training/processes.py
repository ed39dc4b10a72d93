"""Agreement among the processes of a run, without a collective call that waits for a busy process.

NCCL aborts a collective that one process reaches 10 minutes after another. Processes therefore wait for each other on
the key-value store of the process group, for any time, and make the collective call when all of them have arrived.
"""

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import psutil
import torch
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch.distributed.distributed_c10d import _get_default_store

from kit.training.launch import PEER_EXITED

T = TypeVar("T")

MAX_PAUSE = 0.05
"""Longest pause in seconds between two checks of the store. The first pause is 1 ms, and each next one twice as long:
processes that arrive together lose no time, and one that waits for minutes takes hardly any from the others."""

SECONDS_BETWEEN_CHECKS = 2.0
"""How often a waiting process checks that the processes it waits for still exist."""

_meetings = itertools.count()  # in step on all processes, because all of them attend every meeting


def wait_for_everyone() -> None:
    """Return when all processes have called this, however long it takes; with one process, return at once.

    Raises RuntimeError if another process of this launcher has exited.
    """
    if not _is_distributed():
        return
    store, rank, number = _get_default_store(), torch.distributed.get_rank(), next(_meetings)
    store.set(f"kit/process/{rank}", f"{_launcher()} {os.getpid()}")
    arrivals = [f"kit/meeting/{number}/{other}" for other in range(torch.distributed.get_world_size())]
    store.set(arrivals[rank], "here")
    pause, next_check = 0.001, time.monotonic() + SECONDS_BETWEEN_CHECKS
    while not store.check(arrivals):
        time.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE)
        if time.monotonic() > next_check:
            _check_peers(store, len(arrivals))
            next_check = time.monotonic() + SECONDS_BETWEEN_CHECKS
    PartialState().wait_for_everyone()  # no process, and the store with it, may end before all have seen the arrivals


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _launcher() -> str:
    """An identifier of the process that launched this one: host and process id."""
    return f"{socket.gethostname()}:{os.getppid()}"


def _check_peers(store: Any, processes: int) -> None:
    """Raise RuntimeError if a process of the same launcher has exited.

    The launcher ends the others too, but a training loop takes its signal for a request to save.
    """
    for rank in range(processes):
        key = f"kit/process/{rank}"
        if not store.check([key]):
            continue
        launcher, pid = store.get(key).decode().rsplit(" ", 1)
        if launcher == _launcher() and not _is_running(int(pid)):
            raise RuntimeError(f"process {rank} {PEER_EXITED}")


def _is_running(pid: int) -> bool:
    """Whether a process exists and has not exited."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def on_main(compute: Callable[[], T]) -> T:
    """Call a function in the main process while the others wait; returns its result in every process."""
    is_main = not _is_distributed() or torch.distributed.get_rank() == 0
    result = [compute() if is_main else None]
    if _is_distributed():
        wait_for_everyone()
        broadcast_object_list(result)
    return result[0]  # type: ignore[return-value]


def add_columns(rows: Iterable[Sequence[float]]) -> list[float]:
    """The sum of each column, in Python: Apple GPUs have no float64."""
    return [sum(column) for column in zip(*rows, strict=True)]


def add_over_processes(numbers: Sequence[float], accelerator: Accelerator) -> list[float]:
    """The sum over all processes of each number, in float64 whatever the device: one small collective call."""
    if accelerator.num_processes == 1:
        return list(numbers)
    # as integers, which every device has; they are added in the order of ranks
    bits = torch.tensor([numbers], dtype=torch.float64).view(torch.int64)
    rows = accelerator.gather(bits.to(accelerator.device)).cpu().view(torch.float64)
    return add_columns(rows.tolist())


def gather(items: Sequence[T]) -> list[T]:
    """The items of all processes, in the order of ranks."""
    if not _is_distributed():
        return list(items)
    wait_for_everyone()
    return list(gather_object(list(items)))
