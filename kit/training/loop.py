"""The training loop, the same for every task.

A step consists of the micro-batches that the plan lists for its number. Each process takes its share of them, all
processes sum the normalizers of the losses, and the gradients are summed before the optimizer step. A step depends on
its number only, so a resumed run continues exactly.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from accelerate import Accelerator
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kit.data.batching.plan import Plan, micro_batch_rng, seed_micro_batch
from kit.errors import DataError
from kit.recipe.base import Recipe
from kit.system.console import Reporter, TrainingProgress
from kit.training.averaging import MovingAverage
from kit.training.callbacks import Callback, TrainingState
from kit.training.checkpoint import Checkpoint
from kit.training.checkpoint_manager import CheckpointManager
from kit.training.finite import ADVICE, TrainingFailed, check_losses, check_weights
from kit.training.metrics_log import LogWindow, MetricsLog
from kit.training.objective import Batch, Objective
from kit.training.processes import add_columns, add_over_processes, gather, wait_for_everyone
from kit.training.progress import Progress
from kit.training.sharding import free_weights, full_tensor, is_sharded, load_full_weights, no_gradient_sync
from kit.training.signals import StopSignals
from kit.training.trial import expected_seconds


class TrainingInterrupted(Exception):
    """A signal stopped the run after it saved a checkpoint."""

    def __init__(self, signal_number: int, step: int):
        super().__init__(signal_number, step)
        self.signal_number = signal_number
        self.step = step


class Evaluated(Protocol):
    """The result of an evaluation."""

    @property
    def figures(self) -> Mapping[str, Any]:
        """Metrics by name; "loss" is among them."""


@dataclass
class Loop:
    """The training loop; `run()` trains."""

    accelerator: Accelerator
    objective: Objective
    """The objective that is evaluated and exported."""
    trained_objective: Objective
    """The objective that is optimized: `objective` itself, or its sharded copy."""
    optimizer: Optimizer
    schedule: LRScheduler
    plan: Plan
    make_batch: Callable[[np.ndarray, np.random.Generator], Batch]
    """Builds the tensors of the examples with these indices; the generator is seeded per micro-batch."""
    evaluate: Callable[[int], tuple[Evaluated, float, bool]]
    """`evaluate(step)` → an evaluation, the value that selects the best step, and whether greater is better."""
    recipe: Recipe
    total_steps: int
    folder: Path
    log: MetricsLog
    reporter: Reporter
    callbacks: tuple[Callback, ...] = ()

    def __post_init__(self) -> None:
        self.progress = Progress(world_size=self.accelerator.num_processes)
        self.sharded = is_sharded(self.trained_objective)
        self.prepared: Any = (
            self.trained_objective if self.sharded else self.accelerator.prepare_model(self.trained_objective)
        )
        self.prepared_optimizer: Any = self.accelerator.prepare_optimizer(self.optimizer)
        decay = self.recipe.train.ema_decay
        self.average = None if decay is None else MovingAverage(self.trained_objective.model, decay)
        self.manager = CheckpointManager(
            self.accelerator,
            self.objective,
            self.trained_objective,
            self.optimizer,
            self.schedule,
            self.plan,
            self.recipe,
            self.average,
            self.folder / "checkpoints",
        )
        self.stop = StopSignals()
        self.best_evaluation: tuple[int, Any] | None = None
        """The step and the evaluation of the best step so far, if this process has computed it."""
        self._saved_step: int | None = None
        self._last_loss: float | None = None
        # all processes must take part in summing the loss for callbacks, even if only the main one was given some
        self._is_observed = any(gather([bool(self.callbacks)]))

    # ---- the run -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train until the steps, the time limit or the patience run out; evaluate and save the last step.

        Raises `TrainingInterrupted`, after saving, on a signal, and `TrainingFailed` if training cannot go on.
        """
        progress, train = self.progress, self.recipe.train
        expected = expected_seconds(self)
        self._began, self._seconds_before = time.perf_counter(), progress.seconds
        unit = self.objective.unit
        with self.stop, self.reporter.training_progress(self.total_steps, progress.step, unit, expected) as bar:
            window = LogWindow()
            while not self._done():
                began = time.perf_counter()
                batches = self._next_batches()
                totals, token_counts, interrupted, time_is_up = self._sync_step(batches)
                if interrupted:
                    self._save()
                    raise TrainingInterrupted(self.stop.received or int(signal.SIGTERM), progress.step)
                if time_is_up:
                    break
                loss, norm = self._step(batches, totals)
                progress.step += 1
                if self.average is not None:
                    self.average.update(self.trained_objective.model, progress.step)
                progress.target_tokens += token_counts[0]
                seconds = time.perf_counter() - began
                progress.step_seconds += seconds
                window.add(loss, token_counts, seconds)
                bar.advance(window)
                self._call_on_step(loss)
                if progress.step % train.logging_steps == 0 or progress.step == self.total_steps:
                    self._log(window, norm, bar)
                    window = LogWindow()
                every = self.recipe.eval.steps
                is_best = every > 0 and progress.step % every == 0 and self._evaluate()
                if is_best or progress.step % train.save_steps == 0:
                    self._save()
            if progress.evaluated_step < progress.step:
                self._evaluate()
            if self._saved_step != progress.step:
                self._save()
            received = max(gather([self.stop.received]))  # a signal since the last step
            if received:
                raise TrainingInterrupted(received, progress.step)
        if progress.best_step is None:
            raise TrainingFailed(f"no evaluation had a finite loss, so there is no model to keep. {ADVICE}")
        if self.sharded:
            load_full_weights(self.objective, self.trained_objective)
        progress.seconds = self._seconds()

    def _done(self) -> bool:
        """Whether all steps are done, or the patience has run out."""
        patience = self.recipe.train.early_stopping_patience
        out_of_patience = patience is not None and self.progress.stale_evaluations >= patience
        return self.progress.step >= self.total_steps or out_of_patience

    def _next_batches(self) -> list[tuple[int, Batch]]:
        """The local micro-batches of the next step.

        If a stream fails, which it does in all processes alike, a checkpoint is saved before DataError is raised.
        """
        try:
            return self.local_micro_batches(self.progress.step)
        except DataError:
            if self.progress.step:
                self._save()
            raise

    def local_micro_batches(self, step: int) -> list[tuple[int, Batch]]:
        """The micro-batches of a step that this process computes, with their numbers."""
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        batches = []
        for j, indices in enumerate(self.plan.step(step)):
            if j % processes == rank:
                batch = self.make_batch(indices, micro_batch_rng(self.recipe.train.seed, step, j))
                batches.append((j, {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}))
        return batches

    def _sync_step(self, batches: list[tuple[int, Batch]]) -> tuple[list[float], list[int], bool, bool]:
        """Reduce what all processes must agree on before a step: the totals of the normalizers, token counts
        for the log, whether any process received a signal, and whether the main process has reached the time limit.

        One reduction for all four keeps the step at a single small collective call.
        """
        normalizers = add_columns(self.objective.normalizers(batch) for _, batch in batches)
        token_counts = add_columns(self.objective.token_counts(batch) for _, batch in batches)
        minutes = self.recipe.train.max_minutes
        late = minutes is not None and self.accelerator.is_main_process and self._seconds() > 60 * minutes
        flags = [bool(self.stop.received), late]
        *totals, speed, real, padded, interrupted, time_is_up = add_over_processes(
            [*normalizers, *token_counts, *flags], self.accelerator
        )
        return totals, [int(speed), int(real), int(padded)], bool(interrupted), bool(time_is_up)

    def _step(self, batches: list[tuple[int, Batch]], totals: list[float]) -> tuple[float, float]:
        """Accumulate the gradients of the step and update the weights. Returns this process's share of the loss and the
        gradient norm."""
        train, processes = self.recipe.train, self.accelerator.num_processes
        self.prepared.train()
        self.trained_objective.begin_step(self.progress.step)
        shares = []
        for position, (j, batch) in enumerate(batches):
            seed_micro_batch(train.seed, self.progress.step, j)
            last = position == len(batches) - 1
            with nullcontext() if last else self._no_gradient_sync():
                with self.accelerator.autocast():
                    loss = self.prepared(batch, totals)
                # DDP and FSDP average gradients over processes, but the step's loss is a sum: undo the average
                self.accelerator.backward(loss * processes)
            shares.append(loss.detach())
        largest = math.inf if train.max_grad_norm is None else train.max_grad_norm
        norm = float(full_tensor(self.accelerator.clip_grad_norm_(self.prepared.parameters(), largest)))
        losses = [float(share) for share in shares]  # here, where the device has caught up anyway
        check_losses(self.accelerator, self.progress.step + 1, batches, losses, norm, self.folder)
        self.prepared_optimizer.step()
        if not self.accelerator.optimizer_step_was_skipped:
            self.schedule.step()
        self.prepared_optimizer.zero_grad()
        return sum(losses), norm

    def _no_gradient_sync(self) -> AbstractContextManager[Any]:
        """Context manager that skips the gradient reduction, which is needed only once per step."""
        return no_gradient_sync(self.trained_objective) if self.sharded else self.accelerator.no_sync(self.prepared)

    # ---- figures, evaluation, checkpoints --------------------------------------------------------------------------

    def _seconds(self) -> float:
        """Seconds of the run so far, those before it was resumed included."""
        return self._seconds_before + time.perf_counter() - self._began

    def _log(self, window: LogWindow, norm: float, bar: TrainingProgress) -> None:
        """Log the mean loss of the window, and the gradient norm and learning rate of its last step."""
        loss = add_over_processes([window.loss_sum], self.accelerator)[0] / window.steps
        epoch = self.plan.epochs(self.progress.step)
        rate, speed = self.optimizer.param_groups[0]["lr"], window.tokens / max(window.seconds, 1e-9)
        bar.log(loss, rate, speed)
        self.log.add(
            self.progress.step,
            epoch=round(epoch, 4),
            train_loss=loss,
            learning_rate=rate,
            grad_norm=norm,
            tokens_per_second=round(speed, 1),
            padding=round(1 - window.real_tokens / max(1, window.padded_tokens), 4),
        )

    def _call_on_step(self, loss: float) -> None:
        """Call the callbacks after a step; `loss` is this process's share of the step's loss."""
        if self._is_observed:
            (self._last_loss,) = add_over_processes([loss], self.accelerator)
            for callback in self._main_callbacks():
                callback.on_step(self._state())

    def _main_callbacks(self) -> tuple[Callback, ...]:
        """The callbacks in the main process, none in the others."""
        return self.callbacks if self.accelerator.is_main_process else ()

    def _state(self) -> TrainingState:
        """The argument of the callbacks."""
        step = self.progress.step
        rate = self.optimizer.param_groups[0]["lr"]
        return TrainingState(step, self.total_steps, self.plan.epochs(step), rate, self._last_loss)

    def _evaluate(self) -> bool:
        """Evaluate this step, with the moving average if there is one; returns whether it is the best so far."""
        progress = self.progress
        check_weights(self.accelerator, self.trained_objective.model, progress.step)
        with (
            nullcontext() if self.average is None else self.average.in_place(self.trained_objective.model),
            self._full_weights(),
        ):
            evaluation, value, greater = self.evaluate(progress.step)
        figures = evaluation.figures
        self.log.add(progress.step, validation=figures)
        is_best = progress.record(progress.step, value, figures["loss"], greater)
        if is_best:
            self.best_evaluation = (progress.step, evaluation)
        self._saved_step = None  # a checkpoint of this step does not have the evaluation
        for callback in self._main_callbacks():
            callback.on_evaluate(self._state(), figures)
        return is_best

    @contextmanager
    def _full_weights(self) -> Iterator[None]:
        """Context manager: the objective has the full weights inside the block, even if training is sharded."""
        if self.sharded:
            load_full_weights(self.objective, self.trained_objective)
        yield
        if self.sharded:
            free_weights(self.objective)

    def _save(self) -> None:
        """Save a checkpoint of this step.

        Raises TrainingFailed instead if the weights are not finite: it would take the place of one that can continue.
        """
        check_weights(self.accelerator, self.trained_objective.model, self.progress.step)
        self.progress.seconds = self._seconds()
        folder = self.manager.save(self.progress).folder
        self._saved_step = self.progress.step
        for callback in self._main_callbacks():
            callback.on_save(self._state(), folder)
        wait_for_everyone()

    # ---- before and after `run` ------------------------------------------------------------------------------------

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Raises RunError if its recipe, its model or its frozen weights differ."""
        self.progress = self.manager.restore(checkpoint)

    def release(self) -> None:
        """Free the wrapped model and leave the process group.

        In this order: if the model outlives the process group, torch can deadlock in its destructor.
        """
        self.plan.close()
        self.prepared, self.prepared_optimizer = self.accelerator.free_memory(self.prepared, self.prepared_optimizer)
        self.accelerator.end_training()
