"""Proofs about forecasters: forecasts do not depend on padding, batches and units, and the loss is correct."""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from kit.tasks.forecasting.objective import ForecastObjective, past_inputs
from kit.training.objective import Batch
from kit.verify.forward import compare_after_reload
from kit.verify.learning import check_accumulation, check_gradients, relative_error, step_gradients
from kit.verify.proof import Outcome, Proof, equal_within, max_or_nan, proof
from kit.verify.subject import Subject

TOLERANCE = 1e-9
"""Largest relative difference in float64."""
EXTRA_PADDING = 3  # positions added to the longest row, so that every row has some


def predicted(model: Any, batch: Batch) -> Tensor:
    """The forecasts of a batch, (batch, horizon, value_size)."""
    return model.predict(**past_inputs(batch), horizon=batch["future_values"].shape[1]).predictions


def relative(actual: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest expected value."""
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


@proof("save and load", "a saved model is loaded with the same weights, normalization and forecasts")
def save_and_load(subject: Subject) -> Outcome:
    return compare_after_reload(subject.model, lambda model: predicted(model, subject.batch), "forecasts")


@proof("padding", "masked steps, at either end, change no forecast and no loss")
def padding(subject: Subject) -> Outcome:
    model, batch = subject.exact, subject.batch
    expected, loss = predicted(model, batch), float(_loss(model, batch))
    differences = []
    for left in (True, False):
        wide = {}
        for name, part in batch.items():
            junk = torch.zeros if name.endswith("mask") else torch.randn
            more = junk(len(part), EXTRA_PADDING, *part.shape[2:]).to(part.dtype)
            before = left and name.startswith("past")
            wide[name] = torch.cat([more, part] if before else [part, more], dim=1)
        actual = predicted(model, {**batch, **{name: wide[name] for name in wide if name.startswith("past")}})
        differences += [relative(actual, expected), relative_error(_loss(model, wide), loss)]
    return equal_within(max_or_nan(differences), TOLERANCE, "forecasts and losses")


@torch.no_grad()
def _loss(model: Any, batch: Batch) -> Tensor:
    """The training loss of a batch."""
    return model(**batch).loss


@proof("batches", "a batch gives each window the forecast it has alone")
def batches(subject: Subject) -> Outcome:
    together = predicted(subject.exact, subject.batch)
    rows = range(len(together))
    alone = torch.cat(
        [predicted(subject.exact, {name: part[i : i + 1] for name, part in subject.batch.items()}) for i in rows]
    )
    return equal_within(relative(together, alone), TOLERANCE, "forecasts")


@proof("rollout", "a forecast equals teacher forcing on the forecast itself")
def rollout(subject: Subject) -> Outcome:
    expected = predicted(subject.exact, subject.batch)
    forced = {
        **subject.batch,
        "future_values": expected,
        "future_mask": torch.ones(expected.shape[:2], dtype=torch.bool),
    }
    with torch.no_grad():
        actual = subject.exact(**forced).predictions
    return equal_within(relative(actual, expected), TOLERANCE, "forecasts")


@proof("units", "values in other units, with their own normalization, give the same forecast in those units")
def units(subject: Subject) -> Outcome:
    model: Any = copy.deepcopy(subject.exact)
    batch = subject.batch
    expected = predicted(model, batch)
    scale, shift = 7.0, -3.0
    model.normalization.mean.mul_(scale).add_(shift)
    model.normalization.scale.mul_(scale)
    actual = predicted(model, {**batch, "past_values": batch["past_values"] * scale + shift})
    return equal_within(relative((actual - shift) / scale, expected), TOLERANCE, "forecasts")


@proof("loss", "the training loss is the error, or the likelihood, computed by hand")
def loss_by_hand(subject: Subject) -> Outcome:
    model: Any = subject.exact
    batch = subject.batch
    with torch.no_grad():
        output = model(**batch)
        objective = ForecastObjective(model)
        actual = float(objective(batch, objective.normalizers(batch)))
    total, count = 0.0, 0
    spread = model.normalization.scale.tolist()
    for row, step in batch["future_mask"].nonzero().tolist():
        for index, unit in enumerate(spread):
            error = float(batch["future_values"][row, step, index] - output.predictions[row, step, index]) / unit
            if output.scales is None:
                total += error**2
            else:
                width = float(output.scales[row, step, index]) / unit
                total += 0.5 * (error / width) ** 2 + math.log(width * math.sqrt(2 * math.pi))
            count += 1
    by_hand = total / count
    return equal_within(relative_error(actual, by_hand), TOLERANCE, "losses")


@proof("accumulation", "a step in four micro-batches has the gradient of a step in one")
def accumulation(subject: Subject) -> Outcome:
    return check_accumulation(ForecastObjective(subject.exact), subject.batch)


@proof("gradients", "the loss reaches every parameter")
def every_gradient(subject: Subject) -> Outcome:
    return check_gradients(step_gradients(ForecastObjective(subject.exact), [subject.batch]))


PROOFS: tuple[Proof, ...] = (
    save_and_load,
    padding,
    batches,
    rollout,
    units,
    loss_by_hand,
    accumulation,
    every_gradient,
)
