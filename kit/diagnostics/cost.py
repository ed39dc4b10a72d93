"""Time and memory of a run, estimated from a few real steps on a copy of the model."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from kit.data.batching.plan import micro_batch_rng
from kit.data.streaming.plan import StreamPlan
from kit.diagnostics.memory import Memory, PeakMemory, load_libraries
from kit.runs.prepare import Prepared
from kit.tasks.base import Task
from kit.training.averaging import MovingAverage
from kit.training.layer_swaps import swap_layers
from kit.training.objective import Batch, Objective
from kit.training.optim import build_optimizer

STRATA = 5
"""Number of micro-batches to time, evenly spaced by length: the time of attention is quadratic in it."""

ROUNDS = 8
SECONDS_OF_STEPS = 5.0
"""Each stratum is timed at most ROUNDS times, and the median counts; no further step is timed after these seconds."""
SECONDS_OF_EVALUATION = 1.0
"""No further part of an evaluation is timed after this."""
TRIAL_ROWS = 4
"""Rows of the first part that is evaluated; the next parts have GROWTH times as many."""
GROWTH = 4

FEW_TOKENS = 2
"""Maximum length of outputs where only memory is measured."""


@dataclass(frozen=True)
class Cost:
    """Estimated time and memory of a whole run in one process."""

    device: str
    seconds_per_step: float
    total_steps: int
    seconds_of_evaluations: float
    evaluations: int  # during training; the seconds include the final ones on validation and test
    memory: Memory
    to_be_compiled: bool = False  # by the run, not by the trial: compiling takes longer than the trial

    @property
    def seconds_of_training(self) -> float:
        """Estimated seconds of all steps, without evaluations."""
        return self.seconds_per_step * self.total_steps


def estimate(prepared: Prepared, accelerator: Accelerator) -> Cost:
    """Time a few steps and part of an evaluation, and extrapolate. The prepared model does not change.

    Raises `torch.OutOfMemoryError` if the longest micro-batch does not fit on the GPU.
    """
    device, train = accelerator.device, prepared.recipe.train
    load_libraries(prepared.recipe.eval.metrics)
    with PeakMemory(device) as peak:
        model = copy.deepcopy(prepared.model)
        swap_layers(model, device, accelerator.mixed_precision != "no")
        objective = prepared.task.objective(model, prepared.state).to(device)
        optimizer = build_optimizer(objective, train)
        average = None if train.ema_decay is None else MovingAverage(objective.model, train.ema_decay)
        trial = _Trial(objective, optimizer, prepared.make_batch, train.max_grad_norm, accelerator)
        longest, strata = representative_micro_batches(prepared)
        for _ in range(2):  # in the second step, the optimizer has its state
            trial.forward_and_backward(longest)
            trial.update()
        with nullcontext() if average is None else average.in_place(objective.model):
            evaluate_longest(prepared, objective, accelerator)
        copy_for_checkpoint(objective.model, optimizer)
        parts = trial.seconds(strata, SECONDS_OF_STEPS)
        evaluations, seconds = estimate_evaluations(prepared, objective, accelerator)
    seconds_per_step = parts * train.micro_batches + trial.seconds_of_update
    memory = peak.memory(weights_of(objective), trial.optimizer_bytes())
    steps = prepared.total_steps
    return Cost(str(device), seconds_per_step, steps, seconds, evaluations, memory, train.torch_compile)


def weights_of(objective: Objective) -> int:
    """The bytes of the weights and buffers of an objective."""
    return sum(tensor.nbytes for tensor in (*objective.parameters(), *objective.buffers()))


def copy_for_checkpoint(model: nn.Module, optimizer: Optimizer) -> None:
    """Make the copies that writing a checkpoint makes, file by file, so that they count in the peak of memory."""
    for tensors in (model.state_dict().values(), tensors_of(optimizer)):
        copies = [tensor.cpu().clone() for tensor in tensors]
        del copies


def representative_micro_batches(prepared: Prepared) -> tuple[np.ndarray, list[np.ndarray]]:
    """The micro-batch with the longest example of the first epoch, and `STRATA` micro-batches of it to be timed, evenly
    spaced when all are sorted by their longest example."""
    plan = prepared.plan
    assert not isinstance(plan, StreamPlan), "a stream is measured by its first buffer"
    lengths = np.maximum.reduce(plan.sides)
    steps = min(prepared.total_steps, plan.steps_per_epoch)
    parts = [part for step in range(steps) for part in plan.step(step)]
    parts.sort(key=lambda part: (int(lengths[part].max()), len(part)))
    middles = (np.arange(min(STRATA, len(parts))) + 0.5) * len(parts) / min(STRATA, len(parts))
    return parts[-1], [parts[int(middle)] for middle in middles]


class _Trial:
    """Training steps as those of the loop, but on a copy of the model that is discarded."""

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        make_batch: Callable[[np.ndarray, np.random.Generator], Batch],
        max_norm: float | None,
        accelerator: Accelerator,
    ):
        self.objective, self.optimizer, self.make_batch = objective.train(), optimizer, make_batch
        self.accelerator = accelerator
        self.max_norm = float("inf") if max_norm is None else max_norm
        self.seconds_of_update = 0.0

    def forward_and_backward(self, indices: np.ndarray) -> float:
        """Compute the gradients of a micro-batch and return the seconds."""
        with timed(self.accelerator) as seconds:
            batch = self.make_batch(indices, micro_batch_rng(0, 0, 0))
            batch = {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}
            with self.accelerator.autocast():
                loss = self.objective(batch, self.objective.normalizers(batch))
            loss.backward()
        return seconds()

    def update(self) -> None:
        """Clip the gradients and update the weights, and record the seconds."""
        with timed(self.accelerator) as seconds:
            torch.nn.utils.clip_grad_norm_(self.objective.parameters(), self.max_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.seconds_of_update = seconds()

    def seconds(self, parts: list[np.ndarray], budget: float) -> float:
        """Mean seconds of a micro-batch.

        It is the mean over `parts` of their median times, over as many rounds as fit into `budget` seconds. The middle
        one is timed at least once.
        """
        measured: list[list[float]] = [[] for _ in parts]
        # from the middle outwards: if time runs out, the extremes are skipped
        order = sorted(range(len(parts)), key=lambda i: abs(i - len(parts) // 2))
        start = time.perf_counter()
        for i in order * ROUNDS:
            expected = max(measured[i] or [seconds for times in measured for seconds in times], default=0.0)
            if measured[order[0]] and time.perf_counter() - start + expected > budget:
                break
            measured[i].append(self.forward_and_backward(parts[i]))
            self.update()
        return float(np.mean([np.median(times) for times in measured if times]))

    def optimizer_bytes(self) -> int:
        """The bytes of the optimizer's state."""
        return sum(tensor.nbytes for tensor in tensors_of(self.optimizer))


def tensors_of(optimizer: Optimizer) -> list[Tensor]:
    """The tensors of the state of an optimizer."""
    values = (value for state in optimizer.state.values() for value in state.values())
    return [value for value in values if isinstance(value, Tensor)]


@contextmanager
def timed(accelerator: Accelerator) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds of the block after it ends, including queued work of a GPU."""
    _finish_work(accelerator)
    start, seconds = time.perf_counter(), [0.0]
    yield lambda: seconds[0]
    _finish_work(accelerator)
    seconds[0] = time.perf_counter() - start


def _finish_work(accelerator: Accelerator) -> None:
    """Wait until a GPU has done all queued work."""
    if accelerator.device.type != "cpu":
        torch.accelerator.synchronize()


def estimate_evaluations(prepared: Prepared, objective: Objective, accelerator: Accelerator) -> tuple[int, float]:
    """Number of evaluations during training, and the seconds of these and of the final ones."""
    steps = prepared.recipe.eval.steps
    evaluations = -(-prepared.total_steps // steps) if steps else 1
    seconds = {final: time_evaluation(prepared, objective, accelerator, final) for final in (False, True)}
    rows = {split: len(rows) for split, rows in prepared.splits.datasets.items() if split != "train"}
    return evaluations, evaluations * seconds[False](rows["validation"]) + sum(map(seconds[True], rows.values()))


def time_evaluation(
    prepared: Prepared, objective: Objective, accelerator: Accelerator, final: bool
) -> Callable[[int], float]:
    """Time `Task.evaluate` on growing parts of the validation split; returns a function from a number of rows to the
    seconds that evaluating them should take."""
    rows, state = prepared.splits.datasets["validation"], prepared.state
    task, evaluator = trial_task(prepared), prepared.evaluator(accelerator)
    size, timings, start = min(TRIAL_ROWS, len(rows)), list[tuple[int, float]](), time.perf_counter()
    while True:
        part = rows.select(np.arange(size) * len(rows) // size)
        encoded = prepared.task.encode(part, state, "validation")
        with timed(accelerator) as seconds:
            task.evaluate(evaluator, objective, part, encoded, state, final=final)
        timings.append((size, seconds()))
        if size == len(rows) or time.perf_counter() - start > SECONDS_OF_EVALUATION:
            return extrapolate(timings)
        size = min(GROWTH * size, len(rows))


def evaluate_longest(prepared: Prepared, objective: Objective, accelerator: Accelerator) -> None:
    """Evaluate the longest rows of the validation split, as many as fill a batch: the one that needs most memory.

    Outputs have a few tokens only: generating needs less memory than the loss over whole references.
    """
    rows = prepared.splits.datasets["validation"]
    lengths, tokens = example_lengths(prepared, "validation"), prepared.recipe.eval.tokens_per_batch
    if len(lengths) == len(rows):
        longest = np.argsort(-lengths, kind="stable")
        chosen = np.sort(longest[: max(1, tokens // int(lengths[longest[0]]))])
    else:  # a row is several examples, or a part of some
        chosen = np.arange(min(len(rows), -(-len(rows) * tokens // int(lengths.sum()))))
    part = rows.select(chosen)
    encoded = prepared.task.encode(part, prepared.state, "validation")
    task, evaluator = trial_task(prepared, FEW_TOKENS), prepared.evaluator(accelerator)
    task.evaluate(evaluator, objective, part, encoded, prepared.state)


def example_lengths(prepared: Prepared, split: str) -> np.ndarray:
    """The length in tokens of each example of a split; for pairs, of the longer side."""
    examples: Any = prepared.encoded[split].examples
    texts = prepared.task.token_lists(examples, prepared.state).values()
    sides = [examples.lengths] if hasattr(examples, "lengths") else [text.lists.lengths for text in texts]
    return np.maximum(np.maximum.reduce(sides), 1)


def trial_task(prepared: Prepared, max_new_tokens: int | None = None) -> Task[Any, Any]:
    """The task, changed for evaluating a part of the data with an untrained model.

    Such a model never writes an end token, so the length of its outputs is limited, by default to that of the longest
    reference. If the model does not generate, metrics are left out: they take hardly any time, and some are undefined
    on a few rows.
    """
    recipe = prepared.recipe
    fields = type(recipe.eval).model_fields
    if "max_new_tokens" not in fields:
        return type(prepared.task)(recipe.with_values("eval", metrics=[]))
    section: Any = recipe.eval
    texts = prepared.task.token_lists(prepared.encoded["validation"].examples, prepared.state).values()
    targets = [text for text in texts if text.as_target] or texts
    longest = max(int(text.lists.lengths.max(initial=1)) for text in targets)
    changes: dict[str, Any] = {"max_new_tokens": min(max_new_tokens or longest, section.max_new_tokens)}
    if "group_by" in fields:
        changes["group_by"] = []
    return type(prepared.task)(recipe.with_values("eval", **changes))


def extrapolate(timings: list[tuple[int, float]]) -> Callable[[int], float]:
    """A function from a number of rows to seconds, fitted to the last two timings (rows, seconds): a constant plus a
    part for each row.

    If there is a single timing, or the last one is not longer than the one before, seconds are proportional to rows.
    """
    (fewer, before), (rows, seconds) = ((0, 0.0), *timings)[-2:]
    per_row = (seconds - before) / (rows - fewer) if seconds > before else seconds / rows
    constant = max(0.0, seconds - per_row * rows)
    return lambda count: constant + per_row * count
