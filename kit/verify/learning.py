"""Proofs about training: the loss is correct, its gradient reaches every parameter, and a tiny model can overfit."""

import math
import re
from collections.abc import Iterable

import torch
from torch import Tensor

from kit.data.batching.ragged import IGNORE_INDEX
from kit.training.objective import Batch, Objective, Seq2SeqObjective
from kit.training.processes import add_columns
from kit.verify.proof import Outcome, equal_within, max_or_nan, proof
from kit.verify.subject import Subject, is_kit_model, is_seq2seq, logits_of, random_batch, trimmed

TOLERANCE = 1e-9
"""Relative, in float64: covers only a different order of summation."""

MICRO_BATCHES = 4
SMOOTHING = 0.1  # label smoothing, so that its share of the loss is compared too

ZERO_GRADIENT_PATTERNS = {
    r"\b(k_proj|k_lin|key|k)\.bias$": "a key bias shifts all scores of a query alike, which the softmax cancels",
    r"\blora_A\b": "the other factor of a new adapter, lora_B, is zero",
    r"\b(mask_emb|r_s_bias|seg_embed)$": "XLNet uses it only in pretraining, or with segment ids",
}
"""Name patterns of parameters whose gradient is always zero, each with the reason."""

OVERFIT_STEPS = 300
OVERFIT_LOSS = 0.05
"""A model that learns reaches this loss (nats per token) on one batch within these steps; see `overfit`."""


def step_gradients(objective: Objective, parts: list[Batch]) -> dict[str, Tensor]:
    """The gradients of one step, accumulated over these micro-batches, by parameter name."""
    objective.zero_grad()
    totals = add_columns(objective.normalizers(part) for part in parts)
    for part in parts:
        objective(part, totals).backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in objective.model.named_parameters()
        if parameter.requires_grad
    }


def accumulation_error(objective: Objective, batch: Batch, parts: list[Batch]) -> float:
    """The largest difference between the gradient of a step in these parts and that of the step in one.

    Differences are relative to the largest entry of each parameter's gradient.
    """
    whole, split = step_gradients(objective, [batch]), step_gradients(objective, parts)
    largest = max_or_nan(float(gradient.abs().max()) for gradient in whole.values())
    differences = []
    for name, gradient in whole.items():
        # the floor is for gradients that are all but zero, whose relative difference is that of rounding errors
        scale = max(float(gradient.abs().max()), 1e-6 * largest)
        differences.append(float((split[name] - gradient).abs().max()) / scale)
    return max_or_nan(differences)


def check_accumulation(objective: Objective, batch: Batch) -> Outcome:
    """Passes if a step in four micro-batches has the gradient of a step in one."""
    rows = torch.arange(len(batch[next(iter(batch))])).tensor_split(MICRO_BATCHES)
    parts = [{name: tensor[part] for name, tensor in batch.items()} for part in rows]
    return equal_within(accumulation_error(objective, batch, parts), TOLERANCE, "gradients")


@proof("accumulation", "a step in four micro-batches has the gradient of a step in one", is_seq2seq)
def accumulation(subject: Subject) -> Outcome:
    batch = subject.batch
    rows = torch.arange(len(batch["labels"])).tensor_split(MICRO_BATCHES)
    parts = [trimmed(batch, slice(int(part[0]), int(part[-1]) + 1)) for part in rows]
    differences = []
    for normalize_by in ("tokens", "sequences"):
        objective = Seq2SeqObjective(subject.exact, SMOOTHING, normalize_by)
        differences.append(accumulation_error(objective, batch, parts))
    return equal_within(max_or_nan(differences), TOLERANCE, "gradients")


def cross_entropy_by_hand(logits: Tensor, labels: Tensor, smoothing: float) -> float:
    """The smoothed cross-entropy summed over all labels, in plain Python arithmetic."""
    total = 0.0
    for row_logits, row_labels in zip(logits.tolist(), labels.tolist(), strict=True):
        for scores, label in zip(row_logits, row_labels, strict=True):
            if label == IGNORE_INDEX:
                continue
            highest = max(scores)
            log_sum = highest + math.log(math.fsum(math.exp(score - highest) for score in scores))
            uniform = log_sum - math.fsum(scores) / len(scores)
            total += (1 - smoothing) * (log_sum - scores[label]) + smoothing * uniform
    return total


def relative_error(loss: Tensor | float, expected: float) -> float:
    """The difference of two losses, relative to the expected one."""
    return abs(float(loss) - expected) / max(abs(expected), 1e-12)


@proof("loss", "the training loss is the cross-entropy computed by hand, smoothed or not", is_seq2seq)
def objective_loss(subject: Subject) -> Outcome:
    model, labels = subject.exact, subject.batch["labels"]
    logits = logits_of(model, subject.inputs())
    counts = {"tokens": int((labels != IGNORE_INDEX).sum()), "sequences": len(labels)}
    differences = []
    for smoothing in (0.0, SMOOTHING):
        by_hand = cross_entropy_by_hand(logits, labels, smoothing)
        for normalize_by, count in counts.items():
            objective = Seq2SeqObjective(model, smoothing, normalize_by)  # type: ignore[arg-type]
            with torch.no_grad():
                loss = objective(subject.batch, objective.normalizers(subject.batch))
            differences.append(relative_error(loss, by_hand / count))
    return equal_within(max_or_nan(differences), TOLERANCE, "losses")


@proof(
    "model(labels=…)", "the model's own loss is the mean over labels, or their sum / `num_items_in_batch`", is_kit_model
)
def model_loss(subject: Subject) -> Outcome:
    model, batch = subject.exact, subject.batch
    by_hand = cross_entropy_by_hand(logits_of(model, subject.inputs()), batch["labels"], 0.0)
    tokens = int((batch["labels"] != IGNORE_INDEX).sum())
    with torch.no_grad():
        mean = model(**batch).loss
        share = model(**batch, num_items_in_batch=torch.tensor(3 * tokens)).loss
    differences = [relative_error(mean, by_hand / tokens), relative_error(share, by_hand / (3 * tokens))]
    return equal_within(max_or_nan(differences), TOLERANCE, "losses")


@proof("gradients", "the loss reaches every parameter that can learn", is_seq2seq)
def every_gradient(subject: Subject) -> Outcome:
    return check_gradients(step_gradients(Seq2SeqObjective(subject.exact), [subject.batch]))


def check_gradients(
    gradients: dict[str, Tensor], zero_gradient_patterns: Iterable[str] = ZERO_GRADIENT_PATTERNS
) -> Outcome:
    """Passes if every parameter has a gradient, except those whose names match `zero_gradient_patterns`."""
    largest = max_or_nan(float(gradient.abs().max()) for gradient in gradients.values())
    # 1e-14: gradients of zero may be rounding errors of float64, whose precision is 2e-16; NaN counts as none
    still = [name for name, gradient in gradients.items() if not gradient.abs().max() > 1e-14 * largest]
    excused = [name for name in still if any(re.search(pattern, name) for pattern in zero_gradient_patterns)]
    missing = [name for name in still if name not in excused]
    figure = f"{len(gradients) - len(still)} of {len(gradients)} parameters have one"
    if excused:
        figure += f", {len(excused)} cannot"
    if missing:
        figure += f"; none: {', '.join(missing)}"
    return Outcome(not missing, figure)


def overfit(objective: Objective, batch: Batch, learning_rate: float, target: float) -> Outcome:
    """Train on one batch until the loss is below `target`, for at most `OVERFIT_STEPS` steps.

    Passes if the last loss is at most `OVERFIT_LOSS`.
    """
    optimizer = torch.optim.Adam(objective.parameters(), lr=learning_rate)
    counts = objective.normalizers(batch)
    loss = math.inf
    for _ in range(OVERFIT_STEPS):
        optimizer.zero_grad()
        share = objective(batch, counts)
        share.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        loss = float(share.detach())
        if loss < target:
            break
    return Outcome(loss <= OVERFIT_LOSS, f"loss {loss:.3f} after at most {OVERFIT_STEPS} steps", OVERFIT_LOSS)


@proof("overfitting", "a tiny copy with new weights overfits one batch", is_kit_model)
def overfitting(subject: Subject) -> Outcome:
    model = subject.tiny_copy(vocabulary=16, width=32)
    batch = random_batch(model, subject.seed)
    return overfit(Seq2SeqObjective(model.float().train()), batch, 0.01, OVERFIT_LOSS / 2)
