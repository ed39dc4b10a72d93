"""Shards: parts of a stream that are read independently, each from its start or from a cursor.

Plain text continues at a byte, parquet at a row group. Shards on the Hub and compressed files have no such index: there
the rows before the cursor are read and skipped.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from kit.data.columns import plain_text
from kit.data.formats.folders import ShardFiles
from kit.data.formats.layout import Layout, file_extension
from kit.data.formats.lines import LineReader
from kit.data.formats.parquet import Tables, parquet_batches
from kit.data.formats.reader import check_extension, line_parser
from kit.data.formats.tables import UNDECODABLE
from kit.data.formats.text import RowStream, open_parallel

if TYPE_CHECKING:
    from datasets import IterableDataset

Cursor = tuple[int, ...]
"""Where to continue in a shard; () is its start. Only the shard itself knows what the numbers mean."""

BATCH_ROWS = 1000
"""Rows that are read at a time. A resumed run reads and skips at most this many; fewer would slow down reading."""


class ShardRows(Protocol):
    """The usable rows of an open shard."""

    dropped: Counter[str]
    """Rows that could not be used, by reason. Whoever adds up the counts may clear them."""
    flagged: Counter[str]
    """Rows that are kept but worth a note, by what they have."""

    @property
    def cursor(self) -> Cursor:
        """The cursor of the next row."""

    def take(self, count: int) -> pa.Table:
        """The next `count` rows; fewer only at the end of the shard."""

    def close(self) -> None:
        """Release files and connections."""


class Shard(Protocol):
    """A part of the data that can be read independently."""

    @property
    def name(self) -> str:
        """The name of the shard in messages."""

    @property
    def identity(self) -> str:
        """Text that changes with the content of the shard, as far as that is possible without reading it."""

    def open(self, cursor: Cursor) -> ShardRows:
        """Open the shard; returns its rows from a cursor on."""


# ---- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileShard:
    """A text or parquet file, or the files of parallel text."""

    files: ShardFiles
    layout: Layout

    @property
    def name(self) -> str:
        return " and ".join(map(str, self._paths))

    @property
    def identity(self) -> str:
        return ", ".join(f"{path.name} {path.stat().st_size}" for path in self._paths)

    @property
    def _paths(self) -> list[Path]:
        return list(self.files.values()) if isinstance(self.files, dict) else [self.files]

    def open(self, cursor: Cursor) -> ShardRows:
        if isinstance(self.files, dict):
            sides = [LineReader(path, self.layout.encoding) for path in self.files.values()]
            return TextRows(sides, open_parallel(self.files, self.layout, sides), cursor)
        if file_extension(self.files) == "parquet":
            check_extension(self.files, self.layout)
            first = cursor[0] if cursor else 0
            return TableRows(parquet_batches(self.files, first, BATCH_ROWS), first)
        parse = line_parser(self.files, self.layout)
        lines = LineReader(self.files, self.layout.encoding)
        return TextRows([lines], parse(self.files, self.layout, lines), cursor)


class TextRows:
    """Rows of text files; the cursor is the line and the byte to continue at in each file."""

    def __init__(self, sides: Sequence[LineReader], rows: RowStream, cursor: Cursor):
        self._sides, self._rows = sides, rows
        self._from_start = not cursor
        for side, line, byte in zip(sides, cursor[::2], cursor[1::2], strict=False):
            side.seek(line, byte)
        self.dropped, self.flagged = rows.dropped, rows.flagged

    @property
    def cursor(self) -> Cursor:
        return tuple(number for side in self._sides for number in side.position)

    def take(self, count: int) -> pa.Table:
        table = self._rows.take(count).table()
        if self._from_start:  # a reader that starts later sees too few rows to judge the whole file by the corrupt ones
            for check in self._rows.checks:
                check.check() if table.num_rows < count else check.check_so_far()
        return plain_text(table)

    def close(self) -> None:
        for side in self._sides:
            side.close()


# ---- tables ----------------------------------------------------------------------------------------------------------


class TableRows:
    """Rows of consecutive tables; the cursor is the number of rows, usable or not, before the next one."""

    def __init__(self, tables: Tables, first: int):
        self._tables = tables
        self._buffered: deque[tuple[pa.Table, np.ndarray]] = deque()  # usable rows, and their row numbers
        self._next = first  # row number that the next table starts with
        self.dropped, self.flagged = Counter[str](), Counter[str]()

    @property
    def cursor(self) -> Cursor:
        return (int(self._buffered[0][1][0]) if self._buffered else self._next,)

    def take(self, count: int) -> pa.Table:
        (first,) = self.cursor
        tables: list[pa.Table] = []
        left = count
        while left and (self._buffered or self._read()):
            table, numbers = self._buffered.popleft()
            if table.num_rows > left:
                self._buffered.appendleft((table.slice(left), numbers[left:]))
            tables.append(table.slice(0, left))
            left -= tables[-1].num_rows
        self.dropped += Counter({UNDECODABLE: self.cursor[0] - first - (count - left)})
        return plain_text(pa.concat_tables(tables)) if tables else pa.table({})

    def _read(self) -> bool:
        """Buffer the next table that has usable rows; false at the end."""
        for table, usable in self._tables:
            numbers = self._next + np.flatnonzero(usable)
            self._next += table.num_rows
            if len(numbers):
                self._buffered.append((table if usable.all() else table.filter(pa.array(usable)), numbers))
                return True
        return False

    def close(self) -> None:
        self._tables.close()


# ---- the Hub ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HubShard:
    """A shard of a split on the Hub. `datasets` reaches a row only by reading those before it."""

    split: "IterableDataset"
    number: int
    path: str
    commit: str

    @property
    def name(self) -> str:
        return f"shard {self.number + 1} of {self.split.num_shards} of {self.path}"

    @property
    def identity(self) -> str:
        return f"{self.commit} {self.number}/{self.split.num_shards}"

    def open(self, cursor: Cursor) -> ShardRows:
        first = cursor[0] if cursor else 0
        shard = self.split.shard(num_shards=self.split.num_shards, index=self.number)
        return TableRows(usable_tables(shard.skip(first) if first else shard), first)


def usable_tables(stream: "IterableDataset") -> Tables:
    """The rows of a Hub stream as tables, all of them usable: `datasets` has decoded them."""
    for table in stream.with_format("arrow").iter(BATCH_ROWS):
        yield table, np.ones(table.num_rows, dtype=bool)
