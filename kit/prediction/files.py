"""Lines in, hypotheses out: the files around `kit generate`."""

import gzip
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

from kit.errors import DataError, RunError
from kit.prediction.bad_lines import FAILED, NOT_UTF8, BadLines, longer_than, reason
from kit.prediction.output import Output
from kit.system.console import Reporter
from kit.system.files import TEMPORARY_PREFIX

LONGEST_LINE = 2**20
"""Most bytes of a line that are kept."""

Translate = Callable[..., Iterable[list[Output]]]
"""`Translator.translate`, which is given the lines, where to note bad ones, and whom to tell how many are done."""


def translate_file(
    translate: Translate,
    source: Path | None,
    output: Path | None,
    write: Callable[[Iterable[list[Output]], TextIO], int],
    reporter: Reporter,
) -> None:
    """Translate a file, or standard input, into another that appears when it is complete, or to standard output.

    Lines that are no good are told at the end; if none could be translated, the model is to blame: RunError.
    """
    bad_lines = BadLines()
    total = None
    if source is not None and reporter.shows_progress:
        with reporter.status("counting lines"):
            total = count_lines(source)
    with (
        read_lines(source, bad_lines) as lines,
        writing(output) as file,
        reporter.progress("lines", total) as advance,
        ignoring_rest(),
    ):
        count = write(translate(lines, bad_lines=bad_lines, progress=advance), file)
        if count and bad_lines.count(FAILED) == count and bad_lines.error is not None:
            raise RunError(f"none of the {count:,} lines could be translated: {reason(bad_lines.error)}")
    for message in bad_lines.messages():
        reporter.print(message)


@contextmanager
def opened(path: Path | None) -> Iterator[IO[bytes]]:
    """A file, gz or not, or standard input; DataError where it turns out to be broken."""
    if path is None:
        yield sys.stdin.buffer
        return
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield stream  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}") from None


@contextmanager
def read_lines(path: Path | None, bad_lines: BadLines) -> Iterator[Iterator[str]]:
    """Lines of a file (gz or not) or of standard input; those that are no text, or very long, are read all the same."""
    with opened(path) as stream:
        yield decoded(raw_lines(stream, bad_lines), bad_lines)


def raw_lines(stream: IO[bytes], bad_lines: BadLines) -> Iterator[bytes]:
    """Lines without their ends, of which very long ones are cut, so that a file of one endless line is no danger."""
    number = 0
    while raw := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(raw) > LONGEST_LINE and not raw.endswith(b"\n"):
            bad_lines.add(longer_than(LONGEST_LINE, "bytes"), number)
            yield without_half_character(raw[:LONGEST_LINE])
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(LONGEST_LINE)
        else:
            yield raw.rstrip(b"\r\n")


def without_half_character(raw: bytes) -> bytes:
    """Bytes without the beginning of a UTF-8 character at their end, the rest of which was cut off."""
    for length in (1, 2, 3):
        if raw[-length] >= 0xC0:  # a first byte, which says how many follow
            follow = 1 if raw[-length] < 0xE0 else 2 if raw[-length] < 0xF0 else 3
            return raw[:-length] if follow >= length else raw
    return raw


def decoded(lines: Iterator[bytes], bad_lines: BadLines) -> Iterator[str]:
    """Lines as text, without the mark that some programs put at the beginning of a file."""
    for number, raw in enumerate(lines, start=1):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            bad_lines.add(NOT_UTF8, number)
            text = raw.decode("utf-8", errors="replace")
        yield text.removeprefix("\ufeff") if number == 1 else text


def count_lines(path: Path) -> int:
    """Number of lines of a file, gz or not."""
    count, last = 0, b"\n"
    with opened(path) as stream:
        while block := stream.read(2**20):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


@contextmanager
def writing(path: Path | None) -> Iterator[TextIO]:
    """A text file that takes its place when it is complete, or standard output."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)  # type: ignore[union-attr]
        yield sys.stdout
        return
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_outputs(outputs: Iterable[list[Output]], file: TextIO, details: bool, as_json: bool) -> int:
    """One text a line; with details tab-separated line, rank, score, finished, text; or JSON lines with all of it.

    Returns the number of lines that were translated.
    """
    number = 0
    for number, hypotheses in enumerate(outputs, start=1):
        for rank, found in enumerate(hypotheses, start=1):
            text = " ".join(found.text.splitlines())  # a line stays a line
            if as_json:
                row: dict[str, Any] = {
                    "line": number,
                    "rank": rank,
                    "text": found.text,
                    "score": found.score,
                    "finished": found.finished,
                }
                print(json.dumps(row, ensure_ascii=False), file=file)
            elif details:
                ended = "yes" if found.finished else "no"
                print(number, rank, f"{found.score:.6f}", ended, text, sep="\t", file=file)
            else:
                print(text, file=file)
    return number


@contextmanager
def ignoring_rest() -> Iterator[None]:
    """Stop quietly when whoever reads our output has read enough (`| head`)."""
    try:
        yield
    except BrokenPipeError:
        # what Python would still flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
