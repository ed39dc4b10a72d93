"""`kit doctor --train`: the same tiny training in one process, in several, and with the weights divided among them.

It goes through the real command line, on whatever this machine has, so that what could not be tried where kit was
written (several GPUs, NCCL) can be tried where it is used.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.diagnostics.doctor import Finding
from kit.diagnostics.self_check import GIVE_UP, RECIPE, end_with_children
from kit.recipe.document import write_yaml
from kit.system.files import read_json_lines

STEPS = 8
SAME_LOSSES = 1e-6
"""How far the losses of two trainings in float64 may be apart: the order of a sum, over a few steps."""

PATIENCE = 600.0
MODEL: dict[str, Any] = {
    "type": "transformer_seq2seq", "hidden_size": 32, "encoder_layers": 2, "decoder_layers": 2,
    "attention_heads": 2, "feed_forward_size": 64, "dropout": 0.1,
}  # fmt: skip


def train_findings(processes: int | None = None) -> Iterator[Finding]:
    """Train in one process, in several and sharded, and compare every loss."""
    import torch

    gpus = torch.cuda.device_count()
    number = processes or (gpus or 2)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "check.yaml").write_text(write_yaml(check_recipe(number)), encoding="utf-8")
        one, text = run(folder, "one")
        if one is None:
            yield Finding("train, 1 process", "problem", text, GIVE_UP)
            return
        yield Finding("train, 1 process", "ok", f"{STEPS} steps; {text}")
        if number == 1:
            yield Finding("train, several", "warning", "not tried: there is one GPU, and each process needs one")
            return
        for kind in ("whole", "sharded"):
            topic = f"train, {number} processes{', sharded' if kind == 'sharded' else ''}"
            more = ["--shard"] if kind == "sharded" else []
            losses, text = run(folder, kind, "--processes", str(number), *more)
            if losses is None:
                yield Finding(topic, "problem", text, GIVE_UP)
            else:
                yield compared(topic, one, losses, text)


def check_recipe(processes: int) -> dict[str, Any]:
    """A training of a moment in float64, dropout on, in so many parts that each process has two."""
    train = {
        "max_steps": STEPS, "batch_size": max(64, 4 * processes), "micro_batches": 2 * processes, "learning_rate": 1e-2,
        "dtype": "float64", "logging_steps": 1,
    }  # fmt: skip
    tokenizer = {"train": "char", "min_frequency": 1}
    evaluation = {"steps": 0, "examples": 0}
    return {**RECIPE, "model": MODEL, "tokenizer": tokenizer, "train": train, "eval": evaluation}


def run(folder: Path, name: str, *arguments: str) -> tuple[list[float] | None, str]:
    """The losses of a training by `kit train` and what it says it ran on; None and the reason, if it failed."""
    command = [
        sys.executable, "-m", "kit", "train", str(folder / "check.yaml"), "--output", str(folder / name), *arguments,
    ]  # fmt: skip
    places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(place for place in places if place)}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as told:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=told
        )
        try:
            code = process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return None, f"it did not finish within {PATIENCE:.0f} s"
        finally:
            end_with_children(process)
        told.seek(0)
        said = [line.strip() for line in told if line.strip()]
    if code:
        return None, f"it ended with exit code {code}: {said[-1] if said else 'without a word'}"
    entries = [entry for _, entry in read_json_lines(folder / name / "metrics.jsonl", "a metrics log")]
    on = next((line for line in said if line.startswith("processes: ")), "")
    return [entry["train_loss"] for entry in entries if "train_loss" in entry], on


def compared(topic: str, one: list[float], several: list[float], on: str) -> Finding:
    """Whether two trainings had the same losses, up to rounding."""
    if len(one) != len(several):
        return Finding(topic, "problem", f"{len(several)} steps instead of {len(one)}; {on}", GIVE_UP)
    differences = [abs(mine - theirs) / abs(mine) for mine, theirs in zip(one, several, strict=True)]
    text = f"losses differ from those of one process by {max(differences):.1e}; {on}"
    if all(difference <= SAME_LOSSES for difference in differences):  # false for a loss that is not a number
        return Finding(topic, "ok", text)
    return Finding(topic, "problem", f"{text}: more than rounding can explain", GIVE_UP)
