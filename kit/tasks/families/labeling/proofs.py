"""Proofs about fine-tuned models: padding and other examples change nothing, the loss is the one it should be, and
pipelines say what evaluation says."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import Pipeline, PreTrainedModel

from kit.data.batching.ragged import IGNORE_INDEX
from kit.data.text.tokenizer import Tokenizers
from kit.pretrained.loading import without_progress_bars
from kit.pretrained.pipelines import pipeline
from kit.pretrained.positions import position_limit
from kit.tasks.classification.task import LIKELY, MULTI, Classification
from kit.tasks.families.labeling.objectives import LabelObjective
from kit.tasks.families.labeling.task import FineTuning
from kit.tasks.question_answering.task import QuestionAnswering
from kit.tasks.tagging.task import Tagging
from kit.training.objective import Batch
from kit.verify.forward import EXTRA_PADDING, TOLERANCE, difference, saved_and_loaded
from kit.verify.learning import (
    MICRO_BATCHES,
    NEVER_MOVED,
    accumulated,
    cross_entropy_by_hand,
    reached,
    step_gradients,
)
from kit.verify.learning import TOLERANCE as LOSS_TOLERANCE
from kit.verify.proof import Outcome, Proof, equal_within, largest, proof
from kit.verify.subject import EXAMPLES, Subject

SAME_FOR_ALL = {r"\bbias$": "what is added to all tokens alike cancels in the softmax over them"}
"""Parameters of models that choose tokens, by name, whose gradient can be zero by its nature, and why."""

SAME_SCORE = 1e-4
"""Largest difference of a probability, or of a number in relation to its size, in 32 bits and in batches or alone."""


@dataclass(frozen=True, kw_only=True)
class Labelled(Subject):
    """A model for labels with rows to say something about; the batch is of the examples that these are."""

    task: FineTuning[Any]
    rows: Dataset
    folder: Path | None
    """The folder of the model; None if it is a new one."""
    tokenizers: Tokenizers

    def objective(self, model: PreTrainedModel) -> LabelObjective:
        objective: Any = self.task.objective(model)
        return objective

    @cached_property
    def of_tokens(self) -> bool:
        """Whether the model says something about each token."""
        return not isinstance(self.task, Classification)


def is_labelled(subject: Subject) -> bool:
    return isinstance(subject, Labelled)


def subject_of(task: FineTuning[Any], folder: Path | None) -> tuple[Labelled, str]:
    """A new model of a recipe, or that of a run, with some examples of validation; and which they are."""
    splits = task.load()
    if folder is None:
        tokenizers = task.build_tokenizers(splits)
        task.encode(splits, tokenizers)  # which labels there are
        model = task.build_model(tokenizers)
    else:
        tokenizers, model = task.load_tokenizers(folder), task.load_model(folder)
    rows = splits.datasets["validation"]
    rows = rows.select(range(min(EXAMPLES, len(rows))))
    examples = task.encode_split(rows, tokenizers, model.config)
    if isinstance(task, Classification) and folder is not None and task.recipe.data.class_weights is not None:
        task.class_weights = task.find_weights(task.label_array(splits.datasets["train"], "train"))
    few = np.arange(max(MICRO_BATCHES, min(EXAMPLES, len(examples)))) % len(examples)
    told = f"{len(few)} examples of validation"
    seed, batch = task.recipe.train.seed, examples.batch(few)
    return Labelled(model, batch, seed, task=task, rows=rows, folder=folder, tokenizers=tokenizers), told


def flat(output: dict[str, Tensor]) -> Tensor:
    """All logits in a row."""
    return torch.cat([logits.flatten() for logits in output.values()])


@proof("save and load", "a saved model is loaded with the same weights and logits, bit for bit", is_labelled)
def save_and_load(subject: Subject) -> Outcome:
    assert isinstance(subject, Labelled)
    batch = {name: tensor.to(subject.model.device) for name, tensor in subject.batch.items()}

    @torch.no_grad()
    def run(model: PreTrainedModel) -> Tensor:
        return flat(subject.objective(model).output(batch))

    return saved_and_loaded(subject.model, run)


@torch.no_grad()
def said(subject: Labelled, batch: Batch) -> list[Tensor]:
    """All logits of each example, without those of padding."""
    output = subject.objective(subject.exact).output(batch)
    real = batch["attention_mask"].bool()
    rows = range(len(real))
    if subject.of_tokens:
        return [flat({name: logits[row][real[row]] for name, logits in output.items()}) for row in rows]
    return [flat({name: logits[row] for name, logits in output.items()}) for row in rows]


def inputs_of(batch: Batch) -> Batch:
    """What the model reads, (examples, tokens) each."""
    return {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask") if name in batch}


@proof("padding", "a padded batch gives each example the logits it has alone", is_labelled)
def padding(subject: Subject) -> Outcome:
    assert isinstance(subject, Labelled)
    tokenizer, inputs = subject.tokenizers.source, inputs_of(subject.batch)
    limit, length = position_limit(subject.model.config), inputs["input_ids"].shape[1]
    more = EXTRA_PADDING if limit is None else min(EXTRA_PADDING, limit - length)
    fillers = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    wide = {name: nn.functional.pad(ids, (0, more), value=fillers.get(name, 0)) for name, ids in inputs.items()}
    differences = []
    for row, found in enumerate(said(subject, wide)):
        real = inputs["attention_mask"][row].bool()
        (alone,) = said(subject, {name: ids[row : row + 1, real] for name, ids in inputs.items()})
        differences.append(difference(found, alone))
    return equal_within(largest(differences), TOLERANCE, "logits")


@proof("loss", "the training loss is the one computed by hand", is_labelled)
def loss(subject: Subject) -> Outcome:
    assert isinstance(subject, Labelled)
    objective, batch = subject.objective(subject.exact), subject.batch
    with torch.no_grad():
        found = float(objective(batch, objective.counts(batch)))
        output = objective.output(batch)
    smoothing = subject.task.recipe.train.label_smoothing_factor
    if isinstance(subject.task, Classification):
        by_hand = classification_loss(subject.task, output["logits"].tolist(), batch["labels"].tolist(), smoothing)
    elif isinstance(subject.task, Tagging):
        summed = cross_entropy_by_hand(output["logits"], batch["labels"], smoothing)
        by_hand = summed / int((batch["labels"] != IGNORE_INDEX).sum())
    else:
        by_hand = answer_loss(output, batch, smoothing)
    return equal_within(abs(found - by_hand) / max(abs(by_hand), 1e-12), LOSS_TOLERANCE, "losses")


def classification_loss(task: Classification, logits: list[list[float]], labels: list[Any], smoothing: float) -> float:
    """The loss of one label, of several or of a number, in plain arithmetic."""
    kind, total, count = task.recipe.data.problem_type, 0.0, 0.0
    weights = None if task.class_weights is None else task.class_weights.tolist()
    for scores, label in zip(logits, labels, strict=True):
        if kind == "regression":
            total, count = total + (scores[0] - label) ** 2, count + 1
        elif kind == MULTI:
            for score, there in zip(scores, label, strict=True):
                sign = 1 if there else -1
                total, count = total + math.log1p(math.exp(-sign * score)), count + 1
        else:
            each = weights or [1.0] * len(scores)
            log_sum = math.log(math.fsum(map(math.exp, scores)))
            losses = [weight * (log_sum - score) for weight, score in zip(each, scores, strict=True)]
            total += (1 - smoothing) * losses[label] + smoothing * math.fsum(losses) / len(losses)
            count += each[label]
    return total / count


def answer_loss(output: dict[str, Tensor], batch: Batch, smoothing: float) -> float:
    """The mean loss of where answers start and end, among the tokens that are no padding."""
    total = 0.0
    for side in ("start", "end"):
        for row, mask in enumerate(batch["attention_mask"].bool()):
            logits = output[f"{side}_logits"][row][mask]
            place = batch[f"{side}_positions"][row]
            total += cross_entropy_by_hand(logits[None, None], place[None, None], smoothing)
    return total / (2 * len(batch["attention_mask"]))


@proof("accumulation", "a step in four micro-batches has the gradient of a step in one", is_labelled)
def accumulation(subject: Subject) -> Outcome:
    assert isinstance(subject, Labelled)
    rows = torch.arange(len(subject.batch["input_ids"])).tensor_split(MICRO_BATCHES)
    parts = [{name: tensor[part] for name, tensor in subject.batch.items()} for part in rows]
    objective = subject.objective(subject.exact)
    return equal_within(accumulated(objective, subject.batch, parts), LOSS_TOLERANCE, "gradients")


@proof("gradients", "the loss reaches every parameter that can learn", is_labelled)
def every_gradient(subject: Subject) -> Outcome:
    assert isinstance(subject, Labelled)
    gradients = step_gradients(subject.objective(subject.exact), [subject.batch])
    return reached(gradients, [*NEVER_MOVED, *(SAME_FOR_ALL if isinstance(subject.task, QuestionAnswering) else ())])


@proof("pipeline", "the pipeline on the saved folder says about each row what evaluation says", is_labelled)
def pipeline_says_the_same(subject: Subject) -> Outcome:
    assert isinstance(subject, Labelled)
    task, model = subject.task, subject.model.eval()
    expected = task.predict(subject.objective(model), subject.rows, subject.tokenizers).rows
    name, arguments, say = IN_PIPELINES[type(task)]
    with tempfile.TemporaryDirectory() as made, without_progress_bars():
        if subject.folder is None:
            task.export(Path(made) / "model", model, subject.tokenizers)
        use = pipeline(name, str(subject.folder or Path(made) / "model"), device=model.device, **arguments)
        found = [say(task, use, row) for row in subject.rows.to_list()]
    different = sum(not same(one, other) for one, other in zip(found, expected, strict=True))
    return Outcome(different == 0, f"{different} of {len(expected)} rows differ")


def classified(task: Any, use: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
    """What the pipeline says about a text or a pair, as `predict` puts it."""
    scores = {one["label"]: one["score"] for one in use({name: row[name] for name in task.columns})}
    best = max(scores, key=lambda label: scores[label])
    if task.recipe.data.problem_type == "regression":
        return {"prediction": scores[best]}
    if task.recipe.data.problem_type == MULTI:
        likely = [label for label in task.labels if scores[label] > LIKELY]
        return {"prediction": likely, "score": [scores[label] for label in likely]}
    return {"prediction": best, "score": scores[best]}


def tagged(task: Any, use: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
    """The tag of each word, that of its first token."""
    words, tags = row["tokens"], dict[int, str]()
    (found,) = use(words, is_split_into_words=True) if words else ([],)
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
    for one in found:
        tags.setdefault(int(np.searchsorted(starts, one["start"], side="right")) - 1, one["entity"])
    return {"prediction": [tags.get(place, task.no_tag) for place in range(len(words))]}


def answered(task: Any, use: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
    """The answer to a question and where it stands."""
    found = dict(use(question=row["question"], context=row["context"]))
    return {"prediction": found.pop("answer"), **found}


IN_PIPELINES: dict[type, tuple[str, dict[str, Any], Callable[[Any, Pipeline, dict[str, Any]], dict[str, Any]]]] = {
    Classification: ("text-classification", {"top_k": None, "truncation": True}, classified),
    Tagging: ("token-classification", {"ignore_labels": []}, tagged),
    QuestionAnswering: ("question-answering", {}, answered),
}
"""For each task the name of its pipeline, what that is told so that it tells all, and how to read what it says."""


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
