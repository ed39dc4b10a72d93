"""`kit doctor` compares runs of `kit train` in one process, in several and sharded."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from kit.diagnostics import train_check
from kit.diagnostics.train_check import Training, TrainingFailed, compare

ONE = Training(
    torch.tensor([[2.0, 0.5], [1.0, 0.25]], dtype=torch.float64),
    {"a": torch.tensor([1.0, -2.0], dtype=torch.float64), "b": torch.ones(1, dtype=torch.float64)},
    "processes: 1, on cpu",
)


def test_runs_that_differ_by_rounding_are_equal() -> None:
    rounded = {name: weight * (1 + 1e-12) for name, weight in ONE.weights.items()}
    finding = compare("train", ONE, Training(ONE.figures * (1 - 1e-12), rounded, "processes: 2, on cpu by gloo"))
    assert finding.status == "ok"
    assert "processes: 2, on cpu by gloo" in finding.text


@pytest.mark.parametrize(
    "figures",
    [
        [[2.0, 0.5], [1.0 + 1e-6, 0.25]],  # another loss
        [[2.0, 1.0], [1.0, 0.5]],  # gradients summed instead of averaged, which AdamW does not notice
        [[2.0, 0.5]],
        [[2.0, 0.5], [float("nan"), 0.25]],
    ],
)
def test_a_different_loss_or_gradient_is_a_problem(figures: list[list[float]]) -> None:
    finding = compare("train", ONE, replace(ONE, figures=torch.tensor(figures, dtype=torch.float64)))
    assert finding.status == "problem"
    assert "on cpu" in finding.text


def test_different_weights_are_a_problem() -> None:
    a, b = ONE.weights["a"], ONE.weights["b"]
    for weights in ({"a": a, "b": b + 1e-6}, {"a": a * float("nan"), "b": b}, {"a": a}):
        assert compare("train", ONE, replace(ONE, weights=weights)).status == "problem"
    assert "missing in one of the runs: b" in compare("train", ONE, replace(ONE, weights={"a": a})).text


def test_a_run_that_fails_is_a_problem_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    (finding,) = train_check.train_findings(2)
    assert finding.status == "problem"
    assert "kit train failed with exit code 1: it printed nothing" in finding.text


@pytest.mark.parametrize(
    ("stderr", "code", "message"),
    [
        ("Traceback\nOSError: no such address", 1, "exit code 1: OSError: no such address"),
        ("a warning: no Error at all", 0, None),
    ],
)
def test_the_last_line_of_a_failed_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, code: int, message: str | None
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{stderr}\nEND\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    if message is None:
        assert train_check.run_kit(["train"], {}, timeout=60) == [stderr]
    else:
        with pytest.raises(TrainingFailed, match=message):
            train_check.run_kit(["train"], {}, timeout=60)


def test_two_processes_that_fail_are_only_a_warning_of_the_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(folder: Path, processes: int, *options: str, **settings: object) -> Training:
        if "--processes" in options:
            raise TrainingFailed("no such address")
        return ONE

    monkeypatch.setattr(train_check, "train", train)
    finding = train_check.self_check_processes()
    assert (finding.status, finding.text) == ("warning", "not checked: no such address")
    assert finding.remedy


def test_without_gloo_processes_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    finding = train_check.self_check_processes()
    assert finding.status == "warning"
    assert "gloo" in finding.text


def test_a_run_that_does_not_finish_leaves_no_process_behind(tmp_path: Path) -> None:
    before = psutil.Process().children(recursive=True)  # another test may have left Python's resource tracker
    with pytest.raises(TrainingFailed, match="did not finish within 0 s"):
        train_check.train(tmp_path, 2, "--processes", "2", environment=train_check.CPU_ONLY, timeout=0.2)
    started = [child for child in psutil.Process().children(recursive=True) if child not in before]
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []


def test_processes_in_other_process_groups_are_killed_too() -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        child = psutil.Process(int(launcher.stdout.readline()))
        assert child.is_running()
        train_check.kill_with_children(launcher)
        child.wait(timeout=30)
        assert launcher.returncode is not None


@pytest.mark.soak
def test_one_process_several_and_sharded_agree_on_this_machine() -> None:
    findings = list(train_check.train_findings(2))
    assert [finding.status for finding in findings] == ["ok", "ok", "ok"], findings
    assert "on cpu by gloo, weights replicated (DDP)" in findings[1].text
    assert "weights sharded (FSDP2)" in findings[2].text
