"""The longer proofs, run by `make soak`."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytestmark = pytest.mark.soak

KILLS = 20
LENGTH = ["train.max_steps=2000", "train.save_steps=5", "eval.steps=500", "train.seed=7"]


@pytest.mark.parametrize("processes", [1, 2])
def test_many_kills(tiny_recipe: Path, tmp_path: Path, processes: int) -> None:
    """Killed at twenty random moments and resumed each time, a run ends like one that never was."""
    parts = ["train.micro_batches=2", "--processes", str(processes)]

    def command(output: str) -> list[str]:
        train = [sys.executable, "-m", "kit", "train", str(tiny_recipe)]
        return [*train, *LENGTH, *parts, "--output", str(tmp_path / output), "--resume"]

    subprocess.run(command("unbroken"), check=True, capture_output=True)
    random_moment = random.Random(processes)
    kills = 0
    for _ in range(10 * KILLS):
        process = subprocess.Popen(
            command("broken"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(timeout=random_moment.uniform(6, 14))
        except subprocess.TimeoutExpired:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=True)
            process.wait()
            kills += 1
            time.sleep(0.2)
        if kills == KILLS or process.returncode == 0:
            break
    last = subprocess.run(command("broken"), capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    assert kills >= 5
    mine, theirs = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("broken", "unbroken"))
    assert all(mine[name].equal(theirs[name]) for name in theirs)
    assert not list((tmp_path / "broken").rglob(".tmp-*"))
