"""Exceptions that the command line shows as one message, without a traceback, and hints at the nearest valid name.

Most are mistakes that the user can correct, and exit with code 2. An unreachable Hub exits with 3, because the same
command may succeed later.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar

MAX_LINE = 2000
"""Longest line of a message. Beyond that, the input is odd itself: a path of thousands of characters, or a table with
thousands of columns, whose names would bury the message."""
MAX_LINES = 50
"""Most lines of a message: a file that is not a recipe has a mistake in each of its lines."""


class KitError(Exception):
    """A mistake in the user's input: the message names it, what was expected, and the remedy."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str) -> None:
        # Quoted data in another encoding contains surrogates, which no terminal and no log file can encode.
        super().__init__(_shortened(message.encode("utf-8", "backslashreplace").decode()))


class RecipeError(KitError):
    """A recipe, or a `key=value` on the command line, that cannot be used."""


class DataError(KitError):
    """Data that is missing, unreadable or not what the recipe states."""


class MissingDataError(DataError):
    """Data that is not where the recipe locates it."""


class DataMistakes(DataError):
    """Mistakes in several splits or keys of the data, one per line."""

    def __init__(self, mistakes: Sequence[str], splits: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.splits = splits
        """The splits that the data has."""


class RunError(KitError):
    """A run or model folder that is missing, corrupt, in use, or of another recipe."""


class HubError(KitError):
    """A request that the Hub rejects: an invalid name, revision or metadata, or a token without permission."""


class NetworkError(KitError):
    """The Hub, or the connection to it, failed even after several attempts: nothing is wrong with the command."""

    exit_code: ClassVar[int] = 3


def _shortened(message: str) -> str:
    """The message without the middle of long lines, whose ends have the remedy, and without the last of many lines."""
    lines = message.split("\n")
    half = MAX_LINE // 2
    shown = [line if len(line) <= MAX_LINE else f"{line[:half]} … {line[-half:]}" for line in lines[:MAX_LINES]]
    return "\n".join([*shown, *([f"… and {len(lines) - MAX_LINES:,} more"] if len(lines) > MAX_LINES else [])])


def first_line(error: BaseException) -> str:
    """The first line of the message of an exception; its type if it has no message."""
    return str(error).strip().partition("\n")[0].rstrip() or type(error).__name__


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """A sentence with the valid name nearest to `name`, to append to a message; empty if none is near."""
    near = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f' Did you mean "{near[0]}"?' if near else ""
