"""How long a run will take, by a few steps whose gradients are discarded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from kit.system.device import preserved_random_state

if TYPE_CHECKING:
    from kit.training.loop import Loop

FEWEST_STEPS = 100
"""Shorter runs are over before a trial of them is worth its time."""
TIMED_STEPS = 4
BUDGET = 5.0
"""Seconds after which no further step is timed."""


def expected_seconds(loop: Loop) -> float | None:
    """The seconds of the remaining steps, without evaluations; for a run with a time limit, at most that limit.

    None where a trial would change the run or is of little use: for a stream, which is read only once, with sharded
    weights, while the first steps compile, and for short runs. The run itself does not change.
    """
    first, remaining = loop.progress.step, loop.total_steps - loop.progress.step
    of_epoch, train = loop.plan.steps_per_epoch, loop.recipe.train
    if of_epoch is None or loop.sharded or train.torch_compile or remaining < FEWEST_STEPS:
        return None
    within = min(remaining, of_epoch - first % of_epoch)  # of one epoch, so that the plan shuffles only this one
    steps = [first + within * number // TIMED_STEPS for number in range(TIMED_STEPS)]
    objective = loop.trained_objective
    buffers = [(buffer, buffer.clone()) for buffer in objective.buffers()]  # such as the means of batch normalization
    carried = {name: tensor.clone() for name, tensor in objective.carried_state().items()}
    began, timings = time.perf_counter(), []
    with preserved_random_state():
        warm_up = seconds_of_step(loop, steps[0])
        while steps and time.perf_counter() - began < BUDGET:
            timings.append(seconds_of_step(loop, steps.pop(0)))
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    objective.load_carried_state(carried)
    seconds = remaining * (sum(timings) / len(timings) if timings else warm_up)
    return seconds if train.max_minutes is None else min(seconds, 60 * train.max_minutes)


def seconds_of_step(loop: Loop, step: int) -> float:
    """The seconds of the forward and backward passes of this process in a step; the gradients are discarded."""
    began = time.perf_counter()
    loop.prepared.train()
    loop.trained_objective.begin_step(step)
    for _, batch in loop.local_micro_batches(step):
        totals = loop.trained_objective.normalizers(batch)
        with loop.accelerator.no_sync(loop.prepared):
            with loop.accelerator.autocast():
                loss = loop.prepared(batch, totals)
            loss.backward()
    loop.optimizer.zero_grad()
    if loop.accelerator.device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - began
