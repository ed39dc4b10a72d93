"""Lines of files and of standard input, however large or broken they are."""

import codecs
import gzip
import os
import select
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kit.errors import DataError, KitError
from kit.prediction.engine import PAUSE, Pause
from kit.prediction.issues import NOT_UTF8, LineIssues, longer_than
from kit.system.streams import is_closed

MAX_LINE_BYTES = 2**20
"""Longer lines are truncated, so that a file with a single endless line does not fill the memory."""


PAUSE_SECONDS = 0.1
"""Without a new line for this long, a program that writes into a pipe waits for the output of what it has written. A
shorter pause would split the output of a program that is merely slow into small batches."""


class PipedInput:
    """The bytes of a pipe, with a buffer of its own: that of Python does not tell whether the next read waits."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._ended = False

    def readline(self, limit: int) -> bytes:
        """The next line with its end, at most `limit` bytes of it; empty at the end of the input."""
        while (end := self._buffer.find(b"\n", 0, limit)) < 0 and len(self._buffer) < limit and not self._ended:
            self._fill()
        size = end + 1 if end >= 0 else limit
        line = bytes(self._buffer[:size])
        del self._buffer[:size]
        return line

    def pauses(self) -> bool:
        """Whether no complete line is there, and none comes for a while."""
        while b"\n" not in self._buffer and not self._ended:
            if not select.select([self._descriptor], [], [], PAUSE_SECONDS)[0]:
                return True
            self._fill()
        return False

    def _fill(self) -> None:
        block = os.read(self._descriptor, 2**16)
        self._buffer += block
        self._ended = not block


def piped_input() -> PipedInput | None:
    """Standard input, if it is a pipe or a socket, whose writer may wait for output."""
    try:
        descriptor = sys.stdin.fileno()
        kind = os.fstat(descriptor).st_mode
    except (OSError, ValueError):  # replaced by a program, or closed
        return None
    return PipedInput(descriptor) if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) else None


def check_standard_input() -> None:
    """Raise DataError if standard input was closed, which is not an empty input."""
    if is_closed(sys.stdin):
        raise DataError("standard input is closed: name a file, or pipe text into the command")


def check_input(path: Path, remedy: str) -> None:
    """Raise KitError, which ends with the remedy, unless the path is a file."""
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "is a pipe or a device" if path.exists() else "does not exist"
        raise KitError(f"{path} {problem}: {remedy}")


@contextmanager
def open_bytes(path: Path | None) -> Iterator[IO[bytes]]:
    """A file, gzipped or not, or standard input. Raises DataError for a corrupt gzip file."""
    if path is None:
        yield sys.stdin.buffer
        return
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield stream  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from None


@contextmanager
def read_lines(path: Path | None, issues: LineIssues) -> Iterator[Iterator[str | Pause]]:
    """The lines of a file, gzipped or not, or of standard input; invalid bytes and very long lines are issues.

    Where a pipe pauses, so that what has been read can be processed, there is a `Pause` after a line.
    """
    if path is None:
        check_standard_input()
    if path is None and (piped := piped_input()) is not None:
        yield lines_and_pauses(piped, issues)
        return
    with open_bytes(path) as stream:
        yield decode_lines(split_lines(stream, issues), issues)


def lines_and_pauses(piped: PipedInput, issues: LineIssues) -> Iterator[str | Pause]:
    """The lines of a pipe, and its pauses."""
    for line in decode_lines(split_lines(piped, issues), issues):
        yield line
        if piped.pauses():
            yield PAUSE


def split_lines(stream: IO[bytes] | PipedInput, issues: LineIssues) -> Iterator[bytes]:
    """Lines without their ends, truncated to `MAX_LINE_BYTES`."""
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
            issues.add(longer_than(MAX_LINE_BYTES, "bytes"), number)
            _, complete = codecs.utf_8_decode(raw[:MAX_LINE_BYTES], "replace", False)  # bytes of whole characters
            yield raw[:complete]
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(MAX_LINE_BYTES)
        else:
            yield raw.rstrip(b"\r\n")


def decode_lines(lines: Iterator[bytes], issues: LineIssues) -> Iterator[str]:
    """Lines as text, without a byte order mark at the beginning."""
    for number, raw in enumerate(lines, start=1):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            issues.add(NOT_UTF8, number)
            text = raw.decode("utf-8", errors="replace")
        yield text.removeprefix("\ufeff") if number == 1 else text


def count_lines(path: Path) -> int:
    """Number of lines of a file, gzipped or not."""
    count, last = 0, b"\n"
    with open_bytes(path) as stream:
        while block := stream.read(2**20):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")
