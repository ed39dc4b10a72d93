"""What a person sees while kit works: messages and progress, from the main process only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class StepWindow(Protocol):
    """Figures of the last steps, as the training loop collects them."""

    loss_sum: Any
    steps: int
    tokens: int
    seconds: float


class TrainingBar:
    """A progress bar with the loss and the speed; on a terminal it moves, in a log file it is silent."""

    def __init__(self, progress: Progress, task: TaskID):
        self._progress, self._task = progress, task

    def advance(self, window: StepWindow) -> None:
        loss = float(window.loss_sum) / max(1, window.steps)
        speed = window.tokens / max(window.seconds, 1e-9)
        self._progress.update(self._task, advance=1, figures=f"loss {loss:.3f} · {speed:,.0f} tokens/s")


class Reporter:
    """Talks to the person at the terminal, or to nobody (`quiet`)."""

    def __init__(self, quiet: bool = False):
        # messages go to stderr, so that what a command produces can be piped
        self.console = Console(stderr=True, quiet=quiet, soft_wrap=True, highlight=False)

    def print(self, message: str) -> None:
        self.console.print(message, markup=False)

    @property
    def shows_progress(self) -> bool:
        """Whether anybody sees progress: on a terminal, but not in a log file."""
        return self.console.is_terminal and not self.console.quiet

    def _progress(self, *columns: Any) -> Progress:
        return Progress(*columns, console=self.console, transient=True, disable=not self.shows_progress)

    @contextmanager
    def training_progress(self, total: int, done: int) -> Iterator[TrainingBar]:
        """A bar over the steps of a training."""
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
        """A sign of life for work that cannot be counted."""
        if not self.shows_progress:
            yield
            return
        with self.console.status(what):
            yield

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Any]:
        """A bar for anything else that is counted: yields a function to advance it."""
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with self._progress(*columns) as progress:
            task = progress.add_task(what, total=total)
            yield lambda n=1: progress.update(task, advance=n)
