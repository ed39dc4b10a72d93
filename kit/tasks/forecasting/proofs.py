"""Proofs about forecasters: padding, batches and units change nothing, and the loss is the one it should be."""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from kit.tasks.forecasting.objective import ForecastObjective
from kit.training.objective import Batch
from kit.verify.forward import compare_after_reload
from kit.verify.learning import check_accumulation, check_gradients, relative_error, step_gradients
from kit.verify.proof import Outcome, Proof, equal_within, max_or_nan, proof
from kit.verify.subject import Subject

TOLERANCE = 1e-9
"""Relative, in float64."""
EXTRA_PADDING = 3
FUTURE = ("future_values", "future_mask")


def is_forecaster(subject: Subject) -> bool:
    return subject.model.config.model_type == "rnn_forecaster"


def inputs_of(batch: Batch) -> Batch:
    """What `predict` takes."""
    return {name: part for name, part in batch.items() if name not in FUTURE}


def predicted(model: Any, batch: Batch) -> Tensor:
    """(batch, horizon, value_size)"""
    return model.predict(**inputs_of(batch), horizon=batch["future_values"].shape[1]).predictions


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


@proof("save and load", "a saved model is loaded with the same weights, normalization and forecasts", is_forecaster)
def save_and_load(subject: Subject) -> Outcome:
    return compare_after_reload(subject.model, lambda model: predicted(model, subject.batch), "forecasts")


@proof("padding", "steps that a mask leaves out, before or behind, change no forecast and no loss", is_forecaster)
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
        found = predicted(model, {**batch, **{name: wide[name] for name in wide if name.startswith("past")}})
        differences += [relative(found, expected), relative_error(_loss(model, wide), loss)]
    return equal_within(max_or_nan(differences), TOLERANCE, "forecasts and losses")


@torch.no_grad()
def _loss(model: Any, batch: Batch) -> Tensor:
    return model(**batch).loss


@proof("batches", "a batch gives each window the forecast it has alone", is_forecaster)
def batches(subject: Subject) -> Outcome:
    together = predicted(subject.exact, subject.batch)
    rows = range(len(together))
    alone = torch.cat(
        [predicted(subject.exact, {name: part[i : i + 1] for name, part in subject.batch.items()}) for i in rows]
    )
    return equal_within(relative(together, alone), TOLERANCE, "forecasts")


@proof("rollout", "a forecast is what teacher forcing gives that reads the forecast itself", is_forecaster)
def rollout(subject: Subject) -> Outcome:
    expected = predicted(subject.exact, subject.batch)
    forced = {
        **subject.batch,
        "future_values": expected,
        "future_mask": torch.ones(expected.shape[:2], dtype=torch.bool),
    }
    with torch.no_grad():
        found = subject.exact(**forced).predictions
    return equal_within(relative(found, expected), TOLERANCE, "forecasts")


@proof(
    "units", "values in other units, with their own normalization, give the same forecast in those units", is_forecaster
)
def units(subject: Subject) -> Outcome:
    model: Any = copy.deepcopy(subject.exact)
    batch = subject.batch
    expected = predicted(model, batch)
    scale, shift = 7.0, -3.0
    model.normalization.mean.mul_(scale).add_(shift)
    model.normalization.scale.mul_(scale)
    found = predicted(model, {**batch, "past_values": batch["past_values"] * scale + shift})
    return equal_within(relative((found - shift) / scale, expected), TOLERANCE, "forecasts")


@proof("loss", "the training loss is the error, or the likelihood, computed by hand", is_forecaster)
def loss_by_hand(subject: Subject) -> Outcome:
    model: Any = subject.exact
    batch = subject.batch
    with torch.no_grad():
        output = model(**batch)
        objective = ForecastObjective(model)
        found = float(objective(batch, objective.normalizers(batch)))
    total, count = 0.0, 0
    spread = model.normalization.scale.tolist()
    for row, step in batch["future_mask"].nonzero().tolist():
        for place, unit in enumerate(spread):
            error = float(batch["future_values"][row, step, place] - output.predictions[row, step, place]) / unit
            if output.scales is None:
                total += error**2
            else:
                width = float(output.scales[row, step, place]) / unit
                total += 0.5 * (error / width) ** 2 + math.log(width * math.sqrt(2 * math.pi))
            count += 1
    by_hand = total / count
    return equal_within(relative_error(found, by_hand), TOLERANCE, "losses")


@proof("accumulation", "a step in four micro-batches has the gradient of a step in one", is_forecaster)
def accumulation(subject: Subject) -> Outcome:
    return check_accumulation(ForecastObjective(subject.exact), subject.batch)


@proof("gradients", "the loss reaches every parameter", is_forecaster)
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
