"""Messages and progress on the terminal, from the main process only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class StepWindow(Protocol):
    """Sums over the most recent training steps, collected by the training loop."""

    loss_sum: Any
    steps: int
    tokens: int
    seconds: float


class TrainingBar:
    """A progress bar with loss and speed. It is drawn on a terminal only, never into a log file."""

    def __init__(self, progress: Progress, task: TaskID):
        self._progress, self._task = progress, task

    def advance(self, window: StepWindow) -> None:
        loss = float(window.loss_sum) / max(1, window.steps)
        speed = window.tokens / max(window.seconds, 1e-9)
        self._progress.update(self._task, advance=1, figures=f"loss {loss:.3f} · {speed:,.0f} tokens/s")


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
    def training_progress(self, total: int, done: int) -> Iterator[TrainingBar]:
        """Context manager: a progress bar over `total` training steps, of which a resumed run has completed `done`."""
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
        )
        with self._progress(*columns) as progress:
            yield TrainingBar(progress, progress.add_task("training", total=total, completed=done, figures=""))

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
