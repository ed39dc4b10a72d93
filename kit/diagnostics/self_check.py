"""A tiny training on each device of this machine: does it learn, does it save, do devices and processes agree?

As a program, `python -m kit.diagnostics.self_check FOLDER` is one of the processes that share a step.
"""

import copy
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.utils import logging

from kit.data.batching.plan import micro_batch_rng, seed_micro_batch
from kit.diagnostics.doctor import Finding
from kit.models import register_models
from kit.training.objective import Batch, Objective, Seq2SeqObjective

if TYPE_CHECKING:
    from kit.runs.prepare import Prepared

FEWEST_STEPS, MOST_STEPS = 20, 40
SECONDS_OF_LEARNING = 15.0
LEARNED = 0.7
"""What the loss must fall to, as a share of the first one: in 20 steps it falls to 0.6, in 40 to 0.4, whereas a model
that learned nothing but how frequent each token is would stay at 0.75."""

SAME_ON_GPU = 1e-3
SAME_IN_FLOAT64 = 1e-9
PROCESSES = 2
PATIENCE = 40.0
"""Seconds that the processes are waited for."""

GIVE_UP = "look for the cause before you trust a run on this machine"

RECIPE: dict[str, Any] = {
    "task": "translation",
    "model": {
        "type": "rnn_seq2seq", "cell": "gru", "hidden_size": 32, "embedding_size": 16, "attention": "additive",
        "attention_query": "current", "context_to": ["readout"], "dropout": 0.1,
    },
    "tokenizer": {"train": "char", "min_frequency": 1, "shared": False},
    "data": {
        "path": "builtin:dates", "languages": ["en"], "sizes": {"train": 512, "validation": 8, "test": 8},
    },
    "train": {"max_steps": MOST_STEPS, "batch_size": 32, "micro_batches": PROCESSES, "learning_rate": 1e-2},
}  # fmt: skip


def self_check_findings() -> Iterator[Finding]:
    """Run every check; one that cannot even be run has found a problem."""
    from kit.runs.prepare import prepare
    from kit.tasks.translation.recipe import TranslationRecipe

    try:
        prepared = prepare(TranslationRecipe.model_validate(RECIPE))
    except Exception as error:
        yield failed("self-check", error)
        return
    checks: dict[str, Callable[[], Finding]] = {
        **{f"learning on {device}": partial(learning, prepared, device) for device in devices()},
        "save and load": partial(round_trip, prepared),
        **{f"cpu and {device}": partial(agreement, prepared, device) for device in devices()[1:]},
        f"{PROCESSES} processes": partial(shared_step, prepared),
    }
    for topic, check in checks.items():
        try:
            yield check()
        except Exception as error:
            yield failed(topic, error)


def failed(topic: str, error: Exception) -> Finding:
    reason = (str(error).strip() or "no message").splitlines()[0]
    return Finding(topic, "problem", f"failed with {type(error).__name__}: {reason}", GIVE_UP)


def devices() -> list[torch.device]:
    """The CPU first, then what else there is."""
    found = [torch.device("cpu")]
    if torch.cuda.is_available():
        found += [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    elif torch.backends.mps.is_available():
        found.append(torch.device("mps"))
    return found


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Bars for a single small file are noise."""
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


def batch_of(prepared: "Prepared", indices: Any, device: torch.device | str = "cpu") -> Batch:
    batch = prepared.batch_maker()(indices, micro_batch_rng(0, 0, 0))
    return {name: tensor.to(device) for name, tensor in batch.items()}


# ---- one device ------------------------------------------------------------------------------------------------------


def learning(prepared: "Prepared", device: torch.device) -> Finding:
    """The loss must fall."""
    from kit.training.optim import build_optimizer

    objective = prepared.task.objective(copy.deepcopy(prepared.model).to(device)).train()
    optimizer = build_optimizer(objective, prepared.recipe.train)
    losses, began = [], time.perf_counter()
    for step in range(MOST_STEPS):
        if step >= FEWEST_STEPS and time.perf_counter() - began > SECONDS_OF_LEARNING:
            break
        parts = [batch_of(prepared, indices, device) for indices in prepared.plan.step(step)]
        losses.append(float(backward(objective, list(enumerate(parts)), parts, step)))
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - began
    first, last = losses[0], sum(losses[-5:]) / 5
    text = f"the loss of a tiny model went from {first:.2f} to {last:.2f} in {len(losses)} steps, {seconds:.1f} s"
    if last <= LEARNED * first:  # false for a loss that is not a number
        return Finding(f"learning on {device}", "ok", text)
    return Finding(f"learning on {device}", "problem", f"{text}: it should have fallen further", GIVE_UP)


def backward(objective: Objective, own: list[tuple[int, Batch]], everything: list[Batch], step: int = 0) -> Tensor:
    """Add the gradients of some micro-batches of a step, each with its number; returns their share of the loss."""
    totals = torch.stack([objective.counts(batch).cpu() for batch in everything]).sum(0)
    shares = []
    for number, batch in own:
        seed_micro_batch(0, step, number)
        loss = objective(batch, totals)
        loss.backward()
        shares.append(loss.detach())
    return torch.stack(shares).sum()


@torch.inference_mode()
def logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    model.eval()
    return model(**{name: tensor.to(model.device) for name, tensor in batch.items()}).logits.cpu()


def round_trip(prepared: "Prepared") -> Finding:
    """A model that is saved and loaded again computes the very same, and so does its tokenizer."""
    from kit.data.text.tokenizer import load_pretrained_tokenizers

    batch = batch_of(prepared, prepared.plan.step(0)[0])
    model, texts = copy.deepcopy(prepared.model), prepared.splits.datasets["validation"]["source"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        prepared.task.export(folder, model, prepared.tokenizers)
        with no_progress_bars():
            loaded = AutoModelForSeq2SeqLM.from_pretrained(folder)
        tokenizers = load_pretrained_tokenizers(str(folder))
    changed = []
    if not torch.equal(logits(model, batch), logits(loaded, batch)):
        changed.append("model")
    if tokenizers.encode_source(texts) != prepared.tokenizers.encode_source(texts):
        changed.append("tokenizer")
    if changed:
        return Finding("save and load", "problem", f"the loaded {' and '.join(changed)} is not the saved one", GIVE_UP)
    return Finding("save and load", "ok", "the loaded model computes exactly what the saved one does")


def agreement(prepared: "Prepared", device: torch.device) -> Finding:
    """A device computes what the CPU does, up to rounding."""
    batch = batch_of(prepared, prepared.plan.step(0)[0])
    there = logits(copy.deepcopy(prepared.model).to(device), batch)
    difference = float((there - logits(copy.deepcopy(prepared.model), batch)).abs().max())
    text = f"logits differ by {difference:.1e}"
    if difference <= SAME_ON_GPU:
        return Finding(f"cpu and {device}", "ok", text)
    return Finding(f"cpu and {device}", "problem", f"{text}, more than rounding can explain", GIVE_UP)


# ---- several processes -----------------------------------------------------------------------------------------------


def shared_step(prepared: "Prepared", patience: float | None = None) -> Finding:
    """Processes that share a step must come to the gradient that one process computes alone."""
    topic = f"{PROCESSES} processes"
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return Finding(topic, "warning", "not checked: this torch cannot run several processes on the CPU (no gloo)")
    parts = [batch_of(prepared, indices) for indices in prepared.plan.step(0)]
    model = copy.deepcopy(prepared.model).double()
    objective = prepared.task.objective(model).train()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with no_progress_bars():
            model.save_pretrained(folder)
        tensors = {f"{number}:{name}": tensor for number, part in enumerate(parts) for name, tensor in part.items()}
        save_file(tensors, folder / "batches.safetensors")
        failure = run_processes(folder, PATIENCE if patience is None else patience)
        if failure is not None:
            return Finding(topic, "warning", f"not checked: {failure}", "train with one process, or look for the cause")
        theirs = load_file(folder / "gradients.safetensors")
    backward(objective, list(enumerate(parts)), parts)
    return compare_gradients(gradients(objective), theirs)


def gradients(objective: Objective) -> dict[str, Tensor]:
    """The gradient of every parameter by its name."""
    named = objective.model.named_parameters()
    return {name: parameter.grad for name, parameter in named if parameter.grad is not None}


def compare_gradients(one: dict[str, Tensor], several: dict[str, Tensor]) -> Finding:
    """Whether the gradients of one and of several processes are the same in all digits that matter."""
    topic = f"{PROCESSES} processes"
    if one.keys() != several.keys():
        missing = ", ".join(sorted(one.keys() ^ several.keys()))
        return Finding(topic, "problem", f"gradients are missing on one side: {missing}", GIVE_UP)
    largest = max(float(gradient.abs().max()) for gradient in one.values())
    difference = max(float((one[name] - several[name]).abs().max()) for name in one) / largest
    text = f"the gradients of {PROCESSES} processes and of one differ by {difference:.1e}"
    if difference <= SAME_IN_FLOAT64:
        return Finding(topic, "ok", text)
    return Finding(topic, "problem", f"{text}, more than rounding can explain", GIVE_UP)


def run_processes(folder: Path, patience: float) -> str | None:
    """Start the processes as `kit train --processes` does and wait for them; returns why they failed, or None."""
    arguments = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={PROCESSES}", "--nnodes=1",
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={uuid.uuid4().hex}", "--max-restarts=0",
        "-m", "kit.diagnostics.self_check", str(folder),
    ]  # fmt: skip
    places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(place for place in places if place),
    }
    # not through a pipe, which a process that outlives the launcher would keep open
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as told:
        launcher = subprocess.Popen(
            arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=told
        )
        try:
            code = launcher.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            return f"they did not finish within {patience:.0f} s"
        finally:
            end_with_children(launcher)
        if code == 0:
            return None
        told.seek(0)
        errors = [line for line in told if "Error" in line]
    return errors[0].strip() if errors else f"they ended with exit code {code}"


def end_with_children(launcher: "subprocess.Popen[bytes]") -> None:
    """Leave no process behind: the launcher puts each into a group of its own, where a signal to it does not reach."""
    if launcher.poll() is not None:
        return
    launcher.send_signal(signal.SIGSTOP)  # so that it starts no more
    for process in psutil.Process(launcher.pid).children(recursive=True):
        process.kill()
    launcher.kill()
    launcher.wait()


def take_part(folder: Path) -> None:
    """One of the processes: compute its share of the step as the loop does; the first writes the gradients down."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    if accelerator.num_processes != PROCESSES:
        raise RuntimeError(f"Accelerate runs {accelerator.num_processes} processes instead of {PROCESSES}")
    register_models()
    tensors = load_file(folder / "batches.safetensors")
    parts = [
        {name.split(":")[1]: tensor for name, tensor in tensors.items() if name.startswith(f"{number}:")}
        for number in range(PROCESSES)
    ]
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float64)
    objective = Seq2SeqObjective(model).train()
    shared = accelerator.prepare(objective)
    rank = accelerator.process_index
    totals = torch.stack([objective.counts(batch) for batch in parts]).sum(0)
    seed_micro_batch(0, 0, rank)
    # data-parallel gradients are averaged over processes, but a step's loss is the sum of its parts
    accelerator.backward(shared(parts[rank], totals) * PROCESSES)
    if accelerator.is_main_process:
        save_file(gradients(objective), folder / "gradients.safetensors")
    # Before the process group goes: the data-parallel wrapper would otherwise be the last to hold it, and torch, which
    # ends the group's threads while Python's lock is held, could wait for them for ever.
    (shared,) = accelerator.free_memory(shared)
    accelerator.end_training()


if __name__ == "__main__":
    take_part(Path(sys.argv[1]))
