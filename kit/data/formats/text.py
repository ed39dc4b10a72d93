"""Rows of text files: parallel text, tsv, csv, plain text and JSON, whole or from any line on.

Rows that cannot be used are dropped and counted by reason (undecodable, blank). What indicates a mistake in the file,
such as a row with too many columns, parallel files of different length or invalid JSON, raises DataError with its line.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from kit.data.formats.layout import Layout, file_extension
from kit.data.formats.lines import SURROGATE, DecodingCheck, read_lines, strip_line_end
from kit.data.formats.tables import (
    BLANK,
    UNDECODABLE,
    FileTable,
    ObjectTableBuilder,
    StringTableBuilder,
    checked_table,
)
from kit.errors import DataError

csv.field_size_limit(2**31 - 1)
"""A cell may hold a whole document. Python's default limit of 131,072 characters is that of the process, and so is
this; it is the largest that a C long has on every system."""

QUOTED = "a cell in quotation marks, which are kept as text (otherwise set data.quoting: true)"
CSV_CELL = re.compile(r'"([^"]|"")*"')

Lines = Iterable[tuple[int, str]]
"""Lines of a file with their numbers, counted from 1."""
Cells = Iterator[tuple[int, list[str]]]
"""Rows as cells, with the number of their first line."""


@dataclass
class RowStream:
    """The usable rows of text files in order, and the number of the others so far, by reason."""

    rows: Iterator[tuple[Any, ...]]
    """Arguments of `builder().add`, row by row."""

    builder: Callable[[], StringTableBuilder | ObjectTableBuilder]
    checks: list[DecodingCheck]
    """One per file."""
    dropped: Counter[str]
    flagged: Counter[str] = field(default_factory=Counter)
    """Usable rows that are worth a note, counted by what is unusual about them."""

    def take(self, count: int | None = None) -> StringTableBuilder | ObjectTableBuilder:
        """The next `count` rows, or all that are left."""
        builder = self.builder()
        for row in islice(self.rows, count):
            builder.add(*row)
        return builder

    def read(self) -> FileTable:
        """Read all rows into a table. Raises DataError if a file as a whole cannot be decoded, or has no rows."""
        builder = self.take()
        return checked_table(self.checks, builder.table, self.dropped, self.flagged)


def read_delimited(path: Path, layout: Layout) -> FileTable:
    """The rows of a tsv, csv or txt file."""
    return open_delimited(path, layout, numbered_lines(path, layout)).read()


def read_json_rows(path: Path, layout: Layout, may_be_list: bool = False) -> FileTable:
    """The objects of a file of JSON lines, or of one JSON list if that is allowed."""
    return open_json(path, layout, numbered_lines(path, layout), may_be_list).read()


def read_parallel(files: dict[str, Path], layout: Layout) -> FileTable:
    """Parallel text: files by column name, in which equal line numbers are translations of each other."""
    return open_parallel(files, layout, [numbered_lines(path, layout) for path in files.values()]).read()


def numbered_lines(path: Path, layout: Layout) -> Lines:
    return enumerate(read_lines(path, layout.encoding), 1)


# ---- lines of cells --------------------------------------------------------------------------------------------------


def open_delimited(path: Path, layout: Layout, lines: Lines) -> RowStream:
    """The rows in the lines of a tsv, csv or txt file. The header line, if there is one, is consumed at once."""
    check, dropped, flagged = DecodingCheck(path, layout.encoding), Counter[str](), Counter[str]()
    extension = file_extension(path)
    rows: Cells
    advice = ""
    if extension == "txt" and layout.delimiter is None:
        columns, rows = ["text"], ((number, [strip_line_end(line)]) for number, line in lines)
    else:
        delimiter = layout.delimiter or ("," if extension == "csv" else "\t")
        quoting = extension == "csv" if layout.quoting is None else layout.quoting
        rows = quoted_rows(path, lines, delimiter) if quoting else plain_rows(lines, delimiter)
        columns = layout.columns or read_header(check, rows)
        if layout.quoting is None and not quoting:
            rows = flag_quoted(rows, flagged)
            advice = " If cells can be quoted, set data.quoting: true."
    if repeated := [name for name, count in Counter(columns).items() if count > 1]:
        raise DataError(f'{path}: there are two columns "{repeated[0]}". Give them different names (data.columns).')
    expected = f"{'data.columns names' if layout.columns else 'its first line has'} {len(columns)}"
    usable = usable_rows(rows, columns, check, dropped, f"{expected} ({', '.join(columns)})", advice)
    return RowStream(usable, partial(StringTableBuilder, columns), [check], dropped, flagged)


def plain_rows(lines: Lines, delimiter: str) -> Cells:
    """Lines split at every delimiter: quotation marks are ordinary characters."""
    for number, line in lines:
        yield number, strip_line_end(line).split(delimiter)


def flag_quoted(rows: Cells, flagged: Counter[str]) -> Cells:
    """Yield the rows unchanged, and count those with a cell that csv would treat as quoted."""
    for number, row in rows:
        flagged[QUOTED] += any(CSV_CELL.fullmatch(cell) is not None for cell in row)
        yield number, row


def quoted_rows(path: Path, lines: Lines, delimiter: str) -> Cells:
    """Rows of csv: cells in double quotes may contain delimiters and line breaks."""
    if len(delimiter) != 1:
        raise DataError(
            f"data.delimiter: with quoted cells, the delimiter must be one character, not {delimiter!r}. If nothing is "
            f"quoted in {path}, set data.quoting: false."
        )
    numbers = [0]  # line numbers of the row being read, after that of the last line before it

    def texts() -> Iterator[str]:
        for number, line in lines:
            numbers.append(number)
            yield line

    # Strict: a quotation mark that is never closed would otherwise swallow the rest of the file.
    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        del numbers[:-1]
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}, line {numbers[-1]}: {error}. The row starts at line {numbers[1]}; look for a quotation mark "
                "that is not closed or not doubled. If the file does not quote cells, set data.quoting: false."
            ) from error
        yield numbers[1], row or [""]


def read_header(check: DecodingCheck, rows: Cells) -> list[str]:
    """The column names in the first row."""
    columns = [name.strip() for name in next(rows, (1, []))[1]]
    if SURROGATE.search("".join(columns)):
        raise DataError(f"{check.path}, line 1: the column names are not in {check.encoding}. Set data.encoding.")
    return columns


def usable_rows(
    rows: Cells,
    columns: Sequence[str],
    check: DecodingCheck,
    dropped: Counter[str],
    expected: str,
    advice: str = "",
) -> Iterator[tuple[list[str]]]:
    """The decodable rows. Raises DataError, with the line, for a row with more or fewer cells than columns."""
    for line, row in rows:
        if row == [""] and len(columns) > 1:
            dropped[BLANK] += 1
        elif len(row) != len(columns):
            raise DataError(f"{check.path}, line {line}: {len(row)} columns where {expected}.{advice}")
        elif check.count("\n".join(row), line):
            yield (row,)
        else:
            dropped[UNDECODABLE] += 1


# ---- parallel text ---------------------------------------------------------------------------------------------------


def open_parallel(files: dict[str, Path], layout: Layout, sides: Sequence[Lines]) -> RowStream:
    """The rows in the lines of parallel text."""
    checks, dropped = [DecodingCheck(path, layout.encoding) for path in files.values()], Counter[str]()
    return RowStream(parallel_rows(sides, checks, dropped), partial(StringTableBuilder, list(files)), checks, dropped)


def parallel_rows(
    sides: Sequence[Lines], checks: list[DecodingCheck], dropped: Counter[str]
) -> Iterator[tuple[list[str]]]:
    """A row for each line number. Raises DataError if the files have different numbers of lines."""
    lengths = [0] * len(checks)
    for lines in zip_longest(*sides):
        lengths = [length if line is None else line[0] for length, line in zip(lengths, lines, strict=True)]
        if None in lines:
            continue  # read on, to report both lengths
        row = [strip_line_end(text) for _, text in lines]
        usable = [check.count(text, number) for check, text, number in zip(checks, row, lengths, strict=True)]
        if all(usable):
            yield (row,)
        else:
            dropped[UNDECODABLE] += 1
    for check, length in zip(checks, lengths, strict=True):
        if length != lengths[0]:
            raise DataError(
                f"{checks[0].path} has {lengths[0]} lines and {check.path} has {length}: parallel text needs the same "
                "number of lines in every file."
            )


# ---- JSON ------------------------------------------------------------------------------------------------------------


def open_json(path: Path, layout: Layout, lines: Lines, may_be_list: bool = False) -> RowStream:
    """The objects in JSON lines, or in one JSON list if that is allowed."""
    check, dropped = DecodingCheck(path, layout.encoding), Counter[str]()
    entries = usable_objects(json_entries(path, lines, may_be_list), check, dropped)
    return RowStream(entries, partial(ObjectTableBuilder, path), [check], dropped)


def json_entries(path: Path, lines: Lines, may_be_list: bool) -> Iterator[tuple[int, str | None, Any]]:
    """Yield the number, text and parsed value of each entry; text and value are None for a blank line.

    An escape such as \\ud83d can hide half of a surrogate pair in ASCII, so the text of entries with escapes is
    serialized again without them: the check for undecodable rows then sees it.
    """
    for number, line in lines:
        if not line.strip():
            yield number, None, None
        elif may_be_list and line.lstrip().startswith("["):
            whole = line + "".join(rest for _, rest in lines)
            for index, entry in enumerate(parse_json(path, whole, number), 1):
                yield index, json.dumps(entry, ensure_ascii=False), entry
        else:
            may_be_list = False
            entry = parse_json(path, line, number, " Each line must be one object.")
            yield number, json.dumps(entry, ensure_ascii=False) if "\\u" in line else line, entry


def usable_objects(
    entries: Iterator[tuple[int, str | None, Any]], check: DecodingCheck, dropped: Counter[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The decodable objects with their numbers; a key that an object lacks is a missing value."""
    for number, text, entry in entries:
        if text is None:
            dropped[BLANK] += 1
        elif not isinstance(entry, dict):
            raise DataError(
                f"{check.path}, row {number}: expected an object with the columns as keys, got {text.strip()[:40]}."
            )
        elif check.count(text, number):
            yield number, entry
        else:
            dropped[UNDECODABLE] += 1


def parse_json(path: Path, text: str, first_line: int = 1, advice: str = "") -> Any:
    """The value of a JSON text. Raises DataError with line and column; `first_line` is where the text starts."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {first_line + error.lineno - 1}, column {error.colno}"
        raise DataError(f"{path}, {where}: invalid JSON ({error.msg.removesuffix(' at')}).{advice}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets nested too deep
        raise DataError(f"{path}, line {first_line}: this JSON cannot be read ({error}).") from error
