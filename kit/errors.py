"""Errors that a user can mend: each is shown as one message, without a traceback, and ends with exit code 2."""

import difflib
from collections.abc import Iterable


class KitError(Exception):
    """A mistake in what the user gave: the message names it, says what was expected and what to do."""


class RecipeError(KitError):
    """A recipe, or a `key=value` on the command line, that cannot be used."""


class DataError(KitError):
    """Data that is missing, unreadable or not what the recipe says."""


class RunError(KitError):
    """A run folder that is missing, broken, in use, or belongs to another recipe."""


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The nearest valid name as a sentence to end a message with, or nothing if none is near."""
    near = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f' Did you mean "{near[0]}"?' if near else ""
