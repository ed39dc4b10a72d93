"""Ctrl-C and SIGTERM during training: the run stops after the current step, with a checkpoint."""

import signal
from types import FrameType
from typing import Any, Self


class StopSignals:
    """Context manager: notes Ctrl-C and SIGTERM inside the block; a second Ctrl-C raises KeyboardInterrupt."""

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
