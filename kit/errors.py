"""Errors that are shown as one message, without a traceback. Most are a user's to mend, and end with exit code 2; a Hub
that cannot be reached ends with 3, because the same command may succeed later."""

import difflib
from collections.abc import Iterable
from typing import ClassVar


class KitError(Exception):
    """A mistake in what the user gave: the message names it, says what was expected and what to do."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str) -> None:
        # Data in another encoding is quoted with stand-ins for its bytes that no terminal and no log can write.
        super().__init__(message.encode("utf-8", "backslashreplace").decode())


class RecipeError(KitError):
    """A recipe, or a `key=value` on the command line, that cannot be used."""


class DataError(KitError):
    """Data that is missing, unreadable or not what the recipe says."""


class RunError(KitError):
    """A run folder that is missing, broken, in use, or belongs to another recipe."""


class HubError(KitError):
    """Something that the Hub refuses: a name, a token without the right, a revision, metadata."""


class NetworkError(KitError):
    """The Hub, or the way to it, that failed even after several tries: nothing is wrong with the command."""

    exit_code: ClassVar[int] = 3


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The nearest valid name as a sentence to end a message with, or nothing if none is near."""
    near = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f' Did you mean "{near[0]}"?' if near else ""
