"""Output of predictions: to standard output, or to a file that appears only when it is complete."""

import csv
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from kit.errors import KitError
from kit.system.json_files import json_value, to_json
from kit.system.outputs import atomic_write
from kit.system.streams import is_closed

WriteRow = Callable[[dict[str, Any]], None]


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """A text file that appears, or replaces an existing one, when the block ends without an exception; None stands for
    standard output, whose reader may stop early (`| head`)."""
    if path is None:
        if is_closed(sys.stdout):
            raise KitError("standard output is closed: name a file with --output")
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
        try:
            yield sys.stdout
        except BrokenPipeError:
            # Python flushes standard output at exit, which would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if path.exists() and not path.is_file() and not path.is_dir():  # a device or a pipe, which must not be replaced
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield file


def row_format(output: Path | None) -> str:
    """The format of an output file by its ending: ".csv" or ".jsonl", which is also that of standard output."""
    ending = ".jsonl" if output is None else output.suffix
    if ending not in (".csv", ".jsonl"):
        raise KitError(f"--output {output}: predictions are written as .csv or .jsonl")
    return ending


def row_writer(ending: str, file: TextIO, columns: Sequence[str]) -> WriteRow:
    """A function that writes a row as a JSON line or as csv, where lists and objects become JSON."""
    if ending == ".jsonl":
        return lambda row: print(to_json(row), file=file)
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()

    def write(row: dict[str, Any]) -> None:
        cells = json_value(row)
        writer.writerow(
            {name: to_json(cell) if isinstance(cell, list | dict) else cell for name, cell in cells.items()}
        )

    return write
