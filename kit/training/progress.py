"""How far a run has come, and which of its steps is the best."""

import math
from dataclasses import dataclass


@dataclass
class Progress:
    """Progress of a run, saved in every checkpoint."""

    step: int = 0
    seconds: float = 0.0  # training and evaluations
    step_seconds: float = 0.0  # training steps only
    target_tokens: int = 0
    best: float | None = None  # None if it is not a finite number
    best_loss: float | None = None  # tie-breaker between steps with an equal selection metric
    best_step: int | None = None
    evaluated_step: int = -1
    stale_evaluations: int = 0
    world_size: int = 1  # processes that wrote the checkpoint, for whoever reads its state.json

    def record(self, step: int, value: float | None, loss: float | None, greater: bool) -> bool:
        """Record the selection metric and the loss of a step; returns whether it is the best so far.

        A step without a finite loss never is. A metric that is not a finite number, such as the correlation of constant
        predictions, is worse than every number.
        """
        self.evaluated_step = step
        rank = _rank(value, loss, greater)
        best_rank = _rank(self.best, self.best_loss, greater)
        if rank is None or (best_rank is not None and rank <= best_rank):
            self.stale_evaluations += 1
            return False
        self.best = value if value is not None and math.isfinite(value) else None
        self.best_loss, self.best_step, self.stale_evaluations = loss, step, 0
        return True

    def forget_best(self) -> None:
        """Forget the best step: the next evaluation becomes the best, the one at the end of the run at the latest."""
        self.best = self.best_loss = self.best_step = None
        self.evaluated_step = -1


def _rank(value: float | None, loss: float | None, greater: bool) -> tuple[float, float] | None:
    """The key by which steps are compared, greater is better; None for a step that cannot be the best."""
    if loss is None or not math.isfinite(loss):
        return None
    if value is None or not math.isfinite(value):
        return -math.inf, -loss
    return (value if greater else -value), -loss
