"""Proofs about fine-tuned models: padding and other examples change nothing, the loss is the one it should be, and
pipelines say what evaluation says."""

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import Pipeline, PreTrainedModel

from kit.pretrained.loading import without_progress_bars
from kit.pretrained.pipelines import pipeline
from kit.pretrained.positions import position_limit
from kit.tasks.base import TaskState
from kit.tasks.families.labeling.objectives import LabelObjective
from kit.tasks.families.labeling.recipe import LabelingRecipe
from kit.training.objective import Batch
from kit.verify.forward import EXTRA_PADDING, TOLERANCE, compare_after_reload, relative_difference
from kit.verify.learning import TOLERANCE as LOSS_TOLERANCE
from kit.verify.learning import (
    ZERO_GRADIENT_PATTERNS,
    check_accumulation,
    check_gradients,
    relative_error,
    step_gradients,
)
from kit.verify.proof import Outcome, Proof, equal_within, max_or_nan, proof
from kit.verify.subject import Subject

SAME_SCORE = 1e-4
"""Largest difference of a probability, or of a number in relation to its size, in 32 bits and in batches or alone."""


class ProvableTask(Protocol):
    """What the proofs ask the task of a model."""

    recipe: LabelingRecipe
    of_tokens: ClassVar[bool]
    """Whether the model predicts for each token."""
    zero_gradients: ClassVar[Mapping[str, str]]
    """Parameters whose gradient can be zero by its nature, with the reason."""
    pipeline_arguments: ClassVar[Mapping[str, Any]]
    """Arguments with which the pipeline of the task reports everything."""

    def objective(self, model: PreTrainedModel, state: Any) -> Any:
        """The loss that training minimizes, a LabelObjective."""

    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch, state: Any) -> float:
        """The training loss of a batch in plain arithmetic."""

    def predict(self, objective: LabelObjective, rows: Dataset, state: Any) -> Any:
        """Predictions for rows."""

    def pipeline_prediction(self, pipe: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
        """The prediction of the pipeline for a row, in the form of `predict`."""

    def export(self, folder: Path, model: PreTrainedModel, state: Any) -> None:
        """Write the model folder."""


@dataclass(frozen=True, kw_only=True)
class LabeledSubject(Subject):
    """A model that predicts labels, with rows to predict for; the batch has the examples of these rows."""

    task: ProvableTask
    state: TaskState
    rows: Dataset
    folder: Path | None
    """The folder of the model; None if it is a new one."""

    def objective(self, model: PreTrainedModel) -> LabelObjective:
        return self.task.objective(model, self.state)


def is_labeled(subject: Subject) -> bool:
    return isinstance(subject, LabeledSubject)


def flat(output: dict[str, Tensor]) -> Tensor:
    """All logits in a row."""
    return torch.cat([logits.flatten() for logits in output.values()])


@proof("save and load", "a saved model is loaded with the same weights and logits, bit for bit", is_labeled)
def save_and_load(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    batch = {name: tensor.to(subject.model.device) for name, tensor in subject.batch.items()}

    @torch.no_grad()
    def run(model: PreTrainedModel) -> Tensor:
        return flat(subject.objective(model).output(batch))

    return compare_after_reload(subject.model, run)


@torch.no_grad()
def said(subject: LabeledSubject, batch: Batch) -> list[Tensor]:
    """All logits of each example, without those of padding."""
    output = subject.objective(subject.exact).output(batch)
    real = batch["attention_mask"].bool()
    rows = range(len(real))
    if subject.task.of_tokens:
        return [flat({name: logits[row][real[row]] for name, logits in output.items()}) for row in rows]
    return [flat({name: logits[row] for name, logits in output.items()}) for row in rows]


def inputs_of(batch: Batch) -> Batch:
    """What the model reads, (examples, tokens) each."""
    return {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask") if name in batch}


@proof("padding", "a padded batch gives each example the logits it has alone", is_labeled)
def padding(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    tokenizer, inputs = subject.state.tokenizers.source, inputs_of(subject.batch)
    limit, length = position_limit(subject.model.config), inputs["input_ids"].shape[1]
    more = EXTRA_PADDING if limit is None else min(EXTRA_PADDING, limit - length)
    fillers = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    wide = {name: nn.functional.pad(ids, (0, more), value=fillers.get(name, 0)) for name, ids in inputs.items()}
    differences = []
    for row, found in enumerate(said(subject, wide)):
        real = inputs["attention_mask"][row].bool()
        (alone,) = said(subject, {name: ids[row : row + 1, real] for name, ids in inputs.items()})
        differences.append(relative_difference(found, alone))
    return equal_within(max_or_nan(differences), TOLERANCE, "logits")


@proof("loss", "the training loss is the one computed by hand", is_labeled)
def loss(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    objective, batch = subject.objective(subject.exact), subject.batch
    with torch.no_grad():
        found = float(objective(batch, objective.normalizers(batch)))
        output = objective.output(batch)
    by_hand = subject.task.loss_by_hand(output, batch, subject.state)
    return equal_within(relative_error(found, by_hand), LOSS_TOLERANCE, "losses")


@proof("accumulation", "a step in four micro-batches has the gradient of a step in one", is_labeled)
def accumulation(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    return check_accumulation(subject.objective(subject.exact), subject.batch)


@proof("gradients", "the loss reaches every parameter that can learn", is_labeled)
def every_gradient(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    gradients = step_gradients(subject.objective(subject.exact), [subject.batch])
    return check_gradients(gradients, [*ZERO_GRADIENT_PATTERNS, *subject.task.zero_gradients])


@proof("pipeline", "the pipeline on the saved folder says about each row what evaluation says", is_labeled)
def pipeline_says_the_same(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    task, model = subject.task, subject.model.eval()
    expected = task.predict(subject.objective(model), subject.rows, subject.state).rows
    with tempfile.TemporaryDirectory() as made, without_progress_bars():
        if subject.folder is None:
            task.export(Path(made) / "model", model, subject.state)
        pipe = pipeline(
            task.recipe.pipeline_tag,
            str(subject.folder or Path(made) / "model"),
            device=model.device,
            **task.pipeline_arguments,
        )
        found = [task.pipeline_prediction(pipe, row) for row in subject.rows.to_list()]
    different = sum(not same(one, other) for one, other in zip(found, expected, strict=True))
    return Outcome(different == 0, f"{different} of {len(expected)} rows differ")


def same(found: Any, expected: Any) -> bool:
    """Whether two predictions are equal, their numbers but for rounding."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=SAME_SCORE, abs_tol=SAME_SCORE)
    return bool(found == expected)


PROOFS: tuple[Proof, ...] = (
    save_and_load,
    padding,
    loss,
    accumulation,
    every_gradient,
    pipeline_says_the_same,
)
