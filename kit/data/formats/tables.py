"""Rows to Arrow tables, in chunks, so that the Python objects of one chunk are all that exists beside the table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kit.errors import DataError

CHUNK_ROWS = 20_000


def check_names(table: pa.Table, where: object) -> None:
    """Raise DataError for a column, or a key inside one, with a zero byte: libraries below end the name there."""
    fields = list(table.schema)
    while fields:
        field = fields.pop()
        if "\0" in field.name:
            raise DataError(f"{where}: there is a zero byte in the name of the column {field.name!r}. Take it out.")
        fields += [field.type.field(number) for number in range(field.type.num_fields)]


class TableBuilder:
    """Gathers rows of strings and turns every chunk of them into Arrow arrays."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.schema = pa.schema([(name, pa.string()) for name in columns])
        self.rows: list[list[str]] = []
        self.chunks: list[pa.RecordBatch] = []

    def add(self, row: list[str]) -> None:
        self.rows.append(row)
        if len(self.rows) == CHUNK_ROWS:
            self.pack()

    def pack(self) -> None:
        columns = [pa.array(cells, pa.string()) for cells in zip(*self.rows, strict=True)]
        self.chunks.append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self.rows = []

    def table(self) -> pa.Table:
        if self.rows:
            self.pack()
        return pa.Table.from_batches(self.chunks, self.schema)


class ObjectBuilder:
    """Gathers JSON objects, whose keys and types may only be known at the end, chunk by chunk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[tuple[int, dict[str, Any]]] = []
        self.chunks: list[pa.Table] = []

    def add(self, place: int, entry: dict[str, Any]) -> None:
        self.entries.append((place, entry))
        if len(self.entries) == CHUNK_ROWS:
            self.pack()

    def pack(self) -> None:
        names = dict.fromkeys(name for _, entry in self.entries for name in entry)
        columns = {}
        for name in names:
            cells = [entry.get(name) for _, entry in self.entries]
            try:
                columns[name] = pa.array(cells)
            except (pa.ArrowException, OverflowError) as error:
                raise self.mixed(name, cells, error) from error
        self.chunks.append(pa.table(columns))
        self.entries = []

    def mixed(self, name: str, cells: list[Any], error: Exception) -> DataError:
        first = next(type(cell) for cell in cells if cell is not None)
        others = (place for (place, _), cell in zip(self.entries, cells, strict=True) if type(cell) is not first)
        where = next((f", row {place}" for place in others), "")
        return DataError(f'{self.path}{where}: the values of "{name}" are not all of one kind ({error}).')

    def table(self) -> pa.Table:
        if self.entries:
            self.pack()
        if not self.chunks:
            return pa.table({})
        try:
            return pa.concat_tables(self.chunks, promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(f"{self.path}: the values of a column are not all of one kind ({error}).") from error
