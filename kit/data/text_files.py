"""Local files to tables of columns: parallel text, tsv, csv, json lines, parquet and txt, each plain or as .gz.

What cannot be used is left out and counted by reason (undecodable rows, blank lines between rows); what points to a
mistake in the file (a row with a column too many, files of different length, broken JSON) is refused with its line.
"""

import csv
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kit.data.tables import ObjectBuilder, TableBuilder
from kit.data.text_lines import SURROGATE, Decoding, broken_file, open_bytes, read_lines, strip_line_end
from kit.errors import DataError

ENDINGS = ("tsv", "csv", "jsonl", "json", "parquet", "txt")
UNDECODABLE = "undecodable"
BLANK = "blank line"


@dataclass(frozen=True)
class Layout:
    """What a recipe says about the inside of files."""

    columns: list[str] | None = None
    delimiter: str | None = None
    encoding: str = "utf-8"


@dataclass
class FileTable:
    """The usable rows of a file, and how many others there were, by reason."""

    table: pa.Table
    dropped: Counter[str] = field(default_factory=Counter)


def ending_of(path: Path) -> str:
    """The ending that says what is in a file: "tsv" for a.tsv and for a.tsv.gz."""
    return Path(path.name.removesuffix(".gz")).suffix.removeprefix(".")


def read_table(path: Path, layout: Layout) -> FileTable:
    """Read a file by its ending. Raises DataError, with the line where there is one, if it is not what it should be."""
    ending = ending_of(path)
    if ending not in ENDINGS:
        raise DataError(
            f"{path}: kit reads files that end in {', '.join(ENDINGS)} (and .gz), not in {ending or 'nothing'}."
        )
    if ending in ("parquet", "json", "jsonl"):
        for name, value in (("columns", layout.columns), ("delimiter", layout.delimiter)):
            if value is not None:
                raise DataError(
                    f"data.{name} has no meaning for {path}: its columns have names in the file. Remove it."
                )
        if ending == "parquet":
            return read_parquet(path, layout)
        return read_json(path, layout, may_be_list=ending == "json")
    if ending == "txt" and layout.delimiter is None:
        if layout.columns is not None:
            raise DataError(f'data.columns has no meaning for {path}: without data.delimiter it is one column, "text".')
        rows = ((number, [strip_line_end(line)]) for number, line in enumerate(read_lines(path, layout.encoding), 1))
        return read_rows(path, rows, ["text"], layout.encoding)
    split = quoted_rows if ending == "csv" else plain_rows
    return read_rows(path, split(path, layout), layout.columns, layout.encoding)


def plain_rows(path: Path, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Line number and columns, cut at every delimiter: a quotation mark is a character as any other."""
    delimiter = "\t" if layout.delimiter is None else layout.delimiter
    for number, line in enumerate(read_lines(path, layout.encoding), 1):
        yield number, strip_line_end(line).split(delimiter)


def quoted_rows(path: Path, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Line number and columns of csv: what stands in double quotes may hold delimiters and line ends."""
    delimiter = "," if layout.delimiter is None else layout.delimiter
    if len(delimiter) != 1:
        raise DataError(
            f"data.delimiter: csv columns are separated by one character, not {delimiter!r}. Name {path} .tsv."
        )
    # Strict, since a quotation mark that is never closed would otherwise swallow the rest of the file.
    reader = csv.reader(read_lines(path, layout.encoding), delimiter=delimiter, strict=True)
    while True:
        first_line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num}: {error}. The row starts at line {first_line}; look for a quotation "
                "mark that is not closed or not doubled. A file that does not use quotes is named .tsv."
            ) from error
        yield first_line, row or [""]


def read_rows(
    path: Path, rows: Iterator[tuple[int, list[str]]], columns: Sequence[str] | None, encoding: str
) -> FileTable:
    """Rows of equally many strings; the first one names the columns unless they are given."""
    header = "data.columns names" if columns else "its first line has"
    if columns is None:
        columns = [name.strip() for name in next(rows, (1, []))[1]]
        if SURROGATE.search("".join(columns)):
            raise DataError(f"{path}, line 1: the names of the columns are not in {encoding}. Set data.encoding.")
    if repeated := [name for name, times in Counter(columns).items() if times > 1]:
        raise DataError(
            f'{path}: the column "{repeated[0]}" is there twice. Give the columns different names (data.columns).'
        )
    decoding, builder, dropped = Decoding(path, encoding), TableBuilder(columns), Counter[str]()
    for line, row in rows:
        if row == [""] and len(columns) > 1:
            dropped[BLANK] += 1
        elif len(row) != len(columns):
            raise DataError(
                f"{path}, line {line}: {len(row)} columns where {header} {len(columns)} ({', '.join(columns)})."
            )
        elif decoding.count("\n".join(row), line):
            builder.add(row)
        else:
            dropped[UNDECODABLE] += 1
    return finish(decoding, builder.table, dropped)


def read_parallel(files: dict[str, Path], layout: Layout) -> FileTable:
    """Two files, by the name of their column, of which line n of one is the translation of line n of the other."""
    source, target = files.values()
    sides = [Decoding(path, layout.encoding) for path in (source, target)]
    builder, dropped = TableBuilder(list(files)), Counter[str]()
    lengths = [0, 0]
    lines = zip_longest(*(read_lines(path, layout.encoding) for path in (source, target)))
    for number, pair in enumerate(lines, 1):
        for side, line in enumerate(pair):
            lengths[side] += line is not None
        if None in pair:
            continue
        row = [strip_line_end(line) for line in pair]
        usable = [decoding.count(text, number) for decoding, text in zip(sides, row, strict=True)]
        if all(usable):
            builder.add(row)
        else:
            dropped[UNDECODABLE] += 1
    if lengths[0] != lengths[1]:
        raise DataError(
            f"{source} has {lengths[0]} lines and {target} has {lengths[1]}: in parallel text, line belongs to line."
        )
    sides[0].check()
    return finish(sides[1], builder.table, dropped)


def read_json(path: Path, layout: Layout, may_be_list: bool) -> FileTable:
    """JSON lines, or one list of objects; a key that an object does not have is a missing value."""
    decoding, builder, dropped = Decoding(path, layout.encoding), ObjectBuilder(path), Counter[str]()
    for place, text, entry in json_rows(path, layout.encoding, may_be_list):
        if text is None:
            dropped[BLANK] += 1
        elif not isinstance(entry, dict):
            raise DataError(
                f"{path}, row {place}: expected an object with the columns as keys, got {text.strip()[:40]}."
            )
        elif decoding.count(text, place):
            builder.add(place, entry)
        else:
            dropped[UNDECODABLE] += 1
    return finish(decoding, builder.table, dropped)


def json_rows(path: Path, encoding: str, may_be_list: bool) -> Iterator[tuple[int, str | None, Any]]:
    """Place, text and value of each row; blank lines without text. An escape can hide half a character in plain ASCII,
    so that the text of a row with escapes is written anew without them."""
    lines = enumerate(read_lines(path, encoding), 1)
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


def read_parquet(path: Path, layout: Layout) -> FileTable:
    """A parquet file, whose text is UTF-8 by definition and checked here, since readers trust it."""
    if layout.encoding != "utf-8":
        raise DataError(f"data.encoding has no meaning for {path}: text in parquet files is utf-8. Remove it.")
    try:
        with open_bytes(path) as raw:
            table = pq.read_table(pa.BufferReader(raw.read()) if path.suffix == ".gz" else raw)
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a parquet file that can be read: {str(error).splitlines()[0]}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise broken_file(path, error) from error
    broken = [name for name in table.column_names if not is_decodable(table[name])]
    decoding, dropped = Decoding(path, "utf-8", advice="Write it anew."), Counter[str]()
    if broken:
        cells = zip(*(table[name].cast(pa.large_binary()).to_pylist() for name in broken), strict=True)
        rows = ["\n".join((cell or b"").decode("utf-8", "surrogateescape") for cell in row) for row in cells]
        usable = [decoding.count(row, number) for number, row in enumerate(rows, 1)]
        dropped[UNDECODABLE] = usable.count(False)
        table = table.filter(pa.array(usable))
    decoding.rows = table.num_rows + dropped[UNDECODABLE]
    return finish(decoding, lambda: table, dropped)


def is_decodable(column: pa.ChunkedArray) -> bool:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return False
    return True


def finish(decoding: Decoding, table: Callable[[], pa.Table], dropped: Counter[str]) -> FileTable:
    """The table, if there is one to be had."""
    if decoding.rows == 0:
        raise DataError(f"{decoding.path} holds no rows.")
    decoding.check()
    return FileTable(table(), dropped)
