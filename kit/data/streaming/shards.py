"""Shards: the parts of data that is read as a stream. Each can be read from its beginning, or from where reading
stopped: plain text goes on at a byte, parquet at a row group, what is on the Hub or packed is passed over up to there.
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
from kit.data.formats.lines import LineReader
from kit.data.formats.parquet import Tables, parquet_batches
from kit.data.formats.reader import UNDECODABLE, Layout, RowStream, check_extension, open_parallel, open_rows

if TYPE_CHECKING:
    from datasets import IterableDataset

Cursor = tuple[int, ...]
"""Where in a shard reading goes on; () is its beginning. What the numbers mean is the shard's own business."""

BATCH_ROWS = 1000


class ShardRows(Protocol):
    """The usable rows of a shard, from a cursor on."""

    dropped: Counter[str]
    """Rows that could not be used, by reason; whoever reads it may empty it."""
    flagged: Counter[str]
    """Rows that are worth knowing about, by what they have."""

    @property
    def cursor(self) -> Cursor:
        """Where the next row is."""

    def take(self, most: int) -> pa.Table:
        """The next rows: fewer than `most` only at the end, then none."""

    def close(self) -> None:
        """Let go of files and connections."""


class Shard(Protocol):
    """A part of the data that can be read by itself."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def identity(self) -> str:
        """What tells it from other data under the same name, as far as that can be known without reading it."""

    def open(self, cursor: Cursor) -> ShardRows:
        """Its rows from a cursor on."""


# ---- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileShard:
    """A text or parquet file, or files of parallel text."""

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
        if check_extension(self.files, self.layout) == "parquet":
            first = cursor[0] if cursor else 0
            return TableRows(parquet_batches(self.files, first, BATCH_ROWS), first)
        lines = LineReader(self.files, self.layout.encoding)
        return TextRows([lines], open_rows(self.files, self.layout, lines), cursor)


class TextRows:
    """Rows of text files; the cursor is the line and the byte in each."""

    def __init__(self, sides: Sequence[LineReader], rows: RowStream, cursor: Cursor):
        self._sides, self._rows = sides, rows
        self._from_start = not cursor
        for side, line, byte in zip(sides, cursor[::2], cursor[1::2], strict=False):
            side.go_to(line, byte)
        self.dropped, self.flagged = rows.dropped, rows.flagged

    @property
    def cursor(self) -> Cursor:
        return tuple(number for side in self._sides for number in side.place)

    def take(self, most: int) -> pa.Table:
        table = self._rows.take(most).table()
        if self._from_start:  # begun further on, a few broken rows might seem to be the whole file
            for decoding in self._rows.files:
                decoding.check() if table.num_rows < most else decoding.check_so_far()
        return plain_text(table)

    def close(self) -> None:
        for side in self._sides:
            side.close()


# ---- tables ----------------------------------------------------------------------------------------------------------


class TableRows:
    """Rows of tables that come one after the other; the cursor is the number of rows before the next one, usable or
    not."""

    def __init__(self, tables: Tables, first: int):
        self._tables = tables
        self._rest: deque[tuple[pa.Table, np.ndarray]] = deque()  # usable rows, and the numbers of them
        self._next = first  # row that the next of the tables begins with
        self.dropped, self.flagged = Counter[str](), Counter[str]()

    @property
    def cursor(self) -> Cursor:
        return (int(self._rest[0][1][0]) if self._rest else self._next,)

    def take(self, most: int) -> pa.Table:
        (before,) = self.cursor
        taken: list[pa.Table] = []
        left = most
        while left and (self._rest or self._read()):
            table, numbers = self._rest.popleft()
            if table.num_rows > left:
                self._rest.appendleft((table.slice(left), numbers[left:]))
            taken.append(table.slice(0, left))
            left -= taken[-1].num_rows
        self.dropped += Counter({UNDECODABLE: self.cursor[0] - before - (most - left)})
        return plain_text(pa.concat_tables(taken)) if taken else pa.table({})

    def _read(self) -> bool:
        """Read on up to a table that has usable rows; false if there is none."""
        for table, usable in self._tables:
            numbers = self._next + np.flatnonzero(usable)
            self._next += table.num_rows
            if len(numbers):
                self._rest.append((table if usable.all() else table.filter(pa.array(usable)), numbers))
                return True
        return False

    def close(self) -> None:
        self._tables.close()


# ---- the Hub ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HubShard:
    """One of the shards of a split on the Hub. The library has no cheaper way to a row than over those before it."""

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
    """The rows of a stream as tables, all of them usable."""
    for table in stream.with_format("arrow").iter(BATCH_ROWS):
        yield table, np.ones(table.num_rows, dtype=bool)
