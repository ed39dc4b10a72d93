"""The one evaluation loop: batches of similar length, each example exactly once, results in the order of the data."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from kit.data.batching.plan import length_sorted_batches
from kit.decoding.inputs import Batch
from kit.training import processes

T = TypeVar("T")

MakeBatch = Callable[[np.ndarray], Batch]
"""From the indices of examples to tensors."""


class Evaluator:
    """Runs a model over examples, shared among processes; the only code of an evaluation that knows devices and ranks.

    Without an accelerator it runs all examples in this process, on `device`.
    """

    def __init__(
        self, tokens_per_batch: int, accelerator: Accelerator | None = None, device: torch.device | None = None
    ):
        self.tokens_per_batch = tokens_per_batch
        self.rank = 0 if accelerator is None else accelerator.process_index
        self.processes = 1 if accelerator is None else accelerator.num_processes
        self.device = device or (torch.device("cpu") if accelerator is None else accelerator.device)

    @property
    def is_main(self) -> bool:
        """Whether this is the main process."""
        return self.rank == 0

    def outputs_and_sums(
        self,
        lengths: np.ndarray,
        make_batch: MakeBatch,
        compute: Callable[[Batch], tuple[Sequence[T], Sequence[Tensor | float]]],
        rows_per_example: int = 1,
    ) -> tuple[list[T], list[float]]:
        """An output for each example, in order, and sums over all examples; the same on every process.

        `compute` returns both for a batch. Each example becomes `rows_per_example` rows in the model, such as beams.
        """
        outputs: list[tuple[int, T]] = []
        sums: list[list[float]] = []
        for indices, batch in self.batches(lengths, make_batch, rows_per_example):
            with torch.inference_mode():
                batch_outputs, batch_sums = compute(batch)
            outputs += zip(indices.tolist(), batch_outputs, strict=True)
            sums.append([float(value) for value in batch_sums])
        return self.in_order(outputs, len(lengths)), self.total(sums)

    def outputs(
        self,
        lengths: np.ndarray,
        make_batch: MakeBatch,
        compute: Callable[[Batch], Sequence[T]],
        rows_per_example: int = 1,
    ) -> list[T]:
        """An output for each example, in order."""
        return self.outputs_and_sums(lengths, make_batch, lambda batch: (compute(batch), ()), rows_per_example)[0]

    def sums(
        self, lengths: np.ndarray, make_batch: MakeBatch, compute: Callable[[Batch], Sequence[Tensor | float]]
    ) -> list[float]:
        """The sums over all examples of what `compute` returns for a batch."""

        sums = []
        for _, batch in self.batches(lengths, make_batch):
            with torch.inference_mode():
                sums.append([float(value) for value in compute(batch)])
        return self.total(sums)

    def batches(
        self, lengths: np.ndarray, make_batch: MakeBatch, rows_per_example: int = 1
    ) -> Iterator[tuple[np.ndarray, Batch]]:
        """This process's batches, on its device, with the indices of their examples."""
        tokens = max(1, self.tokens_per_batch // rows_per_example)
        # lengths alternate between processes, so that all finish together
        for indices in length_sorted_batches(lengths, tokens)[self.rank :: self.processes]:
            yield indices, {name: tensor.to(self.device) for name, tensor in make_batch(indices).items()}

    def in_order(self, outputs: Sequence[tuple[int, T]], count: int) -> list[T]:
        """The outputs of all processes by the number of their example, of which each must occur exactly once."""
        gathered = self.gather(outputs)
        by_index = dict(gathered)
        if len(gathered) != count or len(by_index) != count:
            raise RuntimeError(f"{len(gathered)} predictions for {count} examples: each must occur exactly once")
        return [by_index[index] for index in range(count)]

    def total(self, sums: Sequence[Sequence[float]]) -> list[float]:
        """The sums of all batches and processes."""
        return processes.add_columns(self.gather(sums))

    def gather(self, items: Sequence[T]) -> list[T]:
        """The items of all processes, in the order of the processes."""
        return list(items) if self.processes == 1 else processes.gather(items)

    def on_main(self, compute: Callable[[], T]) -> T:
        """Call a function in the main process only, and return its result in every process."""
        return compute() if self.processes == 1 else processes.on_main(compute)
