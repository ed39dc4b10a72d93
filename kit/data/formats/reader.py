"""Local files to tables of columns: parallel text, tsv, csv, json lines, parquet, txt, CoNLL columns, SQuAD JSON and
arrays of numpy, each plain or as .gz.

What cannot be used is left out and counted by reason (undecodable rows, blank lines between rows); what points to a
mistake in the file (a row with a column too many, files of different length, broken JSON) is refused with its line.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa

from kit.data.formats.lines import SURROGATE, DecodingCheck, read_lines, strip_line_end
from kit.data.formats.npz import read_npz
from kit.data.formats.parquet import read_parquet
from kit.data.formats.tables import ObjectBuilder, TableBuilder, check_names
from kit.errors import DataError
from kit.recipe.inputs import OF_CELLS

EXTENSIONS = ("tsv", "csv", "jsonl", "json", "parquet", "txt", "conll", "npz")
UNDECODABLE = "undecodable"
BLANK = "blank line"
QUOTED = "a cell in quotation marks, which are read as a part of it (else set data.quoting: true)"
CSV_CELL = re.compile(r'"([^"]|"")*"')

Lines = Iterator[tuple[int, str]]
"""Lines of a file with their numbers, counted from 1."""


@dataclass(frozen=True)
class Layout:
    """What a recipe says about the inside of files."""

    columns: list[str] | None = None
    delimiter: str | None = None
    quoting: bool | None = None
    encoding: str = "utf-8"

    @property
    def of_cells(self) -> list[str]:
        """The keys that are given and are about files whose lines have to be cut into cells."""
        return [name for name in OF_CELLS if getattr(self, name) is not None]


@dataclass
class FileTable:
    """The usable rows of a file, and how many others there were, by reason."""

    table: pa.Table
    dropped: Counter[str] = field(default_factory=Counter)
    flagged: Counter[str] = field(default_factory=Counter)
    """Rows that are in the table but worth knowing about, by what they have."""


def file_extension(path: Path) -> str:
    """The ending that says what is in a file: "tsv" for a.tsv and for a.tsv.gz."""
    return Path(path.name.removesuffix(".gz")).suffix.removeprefix(".")


@dataclass
class RowStream:
    """The usable rows of text files, one after the other, and how many others there were so far, by reason."""

    rows: Iterator[tuple[Any, ...]]
    """What `builder().add` takes, row by row."""

    builder: Callable[[], TableBuilder | ObjectBuilder]
    files: list[DecodingCheck]
    dropped: Counter[str]
    flagged: Counter[str] = field(default_factory=Counter)
    """Rows that are there but worth knowing about, by what they have."""

    def take(self, most: int | None = None) -> TableBuilder | ObjectBuilder:
        """The next rows, or all that are left."""
        builder = self.builder()
        for row in islice(self.rows, most):
            builder.add(*row)
        return builder


def read_table(path: Path, layout: Layout) -> FileTable:
    """Read a file by its ending. Raises DataError, with the line where there is one, if it is not what it should be."""
    # Imported here, since these two take from this file what a table and a layout are.
    from kit.data.formats.conll import read_conll
    from kit.data.formats.squad import is_squad, read_squad

    ending = check_extension(path, layout)
    if ending == "parquet":
        table, decoding = read_parquet(path)
        return finish([decoding], lambda: table, Counter({UNDECODABLE: decoding.undecodable}))
    if ending == "npz":
        table, decoding = read_npz(path)
        return finish([decoding], lambda: table, Counter())
    if ending == "conll":
        return read_conll(path, layout)
    if ending == "json" and is_squad(path):
        return read_squad(path, layout)
    rows = open_rows(path, layout, numbered_lines(path, layout), may_be_list=ending == "json")
    found = finish(rows.files, rows.take().table, rows.dropped)
    found.flagged += rows.flagged
    return found


def read_parallel(files: dict[str, Path], layout: Layout) -> FileTable:
    """Files, by the names of their columns, of which line n of each is the translation of line n of the others."""
    rows = open_parallel(files, layout, [numbered_lines(path, layout) for path in files.values()])
    return finish(rows.files, rows.take().table, rows.dropped)


def numbered_lines(path: Path, layout: Layout) -> Lines:
    return enumerate(read_lines(path, layout.encoding), 1)


def check_extension(path: Path, layout: Layout) -> str:
    """The ending of a file. Raises DataError if there is no reader for it, or none by this layout."""
    ending = file_extension(path)
    if ending not in EXTENSIONS:
        raise DataError(
            f"{path}: kit reads files that end in {', '.join(EXTENSIONS)} (and .gz), not in {ending or 'nothing'}."
        )
    if ending in ("parquet", "json", "jsonl", "npz") and (given := layout.of_cells):
        raise DataError(f"data.{given[0]} has no meaning for {path}: its columns have names in the file. Remove it.")
    if ending in ("parquet", "npz") and layout.encoding != "utf-8":
        raise DataError(f"data.encoding has no meaning for {path}: text in {ending} files is utf-8. Remove it.")
    if ending == "txt" and layout.delimiter is None and (given := layout.of_cells):
        raise DataError(f'data.{given[0]} has no meaning for {path}: without data.delimiter it is one column, "text".')
    if ending == "conll" and layout.quoting is not None:
        raise DataError(f"data.quoting has no meaning for {path}: there a quotation mark is a word. Remove it.")
    return ending


def open_rows(path: Path, layout: Layout, lines: Lines, may_be_list: bool = False) -> RowStream:
    """The rows in the lines of a text file; the line that names the columns, if it has one, is taken at once."""
    ending, decoding = file_extension(path), DecodingCheck(path, layout.encoding)
    dropped, flagged = Counter[str](), Counter[str]()
    if ending == "conll":
        raise DataError(f"{path}: CoNLL columns can only be read as a whole. Leave out data.streaming.")
    if ending == "npz":
        raise DataError(f"{path}: arrays of numpy can only be read as a whole. Leave out data.streaming.")
    if ending in ("json", "jsonl"):
        entries = usable_entries(json_rows(path, lines, may_be_list), decoding, dropped)
        return RowStream(entries, partial(ObjectBuilder, path), [decoding], dropped)
    rows: Iterator[tuple[int, list[str]]]
    advice = ""
    if ending == "txt" and layout.delimiter is None:
        columns, rows = ["text"], ((number, [strip_line_end(line)]) for number, line in lines)
    else:
        delimiter = layout.delimiter or ("," if ending == "csv" else "\t")
        quoting = ending == "csv" if layout.quoting is None else layout.quoting
        rows = quoted_rows(path, lines, delimiter) if quoting else plain_rows(lines, delimiter)
        columns = layout.columns or header_of(decoding, rows)
        if layout.quoting is None and not quoting:
            rows = counting_quoted(rows, flagged)
            advice = " If cells can stand in quotation marks, set data.quoting: true."
    if repeated := [name for name, times in Counter(columns).items() if times > 1]:
        raise DataError(
            f'{path}: the column "{repeated[0]}" is there twice. Give the columns different names (data.columns).'
        )
    expected = f"{'data.columns names' if layout.columns else 'its first line has'} {len(columns)}"
    usable = usable_rows(rows, columns, decoding, dropped, f"{expected} ({', '.join(columns)})", advice)
    return RowStream(usable, partial(TableBuilder, columns), [decoding], dropped, flagged)


def plain_rows(lines: Lines, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and columns, cut at every delimiter: a quotation mark is a character as any other."""
    for number, line in lines:
        yield number, strip_line_end(line).split(delimiter)


def counting_quoted(rows: Iterator[tuple[int, list[str]]], noted: Counter[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows as they are; those are counted that have a cell as csv would quote it."""
    for number, row in rows:
        noted[QUOTED] += any(CSV_CELL.fullmatch(cell) is not None for cell in row)
        yield number, row


def quoted_rows(path: Path, lines: Lines, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and columns of csv: what stands in double quotes may hold delimiters and line ends."""
    if len(delimiter) != 1:
        raise DataError(
            f"data.delimiter: where cells can be quoted, columns are separated by one character, not {delimiter!r}. If "
            f"nothing is quoted in {path}, set data.quoting: false."
        )
    numbers = [0]  # of the lines of the row that is being read

    def texts() -> Iterator[str]:
        for number, line in lines:
            numbers.append(number)
            yield line

    # Strict, since a quotation mark that is never closed would otherwise swallow the rest of the file.
    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        del numbers[:-1]
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}, line {numbers[-1]}: {error}. The row starts at line {numbers[1]}; look for a quotation "
                "mark that is not closed or not doubled. For a file that does not quote cells set data.quoting: false."
            ) from error
        yield numbers[1], row or [""]


def header_of(decoding: DecodingCheck, rows: Iterator[tuple[int, list[str]]]) -> list[str]:
    """The names of the columns in the first row."""
    columns = [name.strip() for name in next(rows, (1, []))[1]]
    if SURROGATE.search("".join(columns)):
        raise DataError(
            f"{decoding.path}, line 1: the names of the columns are not in {decoding.encoding}. Set data.encoding."
        )
    return columns


def usable_rows(
    rows: Iterator[tuple[int, list[str]]],
    columns: Sequence[str],
    decoding: DecodingCheck,
    dropped: Counter[str],
    expected: str,
    advice: str = "",
) -> Iterator[tuple[list[str]]]:
    """Rows of as many cells as there are columns."""
    for line, row in rows:
        if row == [""] and len(columns) > 1:
            dropped[BLANK] += 1
        elif len(row) != len(columns):
            raise DataError(f"{decoding.path}, line {line}: {len(row)} columns where {expected}.{advice}")
        elif decoding.count("\n".join(row), line):
            yield (row,)
        else:
            dropped[UNDECODABLE] += 1


def open_parallel(files: dict[str, Path], layout: Layout, sides: Sequence[Lines]) -> RowStream:
    """The rows in the lines of parallel text."""
    decodings, dropped = [DecodingCheck(path, layout.encoding) for path in files.values()], Counter[str]()
    return RowStream(parallel_rows(sides, decodings, dropped), partial(TableBuilder, list(files)), decodings, dropped)


def parallel_rows(
    sides: Sequence[Lines], decodings: list[DecodingCheck], dropped: Counter[str]
) -> Iterator[tuple[list[str]]]:
    """A row for each number that all sides have a line of; they must have equally many."""
    lengths = [0] * len(decodings)
    for lines in zip_longest(*sides):
        lengths = [length if line is None else line[0] for length, line in zip(lengths, lines, strict=True)]
        if None in lines:
            continue
        row = [strip_line_end(text) for _, text in lines]
        usable = [decoding.count(text, number) for decoding, text, number in zip(decodings, row, lengths, strict=True)]
        if all(usable):
            yield (row,)
        else:
            dropped[UNDECODABLE] += 1
    for decoding, length in zip(decodings, lengths, strict=True):
        if length != lengths[0]:
            raise DataError(
                f"{decodings[0].path} has {lengths[0]} lines and {decoding.path} has {length}: in parallel text, line "
                "belongs to line."
            )


def usable_entries(
    entries: Iterator[tuple[int, str | None, Any]], decoding: DecodingCheck, dropped: Counter[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects, with their places; a key that an object does not have is a missing value."""
    for place, text, entry in entries:
        if text is None:
            dropped[BLANK] += 1
        elif not isinstance(entry, dict):
            raise DataError(
                f"{decoding.path}, row {place}: expected an object with the columns as keys, got {text.strip()[:40]}."
            )
        elif decoding.count(text, place):
            yield place, entry
        else:
            dropped[UNDECODABLE] += 1


def json_rows(path: Path, lines: Lines, may_be_list: bool) -> Iterator[tuple[int, str | None, Any]]:
    """Place, text and value of each row of JSON lines, or of one list of objects; blank lines without text.

    An escape can hide half a character in plain ASCII, so that the text of a row with escapes is written anew without
    them."""
    for number, line in lines:
        if not line.strip():
            yield number, None, None
        elif may_be_list and line.lstrip().startswith("["):
            whole = line + "".join(rest for _, rest in lines)
            for place, entry in enumerate(parse_json(path, whole, number), 1):
                yield place, json.dumps(entry, ensure_ascii=False), entry
        else:
            may_be_list = False
            entry = parse_json(path, line, number)
            yield number, json.dumps(entry, ensure_ascii=False) if "\\u" in line else line, entry


def parse_json(path: Path, text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1}, column {error.colno}"
        raise DataError(f"{path}, {where}: this is not JSON ({error.msg}). Each line must be one object.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {line}: this JSON cannot be read ({error}).") from error


def finish(files: Sequence[DecodingCheck], table: Callable[[], pa.Table], dropped: Counter[str]) -> FileTable:
    """The table, if there is one to be had."""
    if files[-1].rows == 0:
        raise DataError(f"{files[-1].path} holds no rows.")
    for decoding in files:
        decoding.check()
    read = table()
    check_names(read, files[-1].path)
    return FileTable(read, +dropped)
