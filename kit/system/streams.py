"""Standard streams that whoever started the program has closed (`<&-`, `>&-`), for which Python has None."""

import os
import sys
from typing import Any


def open_closed_streams() -> None:
    """Put the null device in the place of closed streams, so that nothing fails that prints by the way."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their descriptors
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (for the whole program)


def is_closed(stream: Any) -> bool:
    """Whether a standard stream was closed; one that was redirected to the null device was not."""
    return stream is None or getattr(stream, "name", None) == os.devnull
