"""What the benchmarks of training steps share: both sides take turns in one process, so that only the ratio of their
times means something; the peak memory of each side is measured in a process of its own."""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from kit.diagnostics.memory import PeakMemory
from kit.system.machine import keep_freed_memory


class Side:
    """A model that is trained: `loss()` makes a batch and computes its loss."""

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor]):
        self.loss = loss
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(self) -> float:
        """Seconds of a whole step."""
        began = time.perf_counter()
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began


MakeSide = Callable[[bool], Side]
"""From whether it is kit's side to the side."""


def peak_of(make_side: MakeSide, ours: bool) -> float:
    """Growth of the memory of a process, in MB, in a few steps of one side."""
    side = make_side(ours)
    with PeakMemory(torch.device("cpu")) as peak:  # the system's own figure begins with the peak of the parent
        for _ in range(3):
            side.step()
    return peak.growth / 2**20


def compare(make_side: MakeSide, description: str | None) -> None:
    """The command line of a benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps of each side in a round")
    arguments = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        ours_peak, stock_peak = pool.starmap(peak_of, [(make_side, True), (make_side, False)], chunksize=1)
    print(
        f"peak memory of the steps: kit {ours_peak:,.0f} MB, stock {stock_peak:,.0f} MB: "
        f"{stock_peak / ours_peak:.2f} times less"
    )
    keep_freed_memory()  # as `kit train` does; the other side benefits, too
    sides = [make_side(True), make_side(False)]
    for side in sides:  # warm up
        side.step()
    ratios = []
    for number in range(arguments.rounds):
        ours, stock = (statistics.median(side.step() for _ in range(arguments.steps)) for side in sides)
        ratios.append(stock / ours)
        print(f"round {number + 1}: kit {ours:.3f} s, stock {stock:.3f} s a step: {stock / ours:.2f} times as fast")
    print(f"kit is {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    raise SystemExit("steps.py is not a benchmark: run mlm_step.py or clm_step.py")
