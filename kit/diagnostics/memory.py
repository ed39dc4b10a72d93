"""Memory of a run on a CPU or GPU, measured while a part of it runs."""

import importlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from kit.evaluation.metrics import find_metric

MEGABYTE = 2**20


@dataclass(frozen=True)
class Memory:
    """Megabytes at the peak of training, by purpose."""

    parameters: float
    optimizer: float
    step: float  # gradients and activations, of a step or an evaluation
    rest: float  # libraries and data; 0 on a GPU
    available: float  # for the whole process

    @property
    def total(self) -> float:
        """Megabytes of the whole process, or on its GPU."""
        return self.parameters + self.optimizer + self.step + self.rest


class PeakMemory:
    """Peak memory of a `with` block, of this process or its GPU, relative to the start of the block."""

    def __init__(self, device: torch.device):
        self.on_gpu = device.type == "cuda"
        self.growth = 0  # bytes
        self.resident = 0
        """Bytes of the process at the start of the block."""

    def __enter__(self) -> "PeakMemory":
        self.resident = psutil.Process().memory_info().rss
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            self._process, self._before = psutil.Process(), self.resident
            self._ended = threading.Event()
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.002):  # seconds
            self._look()

    def _look(self) -> None:
        self.growth = max(self.growth, self._process.memory_info().rss - self._before)

    def __exit__(self, *error: object) -> None:
        if self.on_gpu:
            self.growth = torch.cuda.max_memory_allocated() - self._before
        else:
            self._ended.set()
            self._watcher.join()
            self._look()

    def memory(self, weights: int, optimizer: int) -> Memory:
        """The memory of a run, if its training on a copy of the model took place in the block.

        `weights` and `optimizer` are the bytes of the weights and of the state of the optimizer.
        """
        return Memory(
            parameters=weights / MEGABYTE,
            optimizer=optimizer / MEGABYTE,
            step=max(0, self.growth - weights - optimizer) / MEGABYTE,
            rest=0.0 if self.on_gpu else max(0, self.resident - weights) / MEGABYTE,
            available=(
                torch.cuda.mem_get_info()[1] if self.on_gpu else psutil.virtual_memory().available + self.resident
            ) / MEGABYTE,
        )  # fmt: skip


def load_libraries(metrics: Sequence[str]) -> None:
    """Import the libraries of metrics and plots, which a run loads at its end at the latest: it needs their memory."""
    for name in metrics:
        find_metric(name).function  # noqa: B018  # imports it
    for module in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        importlib.import_module(module)
