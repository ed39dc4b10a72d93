"""The proof API: a named check on a model, and its result as a row of a table."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from rich.table import Table

from kit.errors import first_line
from kit.verify.subject import Subject


@dataclass(frozen=True)
class Check:
    """The result of one proof on one model, as `kit verify` prints it."""

    name: str
    description: str
    passed: bool
    figure: str  # the measurement, as text
    tolerance: float | None = None  # the largest difference that passes; None: must be exact


@dataclass(frozen=True)
class Outcome:
    """The result of a proof function: the fields of `Check` without those of the proof."""

    passed: bool
    figure: str
    tolerance: float | None = None


@dataclass(frozen=True)
class Proof:
    """An equivalence that users rely on, and how to test it on a model."""

    name: str
    description: str
    applies: Callable[[Subject], bool]
    run: Callable[[Subject], Outcome]

    def __call__(self, subject: Subject) -> Check:
        """Run the proof with a fixed random seed. An exception counts as a failure."""
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(subject.seed)
        try:
            outcome = self.run(subject)
        except Exception as error:
            outcome = Outcome(False, f"{type(error).__name__}: {first_line(error)}")
        finally:
            torch.set_rng_state(before)
        return Check(self.name, self.description, outcome.passed, outcome.figure, outcome.tolerance)


def proof(
    name: str, description: str, applies: Callable[[Subject], bool] = lambda subject: True
) -> Callable[[Callable[[Subject], Outcome]], Proof]:
    """Decorator that turns a function of a subject into a proof; `applies` selects the models it is about."""
    return lambda run: Proof(name, description, applies, run)


def equal_within(difference: float, tolerance: float, what: str) -> Outcome:
    """Passes if the difference is within the tolerance; NaN never is."""
    return Outcome(difference <= tolerance, f"{what} differ by {difference:.1e}", tolerance)


def max_or_nan(values: Iterable[float]) -> float:
    """The largest of these differences, or NaN if any is NaN, which `max` would ignore."""
    return float(torch.tensor([0.0, *values], dtype=torch.float64).max())


def table(checks: Iterable[Check]) -> Table:
    """The checks as a table for the terminal."""
    rows = Table(show_edge=False)
    for title in ("", "proof", "claim", "measured", "tolerance"):
        rows.add_column(title)
    for check in checks:
        mark = "[green]✓[/]" if check.passed else "[bold red]✗[/]"
        allowed = "" if check.tolerance is None else f"{check.tolerance:.0e}"
        rows.add_row(mark, check.name, check.description, check.figure.replace("[", r"\["), allowed)
    return rows
