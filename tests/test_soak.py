"""The longer proofs, run by `make soak`: many kills, and equal runs of every family of tasks by the command line."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import RunKit
from support.recipes import METRICS, NO_DROPOUT, write_recipe
from support.runs import assert_same_weights, losses, results, rewind, weights

from kit.training.checkpoint import Checkpoints

pytestmark = pytest.mark.soak

KILLS = 20
STEPS = 2000
LENGTH = [f"train.max_steps={STEPS}", "train.save_steps=5", "eval.steps=500", "train.seed=7"]


def last_step(run: Path) -> int:
    """The last step that was logged in full."""
    log = run / "metrics.jsonl"
    lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def assert_nothing_broken(run: Path) -> None:
    for checkpoint in Checkpoints(run / "checkpoints").all():
        assert checkpoint.integrity_error() is None
    if (run / "checkpoints").exists():
        assert (run / "recipe.yaml").read_text(encoding="utf-8").startswith("task:")


def kill_some(process: "subprocess.Popen[bytes]", chance: random.Random) -> None:
    """Kill all processes of a run at once, the one that was started, or one of the others; none may outlive that."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    victims = [[process.pid, *(child.pid for child in children)], [process.pid], *([child.pid] for child in children)]
    for victim in chance.choice(victims):
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(timeout=180)
    _, left = psutil.wait_procs(children, timeout=60)
    assert left == []


@pytest.mark.parametrize("processes", [1, 2])
def test_many_kills(tiny_recipe: Path, tmp_path: Path, processes: int) -> None:
    """A run killed at twenty random moments and resumed each time is bit-identical to an uninterrupted one. Kills hit
    the start of the program, steps, writes of checkpoints, and evaluations."""

    def command(output: str) -> list[str]:
        train = [sys.executable, "-m", "kit", "train", str(tiny_recipe), *LENGTH, "train.micro_batches=2"]
        return [*train, "--processes", str(processes), "--output", str(tmp_path / output), "--resume"]

    subprocess.run(command("unbroken"), check=True, capture_output=True)
    chance = random.Random()
    seed = chance.randrange(10**6)
    print("seed", seed)  # shown when the test fails
    chance.seed(seed)
    broken = tmp_path / "broken"

    def step_reached(step: int) -> Callable[[float], bool]:
        return lambda seconds: last_step(broken) >= step

    def time_passed(moment: float) -> Callable[[float], bool]:
        return lambda seconds: seconds > moment

    moments: list[Callable[[float], bool]] = []
    for number in range(KILLS):
        early = number % 4 == 0
        # the last kills leave time for the run to be alive
        step = chance.randrange(STEPS * number // (KILLS + 2), STEPS * (number + 1) // (KILLS + 2))
        moments.append(time_passed(chance.uniform(0.5, 5)) if early else step_reached(step))
    for ready in moments:
        process = subprocess.Popen(command("broken"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began = time.monotonic()
        while not ready(time.monotonic() - began):
            assert process.poll() is None, "the run was over before it could be killed"
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.05))
        kill_some(process, chance)
        assert process.returncode != 0
        assert_nothing_broken(broken)
    last = subprocess.run(command("broken"), capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    assert "resuming at step" in last.stderr
    mine, theirs = weights(broken), weights(tmp_path / "unbroken")
    assert all(mine[name].equal(theirs[name]) for name in theirs)
    assert losses(broken) == losses(tmp_path / "unbroken")
    assert_nothing_broken(broken)
    assert not list(broken.rglob(".tmp-*"))


@pytest.fixture
def run(tmp_path: Path, kit: RunKit) -> Callable[..., Path]:
    """`run("translation", 2, "name", *overrides)` trains through the command line in this number of processes."""

    def train(kind: str, processes: int, name: str, *arguments: str) -> Path:
        recipe = write_recipe(tmp_path, kind)
        done = kit("train", recipe, *arguments, "--output", name, "--processes", processes, timeout=1800)
        assert done.returncode == 0, done.stderr
        assert f"processes: {processes}, on cpu" in done.stderr
        assert results(tmp_path / name)["train"]["processes"] == processes
        return tmp_path / name

    return train


FAMILIES = ["translation", "causal_lm", "masked_lm", "classification"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_processes_and_parts_are_equal_in_float64(kind: str, run: Callable[..., Path]) -> None:
    same = ["train.dtype=float64", "train.max_steps=40", "eval.steps=20", *NO_DROPOUT[kind]]
    # masks are drawn for each part: only runs in as many parts have the same
    parts = (4, 4, 4) if kind == "masked_lm" else (1, 2, 4)
    single, parallel, accumulated = (
        run(kind, processes, f"{processes}_in_{number}_{index}", *same, f"train.micro_batches={number}")
        for index, (processes, number) in enumerate(zip((1, 2, 2), parts, strict=True))
    )
    for other in (parallel, accumulated):
        assert losses(other) == pytest.approx(losses(single), rel=1e-9)
        assert_same_weights(single, other, 1e-9)


@pytest.mark.parametrize("kind", FAMILIES)
def test_processes_are_equal_in_float32_with_dropout(kind: str, run: Callable[..., Path]) -> None:
    same = ["train.micro_batches=4", "train.max_steps=50", "eval.steps=25", "train.save_steps=25"]
    single, parallel = run(kind, 1, "one", *same), run(kind, 2, "two", *same)
    assert len(losses(single)) == 50
    assert losses(parallel) == pytest.approx(losses(single), rel=1e-5)
    metric = METRICS[kind]
    figures = [results(folder)["test"][metric] for folder in (single, parallel)]
    assert figures[0] == pytest.approx(figures[1], rel=1e-4 if metric == "loss" else 0)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize(("first", "second", "more"), [(2, 1, ()), (1, 2, ()), (2, 1, ("--shard",))])
def test_a_run_goes_on_with_another_number_of_processes(
    kind: str, first: int, second: int, more: tuple[str, ...], run: Callable[..., Path]
) -> None:
    same = ["train.micro_batches=2", "train.dtype=float64", "train.save_total_limit=9"]
    unbroken = run(kind, 1, "unbroken", *same)
    run(kind, first, "moved", *same, *more)
    rewind(unbroken.parent / "moved", 4)
    moved = run(kind, second, "moved", *same, "--resume")
    assert losses(moved) == pytest.approx(losses(unbroken), rel=1e-9)
    assert_same_weights(unbroken, moved, 1e-9)
