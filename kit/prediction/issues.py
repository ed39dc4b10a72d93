"""Problems with lines or rows: counted, and reported at the end with the numbers of the first few."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kit.errors import first_line

MAX_LISTED = 5
"""Line numbers that a message lists."""


class LineIssue(NamedTuple):
    """What is wrong with a line, and what was done about it."""

    problem: str
    remedy: str


NOT_UTF8 = LineIssue("had bytes that are not UTF-8", "read as \ufffd")
UNREADABLE_LINE = LineIssue("held nothing but control characters or broken bytes", "the output is empty")


def longer_than(limit: int, unit: str, remedy: str = "the rest was left out") -> LineIssue:
    """The issue of a line that was truncated."""
    return LineIssue(f"had more than {limit:,} {unit}", remedy)


@dataclass
class LineIssues:
    """Counts the lines with each issue and remembers the first ones."""

    noun: str = "line"
    _counts: dict[LineIssue, int] = field(default_factory=dict)
    _first: dict[LineIssue, list[int]] = field(default_factory=dict)
    _errors: dict[LineIssue, Exception] = field(default_factory=dict)

    def add(self, issue: LineIssue, line: int, error: Exception | None = None) -> None:
        """Count an issue of a line; lines are numbered from 1."""
        if error is not None:
            self._errors.setdefault(issue, error)
        self._counts[issue] = self._counts.get(issue, 0) + 1
        first = self._first.setdefault(issue, [])
        if len(first) < MAX_LISTED:
            first.append(line)

    def count(self, issue: LineIssue) -> int:
        """Number of lines with an issue."""
        return self._counts.get(issue, 0)

    def error(self, issue: LineIssue) -> str:
        """The first exception behind an issue, in one line; empty if there is none."""
        return describe_error(self._errors[issue]) if issue in self._errors else ""

    def messages(self) -> list[str]:
        """A sentence for each issue that occurred."""
        messages = []
        for issue, count in self._counts.items():
            numbers = ", ".join(f"{line:,}" for line in self._first[issue])
            plural = "s" * (count > 1 and not self.noun.endswith("s"))
            more = ", …" * (count > MAX_LISTED)
            cause = f" ({self.error(issue)})" if issue in self._errors else ""
            messages.append(
                f"{count:,} {self.noun}{plural} {issue.problem}{cause}, {issue.remedy}: "
                f"{self.noun}{plural} {numbers}{more}"
            )
        return messages


def describe_error(error: Exception) -> str:
    """An exception in one line, such as "RuntimeError: out of memory"."""
    line, name = first_line(error), type(error).__name__
    return name if line == name else f"{name}: {line}"
