"""Lines that could not be translated as they are: counted, and told at the end."""

from dataclasses import dataclass, field
from typing import NamedTuple


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


def reason(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
