"""Progress of training in a log file, where no bar is drawn."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kit.recipe.base import Recipe
from kit.runs.prepare import prepare
from kit.system import console
from kit.system.console import TIMED_STEPS, Reporter, duration


@dataclass
class Window:
    loss_sum: float = 3.0
    steps: int = 2
    tokens: int = 100
    seconds: float = 0.1


def test_each_log_entry_is_a_line_with_a_time(capfd: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter()
    with reporter.training_progress(total=1200, done=1000) as progress:
        for _ in range(TIMED_STEPS):
            progress.advance(Window())
        progress.log(1.5, 1e-3, 12345.6)
    expected, line = capfd.readouterr().err.splitlines()
    assert expected.startswith(f"expected duration, from the first {TIMED_STEPS} steps: ")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  step 1,010/1,200 · loss 1\.500 · learning rate 1\.00e-03 · 12,346 tokens/s · "
        r".* left",
        line,
    )


def test_the_last_line_estimates_no_time(capfd: pytest.CaptureFixture[str]) -> None:
    with Reporter().training_progress(total=2, done=0) as progress:
        for _ in range(2):
            progress.advance(Window())
            progress.log(1.5, 1e-3, 12345.6)
    first, last = capfd.readouterr().err.splitlines()
    assert first.endswith(" left")
    assert last.endswith("  step 2/2 · loss 1.500 · learning rate 1.00e-03 · 12,346 tokens/s")


def test_a_slow_run_prints_a_line_before_the_first_entry(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr(console.time, "perf_counter", lambda: float(next(clock)))
    with Reporter().training_progress(total=100, done=0, unit="time steps") as progress:
        for _ in range(4):
            progress.advance(Window())
    lines = capfd.readouterr().err.splitlines()
    assert lines
    assert all(" · loss 1.500 · 1,000 time steps/s · " in line for line in lines)
    assert len(lines) < 4


@pytest.mark.parametrize(
    ("steps", "ending"),
    [
        ("train.max_steps=600", r", 600 steps in all \(\d{2,} epochs\)"),
        ("train.num_train_epochs=2", r", \d+ steps in all"),
    ],
)
def test_the_log_has_the_number_of_epochs(steps: str, ending: str, make_recipe: Callable[..., Recipe]) -> None:
    *_, batches = prepare(make_recipe("classification", overrides=[steps])).summary()
    assert re.search(f"{ending}$", batches), batches


def test_one_epoch_is_singular(make_recipe: Callable[..., Recipe]) -> None:
    steps = prepare(make_recipe("classification")).plan.steps_per_epoch
    *_, batches = prepare(make_recipe("classification", overrides=[f"train.max_steps={steps}"])).summary()
    assert batches.endswith(f", {steps} steps in all (1 epoch)")


def test_a_quiet_reporter_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with Reporter(quiet=True).training_progress(total=100, done=0) as progress:
        for _ in range(TIMED_STEPS):
            progress.advance(Window())
        progress.log(1.5, 1e-3, 12345.6)
    assert capfd.readouterr() == ("", "")


def test_no_duration_is_expected_of_a_run_that_ends_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with Reporter().training_progress(total=TIMED_STEPS, done=0) as progress:
        for _ in range(TIMED_STEPS):
            progress.advance(Window())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "less than a second"), (1.2, "1 second"), (61, "61 seconds"), (600, "10 minutes"), (9000, "2.5 hours")],
)
def test_durations_are_rounded(seconds: float, text: str) -> None:
    assert duration(seconds) == text
