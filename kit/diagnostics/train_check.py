"""Train the same tiny model with `kit train` in one process, in several and sharded, and compare the results.

The runs go through the real command line on the devices of this machine. kit was developed without GPUs, so this is
how several GPUs and NCCL are checked.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file
from torch import Tensor

from kit.diagnostics.doctor import INVESTIGATE, Finding
from kit.recipe.catalog import shipped_recipes
from kit.system.files import read_json_lines
from kit.system.outputs import scratch_folder

RECIPE = "translation/dates_rnn"
STEPS = 8  # a lost gradient or a wrong order of batches shows in the first ones
MAX_DIFFERENCE = 1e-9
"""The runs train in float64 and differ in nothing but the order of sums, which changes about 1e-15 on a CPU."""

TIMEOUT = 600.0
SELF_CHECK_PROCESSES, SELF_CHECK_TIMEOUT = 2, 120.0
"""Timeouts in seconds after which training counts as hanging: processes that wait for one another do so forever."""

CPU_ONLY = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}


class TrainingFailed(Exception):
    """`kit train` failed; the message is the reason."""


@dataclass(frozen=True)
class Training:
    """What a run of `kit train` computed."""

    figures: Tensor  # (steps, 2): loss and gradient norm
    weights: Mapping[str, Tensor]  # after the last step
    hardware: str  # the line that `kit train` prints about processes and devices


def train_findings(processes: int | None = None) -> Iterator[Finding]:
    """Train in one process, in several (default: one per GPU, or two) and sharded, and compare each with the first."""
    number = processes or torch.cuda.device_count() or 2
    environment = CPU_ONLY if torch.backends.mps.is_available() else {}  # mps has no float64
    with scratch_folder("kit-check-") as folder:
        topic = "train, 1 process"
        try:
            expected = train(folder, number, environment=environment)
        except TrainingFailed as error:
            yield Finding(topic, "problem", str(error), INVESTIGATE)
            return
        yield Finding(topic, "ok", f"{STEPS} steps; {expected.hardware}")
        if number == 1:
            return
        for suffix, shard in (("", []), (", sharded", ["--shard"])):
            topic, options = f"train, {number} processes{suffix}", ["--processes", str(number), *shard]
            try:
                yield compare(topic, expected, train(folder, number, *options, environment=environment))
            except TrainingFailed as error:
                yield Finding(topic, "problem", str(error), INVESTIGATE)


def self_check_processes() -> Finding:
    """Compare one process with two on the CPU. Whether processes can run at all is not essential: a failure to run two
    is a warning, a different result is a problem."""
    number, topic = SELF_CHECK_PROCESSES, f"{SELF_CHECK_PROCESSES} processes"
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return Finding(topic, "warning", "not checked: this torch cannot run several processes on the CPU (no gloo)")
    with scratch_folder("kit-check-") as folder:
        expected = train(folder, number, environment=CPU_ONLY, timeout=SELF_CHECK_TIMEOUT)
        try:
            actual = train(folder, number, "--processes", str(number), environment=CPU_ONLY, timeout=SELF_CHECK_TIMEOUT)
        except TrainingFailed as error:
            return Finding(topic, "warning", f"not checked: {error}", "train with one process, or look for the cause")
    return compare(topic, expected, actual)


def compare(topic: str, expected: Training, actual: Training) -> Finding:
    """Whether two runs had the same losses, gradient norms and final weights, up to rounding."""
    if len(expected.figures) != len(actual.figures):
        text = f"{len(actual.figures)} steps instead of {len(expected.figures)}; {actual.hardware}"
        return Finding(topic, "problem", text, INVESTIGATE)
    if expected.weights.keys() != actual.weights.keys():
        missing = ", ".join(sorted(expected.weights.keys() ^ actual.weights.keys()))
        return Finding(topic, "problem", f"weights are missing in one of the runs: {missing}", INVESTIGATE)
    differences = [(actual.figures - expected.figures).abs() / expected.figures.abs()]
    differences += [(actual.weights[name] - weight).abs() for name, weight in expected.weights.items()]
    difference = float(torch.stack([tensor.max() for tensor in differences]).max())
    text = f"losses, gradients and weights differ from those of one process by {difference:.1e}; {actual.hardware}"
    if difference <= MAX_DIFFERENCE:  # false for NaN
        return Finding(topic, "ok", text)
    return Finding(topic, "problem", f"{text}: more than rounding can explain", INVESTIGATE)


# ---- kit train -------------------------------------------------------------------------------------------------------


def overrides(processes: int) -> list[str]:
    """Overrides that shrink a shipped recipe to a few seconds, in float64, with dropout and two micro-batches for each
    process."""
    return [
        "model={type: transformer_seq2seq, hidden_size: 32, encoder_layers: 2, decoder_layers: 2, dropout: 0.1,"
        " num_attention_heads: 2, intermediate_size: 64}",
        "tokenizer={train: char, min_frequency: 1}",
        "data={path: 'builtin:dates', languages: [en], sizes: {train: 512, validation: 8, test: 8}}",
        f"train={{max_steps: {STEPS}, batch_size: {max(64, 4 * processes)}, micro_batches: {2 * processes},"
        " learning_rate: 1e-2, dtype: float64, logging_steps: 1}",
        "eval={steps: 0, examples: 0}",
    ]


def train(
    folder: Path, processes: int, *options: str, environment: Mapping[str, str], timeout: float = TIMEOUT
) -> Training:
    """Run `kit train` in a new subfolder, in the micro-batches of so many processes. Raises TrainingFailed."""
    output = Path(tempfile.mkdtemp(dir=folder))
    recipe = str(shipped_recipes()[RECIPE])
    printed = run_kit(["train", recipe, *overrides(processes), "--output", str(output), *options], environment, timeout)
    entries = [entry for _, entry in read_json_lines(output / "metrics.jsonl", "a metrics log")]
    figures = [(entry["train_loss"], entry["grad_norm"]) for entry in entries if "train_loss" in entry]
    return Training(
        torch.tensor(figures, dtype=torch.float64),
        load_file(output / "checkpoints" / f"step-{STEPS}" / "model.safetensors"),
        next((line for line in printed if line.startswith("processes: ")), ""),
    )


def run_kit(arguments: list[str], environment: Mapping[str, str], timeout: float) -> list[str]:
    """Run a command of kit and return the lines of its standard error. Raises TrainingFailed."""
    python_path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]  # kit need not be installed
    variables = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, python_path))}
    # not through a pipe, which a process that outlives the launcher would keep open
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "kit", *arguments],
            env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
        )  # fmt: skip
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TrainingFailed(f"kit train did not finish within {timeout:.0f} s") from None
        finally:
            kill_with_children(process)
        stderr.seek(0)
        lines = [line.strip() for line in stderr if line.strip()]
    if code:
        raise TrainingFailed(f"kit train failed with exit code {code}: {lines[-1] if lines else 'it printed nothing'}")
    return lines


def kill_with_children(launcher: "subprocess.Popen[bytes]") -> None:
    """Kill a process and its descendants. The launcher puts each of its processes into its own process group, which a
    signal to the launcher does not reach."""
    if launcher.poll() is not None:
        return
    launcher.send_signal(signal.SIGSTOP)  # so that it starts no more
    for process in psutil.Process(launcher.pid).children(recursive=True):
        process.kill()
    launcher.kill()
    launcher.wait()
