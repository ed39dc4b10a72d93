"""Train a tiny model on every device of this machine: does it learn, does it save, do devices and processes agree?"""

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from kit.data.batching.plan import micro_batch_rng, seed_micro_batch
from kit.data.text.tokenizer import load_pretrained_tokenizers
from kit.diagnostics.doctor import INVESTIGATE, Finding
from kit.diagnostics.train_check import RECIPE, SELF_CHECK_PROCESSES, self_check_processes
from kit.errors import first_line
from kit.pretrained.loading import quiet_transformers
from kit.recipe.catalog import shipped_recipes
from kit.runs.prepare import Prepared, prepare
from kit.system.outputs import scratch_folder
from kit.tasks.registry import load_recipe
from kit.training.objective import Batch, Objective
from kit.training.optim import build_optimizer
from kit.training.processes import add_columns

MIN_STEPS, MAX_STEPS = 20, 40  # see LEARNED for the loss after each
MAX_SECONDS = 15.0
"""Time for the steps beyond the first 20."""

LEARNED = 0.7
"""What the loss must fall to, as a share of the first one: in 20 steps it falls to 0.6, in 40 to 0.4. A model that
learns only how frequent each token is stays at 0.75."""

SAME_ON_GPU = 1e-3
"""Largest difference of a logit between a device and the CPU: float32 sums in another order, with room for TF32."""

OVERRIDES = [
    "model={type: rnn_seq2seq, cell: gru, hidden_size: 32, embedding_size: 16, attention: additive,"
    " attention_query: current, context_to: [readout], dropout: 0.1}",
    "tokenizer={train: char, min_frequency: 1, shared: false}",
    "data={path: 'builtin:dates', languages: [en], sizes: {train: 512, validation: 8, test: 8}}",
    f"train={{max_steps: {MAX_STEPS}, batch_size: 32, micro_batches: 2, learning_rate: 1e-2}}",
]


def self_check_findings() -> Iterator[Finding]:
    """Run every check. A check that raises an error is a problem, and the next one runs."""
    try:
        prepared = prepare(load_recipe(shipped_recipes()[RECIPE], OVERRIDES))
    except Exception as error:
        yield failed("self-check", error)
        return
    checks: dict[str, Callable[[], Finding]] = {
        **{f"learning on {device}": partial(learning, prepared, device) for device in devices()},
        "save and load": partial(round_trip, prepared),
        **{f"cpu and {device}": partial(agreement, prepared, device) for device in devices()[1:]},
        f"{SELF_CHECK_PROCESSES} processes": self_check_processes,
    }
    for topic, check in checks.items():
        try:
            yield check()
        except Exception as error:
            yield failed(topic, error)


def failed(topic: str, error: Exception) -> Finding:
    """The finding for a check that raised an error."""
    return Finding(topic, "problem", f"failed with {type(error).__name__}: {first_line(error)}", INVESTIGATE)


def devices() -> list[torch.device]:
    """The CPU, followed by the GPUs."""
    cpu = torch.device("cpu")
    if torch.cuda.is_available():
        return [cpu, *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]
    return [cpu, torch.device("mps")] if torch.backends.mps.is_available() else [cpu]


def training_batch(prepared: Prepared, indices: np.ndarray, device: torch.device | str = "cpu") -> Batch:
    """A training batch of these examples, on a device."""
    batch = prepared.make_batch(indices, micro_batch_rng(0, 0, 0))
    return {name: tensor.to(device) for name, tensor in batch.items()}


def learning(prepared: Prepared, device: torch.device) -> Finding:
    """Whether the loss falls as far as it should."""
    objective = prepared.task.objective(copy.deepcopy(prepared.model).to(device), prepared.state).train()
    optimizer = build_optimizer(objective, prepared.recipe.train)
    losses, start = [], time.perf_counter()
    for step in range(MAX_STEPS):
        if step >= MIN_STEPS and time.perf_counter() - start > MAX_SECONDS:
            break
        batches = [training_batch(prepared, indices, device) for indices in prepared.plan.step(step)]
        losses.append(float(backward(objective, batches, step)))
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - start
    first, last = losses[0], sum(losses[-5:]) / 5  # the loss of a single batch of 32 varies too much
    text = f"the loss of a tiny model went from {first:.2f} to {last:.2f} in {len(losses)} steps, {seconds:.1f} s"
    if last <= LEARNED * first:  # false for NaN
        return Finding(f"learning on {device}", "ok", text)
    return Finding(f"learning on {device}", "problem", f"{text}: it should have fallen further", INVESTIGATE)


def backward(objective: Objective, batches: list[Batch], step: int) -> Tensor:
    """Accumulate the gradients of a step's micro-batches, as the training loop does, and return its loss."""
    totals = add_columns(objective.normalizers(batch) for batch in batches)
    losses = []
    for number, batch in enumerate(batches):
        seed_micro_batch(0, step, number)
        loss = objective(batch, totals)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


@torch.inference_mode()
def logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The logits of a batch, on the CPU."""
    model.eval()
    return model(**{name: tensor.to(model.device) for name, tensor in batch.items()}).logits.cpu()


def round_trip(prepared: Prepared) -> Finding:
    """Whether a model and its tokenizer compute exactly the same after they are saved and loaded."""
    batch = training_batch(prepared, prepared.plan.step(0)[0])
    model, texts = copy.deepcopy(prepared.model), prepared.splits.datasets["validation"]["source"]
    with scratch_folder("kit-check-") as temporary:
        folder = temporary / "model"
        prepared.task.export(folder, model, prepared.state)
        with quiet_transformers():
            loaded = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False)
        tokenizers = load_pretrained_tokenizers(str(folder))
    changed = []
    if not torch.equal(logits(model, batch), logits(loaded, batch)):
        changed.append("model")
    if tokenizers.encode_source(texts) != prepared.tokenizers.encode_source(texts):
        changed.append("tokenizer")
    if changed:
        text = f"the loaded {' and '.join(changed)} is not the saved one"
        return Finding("save and load", "problem", text, INVESTIGATE)
    return Finding("save and load", "ok", "the loaded model computes exactly what the saved one does")


def agreement(prepared: Prepared, device: torch.device) -> Finding:
    """Whether a device computes the same as the CPU, up to rounding."""
    batch = training_batch(prepared, prepared.plan.step(0)[0])
    on_device = logits(copy.deepcopy(prepared.model).to(device), batch)
    difference = float((on_device - logits(copy.deepcopy(prepared.model), batch)).abs().max())
    text = f"logits differ by {difference:.1e}"
    if difference <= SAME_ON_GPU:
        return Finding(f"cpu and {device}", "ok", text)
    return Finding(f"cpu and {device}", "problem", f"{text}, more than rounding can explain", INVESTIGATE)
