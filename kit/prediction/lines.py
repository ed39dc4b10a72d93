"""Lines of files and of standard input, however large or broken they are."""

import codecs
import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kit.errors import DataError
from kit.prediction.issues import NOT_UTF8, LineIssues, longer_than

MAX_LINE_BYTES = 2**20
"""Longer lines are truncated, so that a file with a single endless line does not fill the memory."""


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
        raise DataError(f"{path} is not a whole gzip file: {error}") from None


@contextmanager
def read_lines(path: Path | None, issues: LineIssues) -> Iterator[Iterator[str]]:
    """The lines of a file, gzipped or not, or of standard input; invalid bytes and very long lines are issues."""
    with open_bytes(path) as stream:
        yield decode_lines(split_lines(stream, issues), issues)


def split_lines(stream: IO[bytes], issues: LineIssues) -> Iterator[bytes]:
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
