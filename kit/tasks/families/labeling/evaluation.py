"""Running a labeling model over examples: in an evaluation with the loss, and in `kit predict` without it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kit.evaluation.evaluator import Evaluator
from kit.tasks.families.labeling.examples import Inputs, LabeledExamples
from kit.tasks.families.labeling.objectives import LabelObjective
from kit.training.objective import Batch

Keep = Callable[[dict[str, Tensor], Batch], list[Any]]
"""Takes what is needed of each example from the model's output for a batch."""


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model for rows."""

    rows: list[dict[str, Any]]
    """For each row in order, its predictions by name."""
    truncated: int = 0
    """Number of rows that were longer than the model can read."""


def predict_with_loss(
    objective: LabelObjective,
    examples: LabeledExamples,
    evaluator: Evaluator,
    keep: Keep,
) -> tuple[list[Any], float]:
    """Run the model over examples: returns what `keep` takes from its output for each, in order, and the mean loss."""
    objective.eval()

    def compute(batch: Batch) -> tuple[list[Any], list[Tensor | float]]:
        output = objective.output(batch)
        return keep(output, batch), [objective.summed_loss(output, batch), objective.loss_count(batch)]

    outputs, (loss, count) = evaluator.outputs_and_sums(examples.lengths, examples.batch, compute)
    return outputs, loss / max(count, 1)


def predict_rows(objective: LabelObjective, inputs: Inputs, tokens_per_batch: int, keep: Keep) -> list[Any]:
    """Run the model over rows without labels, in this process alone: returns what `keep` takes from its output for
    each, in order."""
    objective.eval()
    evaluator = Evaluator(tokens_per_batch, device=objective.model.device)
    return evaluator.outputs(inputs.lengths, inputs.batch, lambda batch: keep(objective.output(batch), batch))
