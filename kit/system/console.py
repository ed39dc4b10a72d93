"""Messages and progress on the terminal, from the main process only."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

TIMED_STEPS = 10
"""Number of steps after which the duration of a run is estimated, unless it was before."""
MAX_SILENCE = 60.0
"""In seconds. Where no bar is drawn, a line appears after so long even if `train.logging_steps` have not passed: nobody
knows otherwise whether a slow machine is still at work."""


def duration(seconds: float) -> str:
    """A rough duration in a suitable unit."""
    if seconds < 1:
        return "less than a second"
    if seconds < 100:
        return counted(round(seconds), "second")
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def counted(count: int, noun: str) -> str:
    """A number of things: "1 row", "1,040 rows"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


class StepWindow(Protocol):
    """Sums over the most recent training steps, collected by the training loop."""

    loss_sum: Any
    steps: int
    tokens: int
    seconds: float


class TrainingProgress:
    """Progress of training: a bar on a terminal, a line for each log entry anywhere else."""

    def __init__(
        self,
        reporter: "Reporter",
        progress: Progress,
        task: TaskID,
        total: int,
        done: int,
        unit: str,
        expected: float | None,
    ):
        self._reporter, self._progress, self._task, self._unit = reporter, progress, task, unit
        self._total, self._done, self._first = total, done, done
        self._began = self._printed = time.perf_counter()
        self._is_estimated = expected is not None
        if expected is not None:
            reporter.print(f"expected duration: {duration(expected)}, plus evaluations")

    def advance(self, window: StepWindow) -> None:
        """A step is done."""
        self._done += 1
        loss = window.loss_sum / max(1, window.steps)
        speed = window.tokens / max(window.seconds, 1e-9)
        self._progress.update(self._task, advance=1, figures=f"loss {loss:.3f} · {speed:,.0f} {self._unit}/s")
        if not self._is_estimated and self._done - self._first == TIMED_STEPS < self._total - self._first:
            left = duration(self._seconds_left())
            self._reporter.print(f"expected duration, from the first {TIMED_STEPS} steps: {left}, plus evaluations")
        if time.perf_counter() - self._printed > MAX_SILENCE:
            self._print(f"loss {loss:.3f} · {speed:,.0f} {self._unit}/s")

    def log(self, loss: float, learning_rate: float, tokens_per_second: float) -> None:
        """Figures of the steps since the last entry."""
        self._print(f"loss {loss:.3f} · learning rate {learning_rate:.2e} · {tokens_per_second:,.0f} {self._unit}/s")

    def _print(self, figures: str) -> None:
        """A line with the time, where no bar is drawn."""
        self._printed = time.perf_counter()
        if not self._reporter.shows_progress:
            step = f"{datetime.now():%Y-%m-%d %H:%M:%S}  step {self._done:,}/{self._total:,}"
            left = f" · {duration(self._seconds_left())} left" if self._done < self._total else ""
            self._reporter.print(f"{step} · {figures}{left}")

    def _seconds_left(self) -> float:
        return (time.perf_counter() - self._began) / max(1, self._done - self._first) * (self._total - self._done)


class Reporter:
    """Prints messages and progress, or nothing at all if `quiet`."""

    def __init__(self, quiet: bool = False):
        # stderr, so that the output of a command can be piped
        self.console = Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False)

    def print(self, message: str) -> None:
        self.console.print(message, markup=False)

    @property
    def shows_progress(self) -> bool:
        """Whether progress is drawn: on a terminal, but not in a log file."""
        return self.console.is_terminal and not self.console.quiet

    def _progress(self, *columns: Any) -> Progress:
        return Progress(*columns, console=self.console, transient=True, disable=not self.shows_progress)

    @contextmanager
    def training_progress(
        self, total: int, done: int, unit: str = "tokens", expected: float | None = None
    ) -> Iterator[TrainingProgress]:
        """Context manager: progress over `total` training steps, of which a resumed run has completed `done`; speed is
        measured in `unit`.

        The `expected` seconds of the remaining steps are printed first; if they are not known, after TIMED_STEPS.
        """
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
        )
        with self._progress(*columns) as progress:
            task = progress.add_task("training", total=total, completed=done, figures="")
            yield TrainingProgress(self, progress, task, total, done, unit, expected)

    @contextmanager
    def status(self, what: str) -> Iterator[None]:
        """Context manager: a spinner for work of unknown length."""
        if not self.shows_progress:
            yield
            return
        with self.console.status(what):
            yield

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Any]:
        """A progress bar for countable work; yields the function that advances it."""
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with self._progress(*columns) as progress:
            task = progress.add_task(what, total=total)
            yield lambda n=1: progress.update(task, advance=n)
