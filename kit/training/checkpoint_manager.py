"""The checkpoints of a run: what they hold, and how a run continues from one.

`kit.training.checkpoint` is the file format. Here is what goes into the files: weights and their moving average, the
optimizer and its schedule, the gradient scaler, carried state, the position in the data, progress, and what a resumed
run must have in common with the one that wrote them (recipe values, a checksum of frozen weights). Random states are
missing on purpose: every micro-batch is seeded by its number.
"""

from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from kit.data.batching.plan import Plan
from kit.errors import RunError
from kit.recipe.base import Recipe
from kit.training.averaging import MovingAverage, mean_weights
from kit.training.checkpoint import (
    Checkpoint,
    Checkpoints,
    frozen_checksum,
    load_model_tensors,
    load_optimizer_tensors,
    model_tensors,
    optimizer_tensors,
)
from kit.training.objective import Objective
from kit.training.processes import on_main
from kit.training.progress import Progress
from kit.training.sharding import full_tensors, is_sharded


@dataclass
class CheckpointManager:
    """Saves the state of a run, restores it, and loads the weights of single checkpoints.

    All processes must call each method: sharded weights are gathered, and the main process alone writes.
    """

    accelerator: Accelerator
    objective: Objective
    """The objective that is evaluated and exported."""
    trained_objective: Objective
    """The objective that is optimized: `objective` itself, or its sharded copy."""
    optimizer: Optimizer
    schedule: LRScheduler
    plan: Plan
    recipe: Recipe
    average: MovingAverage | None
    folder: Path

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.folder)
        self.names: dict[Tensor, str] = {p: name for name, p in self.trained_objective.model.named_parameters()}
        # with sharding, no process has the full tensors
        self.frozen = None if is_sharded(self.trained_objective) else frozen_checksum(self.objective.model)

    def save(self, progress: Progress) -> Checkpoint:
        """Save the state after the step of `progress`, and delete the checkpoints that are no longer needed.

        Returns when the main process has written its files; the others return earlier.
        """
        is_main = self.accelerator.is_main_process
        carried = self._carried_state()
        model = full_tensors(model_tensors(self.trained_objective.model), is_main)
        optimizer = full_tensors(optimizer_tensors(self.optimizer, self.names), is_main)
        average = None if self.average is None else full_tensors(self.average.tensors, is_main)
        if is_main:
            scaler = self.accelerator.scaler
            state = {
                "progress": asdict(progress),
                "plan": self.plan.state(progress.step),
                "schedule": self.schedule.state_dict(),
                "frozen": self.frozen,
                "recipe": self.recipe.fixed_values(),
                "learning_rates": [group["lr"] for group in self.optimizer.param_groups],
                "scaler": None if scaler is None else scaler.state_dict(),
            }
            self.checkpoints.save(progress.step, model, optimizer, state, average, carried)
            keep = max(self.recipe.train.save_total_limit, self.recipe.eval.average or 1)
            self.checkpoints.rotate(progress.step, progress.best_step, keep)
        return self.checkpoints.at(progress.step)

    def _carried_state(self) -> dict[str, Tensor]:
        """The carried state of the objective, each stream from the process that reads it."""
        local, tensors = self.trained_objective.local_streams(), self.trained_objective.carried_state()
        if self.accelerator.num_processes == 1 or not tensors:
            return tensors
        readers = self.accelerator.reduce(local.float().to(self.accelerator.device)).cpu()
        merged = {}
        for name, tensor in sorted(tensors.items()):
            mask = local.to(tensor.device).unsqueeze(1)
            total = self.accelerator.reduce((tensor * mask).to(self.accelerator.device)).to(tensor.device)
            # a stream that no process has read since resuming keeps its restored state
            merged[name] = torch.where((readers > 0).to(tensor.device).unsqueeze(1), total, tensor).contiguous()
        return merged

    def restore(self, checkpoint: Checkpoint) -> Progress:
        """Restore the state of a checkpoint and return its progress.

        Raises RunError if its recipe, its model or its frozen weights differ from those of this run.
        """
        state = checkpoint.state()
        if changes := self.recipe.changes_since(state.get("recipe", {})):
            raise RunError(
                f"{checkpoint.folder} was trained with another recipe: {changes}. Nothing was touched. Restore the "
                "recipe, or start a new run with another --output"
            )
        if None not in (self.frozen, saved := state.get("frozen")) and saved != self.frozen:
            raise RunError(
                f"{checkpoint.folder} was trained with frozen weights that differ from those of "
                f"{self.recipe.model.pretrained} "
                "now. Restore those weights, or start a new run with another --output"
            )
        load_model_tensors(self.trained_objective.model, checkpoint.model(), checkpoint.folder)
        load_optimizer_tensors(self.optimizer, self.names, checkpoint.optimizer())
        if self.average is not None:
            self.average.restore(checkpoint.weights())
        self.schedule.load_state_dict(state["schedule"])
        for group, rate in zip(self.optimizer.param_groups, state["learning_rates"], strict=True):
            group["lr"] = rate
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.plan.restore(state["plan"])
        self.trained_objective.load_carried_state(checkpoint.carried_state())
        return Progress(**{**state["progress"], "world_size": self.accelerator.num_processes})

    def load_best(self, best_step: int | None) -> None:
        """Load the weights of the best step into the objective's model.

        Raises RunError if its checkpoint is corrupt.
        """
        assert best_step is not None  # `Loop.run` ends with one, or raises
        checkpoint = self.checkpoints.at(best_step)
        if error := checkpoint.integrity_error():
            raise RunError(f"the best checkpoint, {checkpoint.folder}, is corrupt: {error}")
        load_model_tensors(self.objective.model, checkpoint.weights(), checkpoint.folder)

    def load_mean(self, last: int) -> list[int]:
        """Load the mean weights of the last intact checkpoints into the objective's model; returns their steps."""
        steps = sorted(on_main(lambda: [checkpoint.step for checkpoint in islice(self.checkpoints.intact(), last)]))
        weights = mean_weights([self.checkpoints.at(step) for step in steps])
        load_model_tensors(self.objective.model, weights, self.checkpoints.folder)
        return steps
