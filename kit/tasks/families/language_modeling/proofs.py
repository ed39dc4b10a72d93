"""Proofs about language models: outputs do not depend on padding, cache and batches, and the loss is correct."""

import copy
import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kit.data.batching.ragged import IGNORE_INDEX
from kit.pretrained.positions import position_limit
from kit.training.lm_objectives import CausalLMObjective, MaskedLMObjective
from kit.training.objective import Batch, Objective
from kit.verify.forward import TOLERANCE, compare_after_reload, relative_difference
from kit.verify.learning import OVERFIT_LOSS, check_accumulation, cross_entropy_by_hand, overfit, relative_error
from kit.verify.learning import TOLERANCE as LOSS_TOLERANCE
from kit.verify.proof import Outcome, Proof, equal_within, max_or_nan, proof
from kit.verify.subject import MAX_EXAMPLES, MAX_LENGTH, Subject

EXTRA_PADDING = 3  # positions added to the longest row, so that every row has some
GENERATED_TOKENS = 6
"""Tokens that are generated for each prompt."""


def is_masked(subject: Subject) -> bool:
    """Whether a model predicts masked tokens."""
    return not subject.model.config.is_encoder_decoder and not subject.model.can_generate()


def is_causal(subject: Subject) -> bool:
    """Whether a model predicts the next token."""
    return not subject.model.config.is_encoder_decoder and subject.model.can_generate()


def objective_of(model: PreTrainedModel) -> Objective:
    """The training objective of a causal or masked language model."""
    return CausalLMObjective(model) if model.can_generate() else MaskedLMObjective(model)


def causal_batch(rows: list[np.ndarray], pad: int, limit: int | None) -> Batch:
    """Right-padded prefixes of texts, in many lengths. The label of each token is the next token.

    A few of `limit` positions remain free for generation.
    """
    longest = MAX_LENGTH if limit is None else max(4, min(MAX_LENGTH, limit - GENERATED_TOKENS))
    rows = [row[: max(3, min(longest, len(row)) - 2 * number)] for number, row in enumerate(rows[:MAX_EXAMPLES])]
    longest = max(map(len, rows)) - 1
    batch = {
        "input_ids": torch.full((len(rows), longest), pad),
        "attention_mask": torch.zeros(len(rows), longest, dtype=torch.long),
        "labels": torch.full((len(rows), longest), IGNORE_INDEX),
    }
    for number, row in enumerate(rows):
        tokens = torch.from_numpy(row.astype(np.int64))
        batch["input_ids"][number, : len(row) - 1] = tokens[:-1]
        batch["attention_mask"][number, : len(row) - 1] = 1
        batch["labels"][number, : len(row) - 1] = tokens[1:]
    return batch


@torch.no_grad()
def logits_of(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The logits of all tokens of a batch, (batch, length, vocabulary)."""
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "next_sentence_label")}
    outputs = model(**inputs)
    return outputs.prediction_logits if "prediction_logits" in outputs else outputs.logits


def logits_alone(subject: Subject) -> Tensor:
    """The logits of each text computed alone, without padding. Rows are then padded with zeros to equal lengths."""
    length, rows = subject.batch["input_ids"].shape[1], []
    for row, real in enumerate(subject.batch["attention_mask"].sum(1).tolist()):
        single = {
            name: tensor[row : row + 1, :real] if tensor.dim() > 1 else tensor[row : row + 1]
            for name, tensor in subject.batch.items()
            if name != "attention_mask"
        }
        rows.append(nn.functional.pad(logits_of(subject.exact, single)[0], (0, 0, 0, length - real)))
    return torch.stack(rows)


@proof("save and load", "a saved model is loaded with the same weights and logits, bit for bit")
def save_and_load(subject: Subject) -> Outcome:
    batch = {name: tensor.to(subject.model.device) for name, tensor in subject.batch.items()}
    return compare_after_reload(subject.model, lambda model: logits_of(model, batch))


@proof("padding", "a padded batch gives each text the logits it has alone")
def right_padding(subject: Subject) -> Outcome:
    limit, length = position_limit(subject.model.config), subject.batch["input_ids"].shape[1]
    padding = EXTRA_PADDING if limit is None else min(EXTRA_PADDING, limit - length)
    wide = {
        name: nn.functional.pad(tensor, (0, padding)) if tensor.dim() > 1 else tensor
        for name, tensor in subject.batch.items()
    }
    real = subject.batch["attention_mask"].bool()
    padded = logits_of(subject.exact, wide)[:, : real.shape[1]]
    return equal_within(relative_difference(padded, logits_alone(subject), real), TOLERANCE, "logits")


def left_padded(batch: Batch) -> tuple[Tensor, Tensor]:
    """Move the padding of a batch to the left; returns tokens and mask."""
    ids, mask = torch.zeros_like(batch["input_ids"]), torch.zeros_like(batch["attention_mask"])
    for row, real in enumerate(batch["attention_mask"].sum(1).tolist()):
        ids[row, ids.shape[1] - real :] = batch["input_ids"][row, :real]
        mask[row, ids.shape[1] - real :] = 1
    return ids, mask


@proof("left padding", "padding on the left, as `generate` needs it, changes no logits", is_causal)
def left_padding(subject: Subject) -> Outcome:
    model, (ids, mask) = subject.exact, left_padded(subject.batch)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "position_ids" in inspect.signature(model.forward).parameters:  # what `generate` computes
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    padded, alone = logits_of(model, inputs), logits_alone(subject)
    differences = []
    for row, real in enumerate(mask.sum(1).tolist()):
        differences.append(relative_difference(padded[row, ids.shape[1] - real :], alone[row, :real]))
    return equal_within(max_or_nan(differences), TOLERANCE, "logits")


@proof("cache", "token by token with the cache gives the logits of the whole text", is_causal)
def cached_logits(subject: Subject) -> Outcome:
    model, row = subject.exact, int(subject.batch["attention_mask"].sum(1).argmax())
    ids = subject.batch["input_ids"][row : row + 1]
    steps, cache = [], None
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        for position in range(ids.shape[1]):
            output = model(input_ids=ids[:, position : position + 1], past_key_values=cache, use_cache=True)
            steps.append(output.logits)
            cache = output.past_key_values
    return equal_within(relative_difference(torch.cat(steps, dim=1), whole), TOLERANCE, "logits")


@proof("batched generation", "a batch of prompts of many lengths is completed like each prompt alone", is_causal)
def batched_generation(subject: Subject) -> Outcome:
    model, (ids, mask) = subject.exact, left_padded(subject.batch)
    settings: dict[str, Any] = {
        "max_new_tokens": GENERATED_TOKENS,
        "min_new_tokens": GENERATED_TOKENS,
        "do_sample": False,
    }
    settings["pad_token_id"] = model.generation_config.pad_token_id or 0
    with torch.no_grad():
        together = model.generate(input_ids=ids, attention_mask=mask, **settings)[:, ids.shape[1] :]
        different = 0
        for row, real in enumerate(mask.sum(1).tolist()):
            prompt = ids[row : row + 1, ids.shape[1] - real :]
            alone = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), **settings)[:, real:]
            different += not torch.equal(alone[0], together[row])
    return Outcome(different == 0, f"{different} of {len(ids)} completions differ")


@proof("output layer", "computed at masked positions only, it gives the logits of the whole model there", is_masked)
def sparse_output_layer(subject: Subject) -> Outcome:
    model, labels = subject.exact, subject.batch["labels"]
    with torch.no_grad():
        sparse, _ = MaskedLMObjective(model).logits(subject.batch)
    return equal_within(
        relative_difference(sparse, logits_of(model, subject.batch)[labels != IGNORE_INDEX]), TOLERANCE, "logits"
    )


@proof("loss", "the training loss is the cross-entropy computed by hand")
def objective_loss(subject: Subject) -> Outcome:
    batch, objective = subject.batch, objective_of(subject.exact)
    by_hand = cross_entropy_by_hand(logits_of(subject.exact, batch), batch["labels"], 0.0)
    with torch.no_grad():
        if isinstance(objective, MaskedLMObjective):
            loss = objective.summed_losses(batch)[0]
        else:
            assert isinstance(objective, CausalLMObjective)
            loss = objective.summed_loss(batch)
    return equal_within(relative_error(loss, by_hand), LOSS_TOLERANCE, "losses")


@proof("accumulation", "a step in four micro-batches has the gradient of a step in one")
def accumulation(subject: Subject) -> Outcome:
    return check_accumulation(objective_of(subject.exact), subject.batch)


@proof("overfitting", "a copy of the model can memorize one batch")
def overfitting(subject: Subject) -> Outcome:
    model = copy.deepcopy(subject.exact).float().eval()  # without dropout
    return overfit(objective_of(model), subject.batch, 3e-3, OVERFIT_LOSS)


PROOFS: tuple[Proof, ...] = (
    save_and_load,
    right_padding,
    left_padding,
    cached_logits,
    batched_generation,
    sparse_output_layer,
    objective_loss,
    accumulation,
    overfitting,
)
