"""Ctrl-C and SIGTERM. In the training loop, they stop the run after the current step, with a checkpoint; everywhere
else, they interrupt at once."""

import os
import signal
from types import FrameType
from typing import Any, NoReturn, Self


class Terminated(KeyboardInterrupt):
    """SIGTERM outside the training loop: it unwinds like Ctrl-C, so that temporary files are removed."""


def interrupt_on_sigterm() -> None:
    """Raise `Terminated` in the main thread on SIGTERM, which would end the process without a message."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    try:
        signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread
        return
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def exit_code(interruption: KeyboardInterrupt) -> int:
    """The exit code after Ctrl-C or SIGTERM, as shells define it."""
    return 128 + (signal.SIGTERM if isinstance(interruption, Terminated) else signal.SIGINT)


class StopSignals:
    """Context manager: inside the block, Ctrl-C and SIGTERM only set `received`; a second Ctrl-C raises
    KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received = 0
        """Number of the last signal, or 0."""

    def __enter__(self) -> Self:
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for number in self._handlers:
                signal.signal(number, self._note)
        except ValueError:  # only the main thread may set handlers; a notebook server can run kit in another
            self._handlers = {}
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
