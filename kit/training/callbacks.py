"""Callbacks: what a Python program does during training, such as reporting to a tracker of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import KitError


@dataclass(frozen=True)
class TrainingState:
    """Where a run is when a callback is called."""

    step: int
    """Number of completed steps."""
    total_steps: int
    """Number of steps that the recipe asks for."""
    epoch: float
    """How often the training data has been read so far; for a stream, in units of whole shards."""
    learning_rate: float
    """The highest learning rate of the next step."""
    loss: float | None
    """Loss of the last step over its whole batch, whatever the number of processes; None before the first step."""


class Callback:
    """Base class of callbacks: override what you need, and pass an instance to `kit.train(..., callbacks=[...])`.

    With several processes, callbacks are called in the main process only, while the others wait for the next step.
    Random numbers that a callback draws do not change the run. An exception ends the run; its last checkpoint remains.
    """

    def on_step(self, state: TrainingState) -> None:
        """Called after every step of training."""

    def on_evaluate(self, state: TrainingState, metrics: Mapping[str, Any]) -> None:
        """Called after every evaluation on the validation split during training, with its figures."""

    def on_save(self, state: TrainingState, checkpoint: Path) -> None:
        """Called after a checkpoint has been written, with its folder; older ones may have been deleted."""


def check_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """The callbacks as a tuple. Raises KitError for anything that is not an instance of `Callback`."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise KitError(f"callbacks: expected instances of subclasses of kit.Callback, got {callback!r}")
    return tuple(callbacks)
