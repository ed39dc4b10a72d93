"""Lines that could not be translated as they are: counted, and told at the end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from kit.errors import KitError

T = TypeVar("T")


class Fault(NamedTuple):
    """What was wrong with a line, and what was done about it."""

    what: str
    remedy: str


NOT_UTF8 = Fault("had bytes that are not UTF-8", "read as \ufffd")
NOTHING = Fault("held nothing but control characters or broken bytes", "the output is empty")
FAILED = Fault("could not be translated", "the output is empty")

SHOWN = 5


def longer_than(limit: int, unit: str) -> Fault:
    """A line of which the end was not read."""
    return Fault(f"had more than {limit:,} {unit}", "the rest was left out")


@dataclass
class BadLines:
    """How many lines had which fault, and which were the first."""

    _counts: dict[Fault, int] = field(default_factory=dict)
    _first: dict[Fault, list[int]] = field(default_factory=dict)
    error: Exception | None = None
    """Why the first of those that could not be translated could not."""

    def add(self, fault: Fault, line: int, error: Exception | None = None) -> None:
        """Note the fault of a line, counted from 1."""
        self.error = self.error or error
        self._counts[fault] = self._counts.get(fault, 0) + 1
        first = self._first.setdefault(fault, [])
        if len(first) < SHOWN:
            first.append(line)

    def count(self, fault: Fault) -> int:
        """Number of lines that had a fault."""
        return self._counts.get(fault, 0)

    def messages(self) -> list[str]:
        """A sentence for each fault that occurred."""
        told = []
        for fault, count in self._counts.items():
            numbers = ", ".join(f"{line:,}" for line in self._first[fault])
            which = f"line {numbers}" if count == 1 else f"lines {numbers}{', …' if count > SHOWN else ''}"
            why = f" ({reason(self.error)})" if fault == FAILED and self.error else ""
            told.append(f"{count:,} line{'s' * (count > 1)} {fault.what}{why}, {fault.remedy}: {which}")
        return told


def in_halves(
    indices: np.ndarray, work: Callable[[np.ndarray], Sequence[T]], raising: bool
) -> Iterator[tuple[int, T | Exception]]:
    """What `work` makes of each index of a batch. A batch that fails, most likely for want of memory, is tried again in
    halves, down to those that fail: they get their error. With `raising`, and for what a user did wrong, it is raised.
    """
    found: Sequence[T] | Exception
    try:
        found = work(indices)
    except Exception as error:
        if raising or isinstance(error, KitError):
            raise
        found = error.with_traceback(None)  # without its frames, which would hold what filled the memory
    if not isinstance(found, Exception):
        yield from zip(indices.tolist(), found, strict=True)
    elif len(indices) == 1:
        yield int(indices[0]), found
    else:
        for half in np.array_split(indices, 2):
            yield from in_halves(half, work, raising)


def reason(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
