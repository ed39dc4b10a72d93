"""`kit runs`: the state and the headline of each run, read from its files."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from support.runs import results, rewind

from kit import Callback, TrainingState, train
from kit.runs.folder import RunFolder
from kit.runs.listing import age, is_locked, lines, list_runs


def test_runs_are_listed_with_state_metric_and_step(
    trained: Path, tmp_path: Path, kit_here: Callable[..., Any]
) -> None:
    names = ("finished", "unfinished", "failed", "running", "damaged", "started")
    for age_in_hours, name in enumerate(names):
        folder = Path(shutil.copytree(trained, tmp_path / "runs" / name))
        if name != "finished":
            (folder / "results.json").unlink()
        if name == "failed":
            (folder / "failure.json").write_text('{"error": "step 7 has a non-finite loss"}')
        if name == "damaged":
            (folder / "results.json").write_text("[")
        if name == "started":
            (folder / "metrics.jsonl").unlink()
        for file in folder.iterdir():
            os.utime(file, (1e9 - 3600 * age_in_hours, 1e9 - 3600 * age_in_hours))
    (tmp_path / "runs" / "no_run").mkdir()
    with FileLock(tmp_path / "runs" / "running" / ".lock"):
        runs = {run.folder.name: run for run in list_runs(tmp_path / "runs")}
        shown = kit_here("runs", "--json")
    assert tuple(runs) == names  # the last changed first
    assert {name: run.state for name, run in runs.items() if name != run.state} == {"started": "unfinished"}
    test = results(trained)["test"]
    finished = runs["finished"]
    assert (finished.task, finished.metric, finished.split) == ("translation", "exact_match", "test")
    assert finished.value == test["exact_match"]
    assert (runs["unfinished"].split, runs["started"].value) == ("validation", None)
    assert runs["failed"].problem == "step 7 has a non-finite loss"
    assert "results.json" in (runs["damaged"].problem or "")
    assert [entry["state"] for entry in json.loads(shown.stdout)] == [run.state for run in runs.values()]

    table = list(lines(list(runs.values()), datetime.fromtimestamp(1e9, UTC), 200))
    assert table[0].split() == ["run", "task", "state", "metric", "step", "age"]
    assert table[1].split()[1:3] == ["translation", "finished"]
    assert f"exact_match {test['exact_match']:.4g} (test)" in table[1]
    assert table[3].endswith("2 h  step 7 has a non-finite loss")
    assert all(len(line) <= 60 for line in lines(list(runs.values()), datetime.now(UTC), 60))
    assert "there is no run in runs/no_run" in kit_here("runs", "runs/no_run").stdout
    assert kit_here("runs", "nowhere").returncode == 2


def test_failure_is_recorded_until_the_run_resumes(tiny_recipe: Path, tmp_path: Path) -> None:
    class Failing(Callback):
        def on_step(self, state: TrainingState) -> None:
            if state.step == 5:
                assert list_runs(tmp_path)[0].state == "running"
                raise ValueError("a mistake with hf_abcdefghijklmnopqrstuvwxyzABCDEFGH in it")

    with pytest.raises(ValueError, match="a mistake"):
        train(tiny_recipe, tmp_path / "run", callbacks=[Failing()], quiet=True)
    failed = list_runs(tmp_path / "run")[0]
    assert (failed.state, failed.step) == ("failed", 4)
    assert failed.problem is not None
    assert failed.problem.startswith("a mistake with ")
    assert "abcdefghijklmnopqrstuvwxyz" not in failed.problem
    train(tiny_recipe, tmp_path / "run", resume=True, quiet=True)
    assert list_runs(tmp_path)[0].state == "finished"
    assert not (tmp_path / "run" / "failure.json").exists()
    rewind(tmp_path / "run", 8)
    assert list_runs(tmp_path)[0].state == "unfinished"


def test_listing_is_light() -> None:
    code = "import sys, kit.cli, kit.runs.listing; assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (2e5, "2 d")]
)
def test_ages_are_rounded(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_a_run_can_start_while_runs_are_listed(tmp_path: Path) -> None:
    """`kit runs` finds out by the lock whether a run is in progress, and holds it for a moment."""
    lock = FileLock(tmp_path / ".lock", thread_local=False)
    lock.acquire()
    release = threading.Timer(0.2, lock.release)
    release.start()
    with RunFolder(tmp_path).locked():
        assert is_locked(tmp_path / ".lock")
    release.join()
