"""Standard streams: those that whoever started the program has closed, and characters that cannot be encoded."""

import io
import os
import sys
from typing import Any


def prepare_streams() -> None:
    """Let nothing fail that only prints.

    Closed streams (`<&-`, `>&-`), for which Python has None, become the null device. A character that the encoding of
    standard output lacks, such as an umlaut in ASCII or an undecodable byte of a path, is written as an escape.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their descriptors
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (for the whole program)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def is_closed(stream: Any) -> bool:
    """Whether a standard stream was closed; one that was redirected to the null device was not."""
    return stream is None or getattr(stream, "name", None) == os.devnull
