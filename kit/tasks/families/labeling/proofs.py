"""Proofs about fine-tuned models: predictions do not depend on padding and other examples, the loss is correct, and
pipelines predict what evaluation predicts."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel

from kit.pretrained.loading import quiet_transformers
from kit.pretrained.pipelines import pipeline
from kit.pretrained.positions import position_limit
from kit.system.outputs import scratch_folder
from kit.tasks.families.labeling.objectives import LabelObjective
from kit.tasks.stages import TaskState
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

SCORE_TOLERANCE = 1e-4
"""Largest relative difference of a score in float32: batches of other shapes round differently."""


@dataclass(frozen=True, kw_only=True)
class LabeledSubject(Subject):
    """A model that predicts labels, with rows to predict for; the batch has the examples of these rows."""

    task: Any
    """A LabelingTask, whose module imports this one."""
    state: TaskState
    rows: Dataset
    folder: Path | None
    """The folder of the model; None if it is a new one."""

    def objective(self, model: PreTrainedModel) -> LabelObjective:
        objective: LabelObjective = self.task.objective(model, self.state)
        return objective


def flat(output: dict[str, Tensor]) -> Tensor:
    """All logits of an output as one vector."""
    return torch.cat([logits.flatten() for logits in output.values()])


@proof("save and load", "a saved model is loaded with the same weights and logits, bit for bit")
def save_and_load(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    batch = {name: tensor.to(subject.model.device) for name, tensor in subject.batch.items()}

    @torch.no_grad()
    def run(model: PreTrainedModel) -> Tensor:
        return flat(subject.objective(model).output(batch))

    return compare_after_reload(subject.model, run)


@torch.no_grad()
def logits_of_examples(subject: LabeledSubject, batch: Batch) -> list[Tensor]:
    """The logits of each example as one vector, without those of padding."""
    output = subject.objective(subject.exact).output(batch)
    real = batch["attention_mask"].bool()
    rows = range(len(real))
    if subject.task.of_tokens:
        return [flat({name: logits[row][real[row]] for name, logits in output.items()}) for row in rows]
    return [flat({name: logits[row] for name, logits in output.items()}) for row in rows]


def inputs_of(batch: Batch) -> Batch:
    """The inputs of the model, (examples, tokens) each."""
    return {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask") if name in batch}


@proof("padding", "a padded batch gives each example the logits it has alone")
def padding(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    tokenizer, inputs = subject.state.tokenizers.source, inputs_of(subject.batch)
    limit, length = position_limit(subject.model.config), inputs["input_ids"].shape[1]
    padding = EXTRA_PADDING if limit is None else min(EXTRA_PADDING, limit - length)
    values = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    wide = {name: nn.functional.pad(ids, (0, padding), value=values.get(name, 0)) for name, ids in inputs.items()}
    differences = []
    for row, padded in enumerate(logits_of_examples(subject, wide)):
        real = inputs["attention_mask"][row].bool()
        (alone,) = logits_of_examples(subject, {name: ids[row : row + 1, real] for name, ids in inputs.items()})
        differences.append(relative_difference(padded, alone))
    return equal_within(max_or_nan(differences), TOLERANCE, "logits")


@proof("loss", "the training loss is the one computed by hand")
def loss(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    objective, batch = subject.objective(subject.exact), subject.batch
    with torch.no_grad():
        actual = float(objective(batch, objective.normalizers(batch)))
        output = objective.output(batch)
    by_hand = subject.task.loss_by_hand(output, batch, subject.state)
    return equal_within(relative_error(actual, by_hand), LOSS_TOLERANCE, "losses")


@proof("accumulation", "a step in four micro-batches has the gradient of a step in one")
def accumulation(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    return check_accumulation(subject.objective(subject.exact), subject.batch)


@proof("gradients", "the loss reaches every parameter that can learn")
def every_gradient(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    gradients = step_gradients(subject.objective(subject.exact), [subject.batch])
    return check_gradients(gradients, [*ZERO_GRADIENT_PATTERNS, *subject.task.zero_gradients])


@proof("pipeline", "the pipeline on the saved folder predicts for each row what evaluation predicts")
def pipeline_predictions(subject: Subject) -> Outcome:
    assert isinstance(subject, LabeledSubject)
    task, model = subject.task, subject.model.eval()
    expected = task.predict(subject.objective(model), subject.rows, subject.state).rows
    with scratch_folder("kit-verify-") as temporary, quiet_transformers():
        if subject.folder is None:
            task.export(temporary / "model", model, subject.state)
        pipe = pipeline(
            task.recipe.pipeline_tag,
            str(subject.folder or temporary / "model"),
            device=model.device,
            **task.pipeline_arguments,
        )
        actual = [task.pipeline_prediction(pipe, row) for row in subject.rows.to_list()]
    different = sum(not same(*pair) for pair in zip(actual, expected, strict=True))
    return Outcome(different == 0, f"{different} of {len(expected)} rows differ")


def same(actual: Any, expected: Any) -> bool:
    """Whether two predictions are equal, numbers up to rounding."""
    if isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(same(actual[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    if isinstance(expected, float):
        return math.isclose(actual, expected, rel_tol=SCORE_TOLERANCE, abs_tol=SCORE_TOLERANCE)
    return bool(actual == expected)


PROOFS: tuple[Proof, ...] = (
    save_and_load,
    padding,
    loss,
    accumulation,
    every_gradient,
    pipeline_predictions,
)
