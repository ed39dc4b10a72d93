"""A run killed at any moment and resumed is bit-identical to an uninterrupted one."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from support.processes import ForkedKit
from support.runs import weight_bytes

from kit import Callback, TrainingState, train
from kit.runs import finish
from kit.training.loop import TrainingInterrupted

STEPS = ["train.max_steps=40", "train.save_steps=3", "eval.steps=10", "train.seed=3"]


def command(recipe: Path, output: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "kit", "train", str(recipe), *STEPS, "--output", str(output), *more]


def kill_when(process: ForkedKit, ready: Callable[[], bool]) -> None:
    """Send SIGKILL as soon as `ready()` is true; the process may have ended before."""
    while process.poll() is None:
        if ready():
            process.send_signal(signal.SIGKILL)
            process.wait()
            return
        time.sleep(0.0005)


@pytest.mark.slow
def test_kill_and_resume_is_bit_identical(tiny_recipe: Path, tmp_path: Path) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert ForkedKit(command(tiny_recipe, unbroken)).wait() == 0

    def temporary_folder_appeared() -> bool:
        return any(broken.glob("checkpoints/.tmp-step-*"))

    def logged(lines: int) -> Callable[[], bool]:
        log = broken / "metrics.jsonl"
        return lambda: log.exists() and len(log.read_text(encoding="utf-8").splitlines()) >= lines

    def after(seconds: float) -> Callable[[], bool]:
        times: list[float] = []  # from the first question on, which comes when the process has been started

        def ready() -> bool:
            times.append(time.monotonic())
            return times[-1] - times[0] > seconds

        return ready

    chance = random.Random()
    moments = (chance.randint(6, 18), chance.randint(20, 36), chance.uniform(0.05, 0.4))
    print("killed at", moments)  # shown when the test fails
    for ready in (temporary_folder_appeared, logged(moments[0]), after(moments[2]), logged(moments[1])):
        process = ForkedKit(command(tiny_recipe, broken, "--resume"))
        kill_when(process, ready)
        assert process.returncode == -signal.SIGKILL, "the run was over before it could be killed"
    last = subprocess.run(command(tiny_recipe, broken, "--resume"), check=True, capture_output=True, text=True)
    assert "resuming at step" in last.stderr
    assert weight_bytes(broken) == weight_bytes(unbroken)
    assert steps_logged(broken) == steps_logged(unbroken)
    assert not list(broken.rglob(".tmp-*"))


def steps_logged(run: Path) -> list[tuple[int, float]]:
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(entry["step"], entry["train_loss"]) for entry in entries if "train_loss" in entry]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_a_checkpoint_and_prints_how_to_resume(
    tiny_recipe: Path, tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "run"
    endless = ["train.max_steps=100000", "eval.steps=0", "train.save_steps=100000"]
    process = ForkedKit([*command(tiny_recipe, output), *endless], log=tmp_path / "log.txt")
    log = output / "metrics.jsonl"
    while not (log.exists() and log.read_text()):
        assert process.poll() is None, (tmp_path / "log.txt").read_text()
        time.sleep(0.05)
    process.send_signal(number)
    process.wait()
    stderr = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert process.returncode == 128 + number
    assert f"kit train {output} --resume" in stderr
    assert "Traceback" not in stderr
    assert len(list(output.glob("checkpoints/step-*"))) == 1


class StopInLastEvaluation(Callback):
    def on_evaluate(self, state: TrainingState, metrics: Mapping[str, Any]) -> None:
        if state.step == state.total_steps:
            signal.raise_signal(signal.SIGTERM)


def test_sigterm_in_the_last_evaluation_of_training_stops_the_run(tiny_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(TrainingInterrupted) as stop:
        train(tiny_recipe, run, callbacks=[StopInLastEvaluation()], quiet=True)
    assert (stop.value.signal_number, stop.value.step) == (signal.SIGTERM, 12)
    assert not (run / "model").exists()
    assert train(run, run, resume=True, quiet=True).results["train"]["steps"] == 12


def test_sigterm_in_the_final_evaluation_prints_how_to_continue(
    tiny_recipe: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = finish.run_final_evaluation
    monkeypatch.setattr(
        finish, "run_final_evaluation", lambda *arguments: (os.kill(os.getpid(), signal.SIGTERM), evaluate(*arguments))
    )
    stopped = kit_here("train", tiny_recipe, "--output", "run")
    assert stopped.returncode == 128 + signal.SIGTERM
    assert stopped.stderr.endswith("interrupted; resume with: kit train run --resume\n")
    assert not (tmp_path / "run" / "results.json").exists()
    monkeypatch.setattr(finish, "run_final_evaluation", evaluate)
    assert kit_here("train", "run", "--resume").returncode == 0
    assert (tmp_path / "run" / "results.json").exists()


def test_corrupt_checkpoint_is_skipped(tiny_recipe: Path, tmp_path: Path, kit_here) -> None:  # type: ignore[no-untyped-def]
    unbroken = tmp_path / "unbroken"
    assert kit_here("train", tiny_recipe, "--output", unbroken).returncode == 0
    broken = tmp_path / "broken"
    assert kit_here("train", tiny_recipe, "--output", broken).returncode == 0
    (broken / "results.json").unlink()
    newest = max(broken.glob("checkpoints/step-*"), key=lambda path: int(path.name[5:]))
    damaged = bytearray((newest / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (newest / "model.safetensors").write_bytes(damaged)
    resumed = kit_here("train", tiny_recipe, "--output", broken, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "model.safetensors does not match its checksum" in resumed.stderr
    assert weight_bytes(broken) == weight_bytes(unbroken)


def test_resume_without_a_checkpoint_starts_from_step_0(tiny_recipe: Path, kit_here) -> None:  # type: ignore[no-untyped-def]
    done = kit_here("train", tiny_recipe, "--resume", "train.max_steps=2")
    assert done.returncode == 0, done.stderr
    assert "No checkpoint found: starting from step 0." in done.stderr
