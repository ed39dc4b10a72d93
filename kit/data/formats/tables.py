"""From rows to Arrow tables. Rows are converted in chunks, so that only one chunk exists as Python objects."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from kit.data.formats.lines import DecodingCheck
from kit.errors import DataError

CHUNK_ROWS = 20_000  # rows held as Python objects before they become an Arrow chunk
MAX_DEPTH = 50
"""Levels of nested lists and objects. Arrow passes no schema of more than 64 levels to other libraries."""
MAX_COLUMNS = 5000
"""`datasets` copies the description of all columns with every step: 10,000 columns of six rows took two minutes."""
UNDECODABLE = "undecodable"
BLANK = "blank line"


@dataclass
class FileTable:
    """The usable rows of a file, and the number of the others by reason."""

    table: pa.Table
    dropped: Counter[str] = field(default_factory=Counter)
    flagged: Counter[str] = field(default_factory=Counter)
    """Rows of the table that are worth a note, counted by what is unusual about them."""


def checked_table(
    checks: Sequence[DecodingCheck], build: Callable[[], pa.Table], dropped: Counter[str], flagged: Counter[str]
) -> FileTable:
    """The table from `build`. Raises DataError for files without rows, in another encoding, or with bad names."""
    if checks[-1].rows == 0:
        raise DataError(f"{checks[-1].path} has no rows.")
    for check in checks:
        check.check()
    table = build()
    check_column_names(table, checks[-1].path)
    return FileTable(table, +dropped, +flagged)


def check_column_names(table: pa.Table, source: object) -> None:
    """Raise DataError for what `datasets` or the libraries below it cannot hold.

    These are columns of the same name, maps, deeply nested values, and a null byte in the name of a column or a nested
    field, at which C libraries truncate the name.
    """
    if table.num_columns > MAX_COLUMNS:
        raise DataError(
            f"{source} has {table.num_columns:,} columns; kit reads at most {MAX_COLUMNS:,}. Write the file again with "
            "only the columns that you need."
        )
    if repeated := [name for name, count in Counter(table.column_names).items() if count > 1]:
        raise DataError(f'{source}: there are two columns "{repeated[0]}". Write the file with different names.')
    fields = [(field, 1) for field in table.schema]
    while fields:
        field, depth = fields.pop()
        if depth > MAX_DEPTH:
            raise DataError(f"{source}: a value is nested deeper than {MAX_DEPTH} levels. Flatten it, or remove it.")
        if "\0" in field.name:
            raise DataError(f"{source}: the name of the column {field.name!r} contains a null byte. Remove it.")
        if pa.types.is_map(field.type):
            raise DataError(f'{source}: "{field.name}" is a map, not a list or a value. Convert it, or remove it.')
        fields += [(field.type.field(number), depth + 1) for number in range(field.type.num_fields)]


class StringTableBuilder:
    """Builds a table from rows of strings."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.schema = pa.schema([(name, pa.string()) for name in columns])
        self.rows: list[list[str]] = []
        self.chunks: list[pa.RecordBatch] = []

    def add(self, row: list[str]) -> None:
        self.rows.append(row)
        if len(self.rows) == CHUNK_ROWS:
            self._convert()

    def _convert(self) -> None:
        columns = [pa.array(cells, pa.string()) for cells in zip(*self.rows, strict=True)]
        self.chunks.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self.rows = []

    def table(self) -> pa.Table:
        if self.rows:
            self._convert()
        return pa.Table.from_batches(self.chunks, self.schema)


class ObjectTableBuilder:
    """Builds a table from JSON objects. Keys and types may be known only at the end; chunks are promoted to fit."""

    def __init__(self, source: object) -> None:
        self.source = source
        self.entries: list[tuple[int, dict[str, Any]]] = []
        self.chunks: list[pa.Table] = []

    def add(self, number: int, entry: dict[str, Any]) -> None:
        self.entries.append((number, entry))
        if len(self.entries) == CHUNK_ROWS:
            self._convert()

    def _convert(self) -> None:
        names = dict.fromkeys(name for _, entry in self.entries for name in entry)
        columns = {}
        for name in names:
            cells = [entry.get(name) for _, entry in self.entries]
            try:
                columns[name] = pa.array(cells)
            except UnicodeError as error:
                raise DataError(f'{self.source}: "{name}" holds text that is not valid Unicode ({error}).') from error
            except (pa.ArrowException, OverflowError) as error:
                raise self._mixed_types(name, cells, error) from error
        self.chunks.append(pa.table(columns))
        self.entries = []

    def _mixed_types(self, name: str, cells: list[Any], error: Exception) -> DataError:
        first = next(type(cell) for cell in cells if cell is not None)
        others = (number for (number, _), cell in zip(self.entries, cells, strict=True) if type(cell) is not first)
        where = next((f", row {number}" for number in others), "")
        return DataError(f'{self.source}{where}: the values of "{name}" have different types ({error}).')

    def table(self) -> pa.Table:
        if self.entries:
            self._convert()
        if not self.chunks:
            return pa.table({})
        try:
            return pa.concat_tables(self.chunks, promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(f"{self.source}: the values of a column have different types ({error}).") from error
