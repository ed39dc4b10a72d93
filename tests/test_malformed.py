"""Thousands of malformed inputs by a fork server and by the real command line, with fixed seeds: no traceback, no hang.

`make soak` runs all of them, `make test` a few. A failure shows the seed and the command that repeat it.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from support.attempts import Attempt, import_everything, run_attempt, start_kit
from support.malformed import Runs, data_attempt, odd_attempt, override_attempt, recipe_attempt
from support.mutations import damages
from support.repositories import prove_here

import kit.sharing.proof

COUNTS = {
    "recipes": 2200, "overrides": 1800, "data": 2800, "folders": 1400, "inference": 500, "odd values": 500,
    "verify and push": 300,
}  # fmt: skip
"""Inputs by the fork server; with those of the command line, they are 10,000."""
BY_COMMAND_LINE = 500


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs.train(tmp_path_factory.mktemp("runs"))


def check(attempts: Iterable[Attempt], folder: Path, start: Callable[..., int] | None = None) -> Counter[int]:
    """Run all attempts; fails with every problem. Returns how often they ended with each exit code."""
    codes: Counter[int] = Counter()
    problems = []
    for attempt in attempts:
        outcome = run_attempt(attempt, folder / "attempt", start)
        codes[outcome.result.returncode] += 1
        problems += [str(outcome)] if outcome.problem else []
    assert not problems, "\n\n".join([f"{len(problems)} problems", *problems[:20]])
    return codes


def check_all(kind: str, attempts: Iterable[Attempt], folder: Path, start: Callable[..., int] | None = None) -> None:
    """Run all attempts, and print the exit codes and the duration on the terminal, also if there is no problem."""
    began, cpu = time.monotonic(), os.times()
    codes = check(attempts, folder, start)
    spent = sum(os.times()[:4]) - sum(cpu[:4])
    line = ", ".join(f"{count:,} with exit code {code}" for code, count in sorted(codes.items()))
    print(f"\n{kind}: {line}; {time.monotonic() - began:,.0f} s, {spent:,.0f} s of CPU time")


def test_some_malformed_inputs(trained: Path, tmp_path: Path) -> None:
    makers = (recipe_attempt, override_attempt, data_attempt)
    attempts = [make(seed) for make in makers for seed in range(6)]
    some = damages(trained, 0, 10, "model/*.json")
    attempts += [Runs(trained).damaged(trained, ("generate", "run", "in.txt"), [damage]) for damage in some]
    codes = check(attempts, tmp_path)
    assert codes[2] > 12


def test_some_damaged_runs_are_verified_and_pushed(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For speed, what the process without kit computes is computed in the forked one."""
    monkeypatch.setattr(kit.sharing.proof, "run_standalone", prove_here)
    some = [*damages(trained, 1, 4, "model/*.json"), *damages(trained, 1, 3, "predictions/*.jsonl")]
    commands = [("push", "run", "owner/name", "--dry-run")] * len(some) + [("verify", "run")] * 2
    attempts = [Runs(trained).damaged(trained, *each) for each in zip(commands, [[d] for d in some * 2], strict=False)]
    codes = check(attempts, tmp_path)
    assert codes[2] > 2


def test_problems_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback and a hang are problems; a message is none."""
    assert run_attempt(Attempt("a message", ("eval", "missing")), tmp_path / "a").problem == ""
    monkeypatch.setattr("support.attempts.prepare_recipe", lambda: [][0])
    assert "IndexError" in run_attempt(Attempt("a bug", ("prepare",)), tmp_path / "b").problem
    monkeypatch.setattr("support.attempts.prepare_recipe", lambda: time.sleep(99))
    monkeypatch.setattr("support.attempts.SECONDS", 0.5)
    assert "still running" in run_attempt(Attempt("a hang", ("prepare",)), tmp_path / "c").problem


@pytest.mark.soak
@pytest.mark.parametrize("kind", COUNTS)
def test_malformed_inputs(kind: str, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_everything()
    make = {
        "recipes": recipe_attempt, "overrides": override_attempt, "data": data_attempt, "folders": runs.attempt,
        "inference": runs.inference_attempt, "odd values": odd_attempt, "verify and push": runs.slow_attempt,
    }[kind]  # fmt: skip
    with capsys.disabled():
        check_all(kind, map(make, range(COUNTS[kind])), tmp_path)


@pytest.mark.soak
def test_malformed_inputs_by_the_command_line(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other seeds than those of the fork server, and slow commands among them."""
    makers = (
        recipe_attempt, override_attempt, data_attempt, runs.attempt, runs.inference_attempt, odd_attempt,
        runs.slow_attempt,
    )  # fmt: skip
    chance = random.Random(0)
    attempts = (chance.choice(makers)(10**6 + seed) for seed in range(BY_COMMAND_LINE))
    with capsys.disabled():
        check_all("command line", attempts, tmp_path, start_kit)
