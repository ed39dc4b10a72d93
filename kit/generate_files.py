"""Lines in, hypotheses out: the files around `kit generate`."""

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO

from kit.atomic import TEMPORARY
from kit.generate import Output
from kit.reporting import Reporter


@contextmanager
def read_lines(path: Path | None, reporter: Reporter) -> Iterator[Iterator[str]]:
    """Lines of a file (gz or not) or of standard input; one that is not UTF-8 is read all the same, and counted."""
    broken = 0

    def lines(stream: IO[bytes]) -> Iterator[str]:
        nonlocal broken
        for raw in stream:
            try:
                yield raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                broken += 1
                yield raw.decode("utf-8", errors="replace").rstrip("\r\n")

    if path is None:
        yield lines(sys.stdin.buffer)
    else:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield lines(stream)  # type: ignore[arg-type]
    if broken:
        reporter.say(f"{broken} line{'s' * (broken > 1)} had bytes that are not UTF-8: they were read as \ufffd")


@contextmanager
def writing(path: Path | None) -> Iterator[TextIO]:
    """A text file that takes its place when it is complete, or standard output."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)  # type: ignore[union-attr]
        yield sys.stdout
        return
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_outputs(
    outputs: Iterable[list[Output]], file: TextIO, details: bool, as_json: bool, advance: Callable[[], None]
) -> None:
    """One text a line; with details tab-separated line, rank, score, finished, text; or JSON lines with all of it."""
    for number, hypotheses in enumerate(outputs, start=1):
        for rank, found in enumerate(hypotheses, start=1):
            text = " ".join(found.text.splitlines())  # a line stays a line
            if as_json:
                row = {
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
        advance()


@contextmanager
def ignoring_rest() -> Iterator[None]:
    """Stop quietly when whoever reads our output has read enough (`| head`)."""
    try:
        yield
    except BrokenPipeError:
        # what Python would still flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
