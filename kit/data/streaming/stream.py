"""A stream of training rows that need not fit into memory, in an order that only the seed and the epoch decide.

An epoch is all shards in an order of its own, one after the other, cut into buffers of so many rows. Where a buffer
begins is a `Position`, a few numbers; from there on the same rows come in the same buffers, however often reading was
broken off. Nothing here knows what an example is: `Stream.rows_of` makes rows of the task out of a piece of a shard,
and whoever reads the buffers makes examples of them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kit.data.batching.plan import MIN_LAST_BATCH
from kit.data.report import SplitReport
from kit.data.streaming.shards import Cursor, Shard, ShardRows
from kit.errors import DataError, KitError
from kit.hub.names import one_line

if TYPE_CHECKING:
    from datasets import Dataset

CHUNK_ROWS = 500
"""Most rows that are made examples of at a time."""

SAMPLED_SHARDS = 32


@dataclass(frozen=True)
class Position:
    """A place in the stream."""

    epoch: int = 0
    place: int = 0
    """Of the shard, in the order of this epoch."""

    row: int = 0
    """Of those rows of this shard that are trained on."""

    cursor: Cursor = ()
    """Where the shard has that row; () if none has been read of it."""

    def state(self) -> dict[str, Any]:
        """The position as JSON can hold it."""
        return {**asdict(self), "cursor": list(self.cursor)}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "Position":
        return cls(**{**state, "cursor": tuple(state["cursor"])})


START = Position()


@dataclass(frozen=True)
class ShardPart:
    """What is trained on of a shard: from a cursor on, so many rows or all."""

    shard: Shard
    cursor: Cursor = ()
    rows: int | None = None


@dataclass(frozen=True)
class Chunk:
    """Rows of one shard that follow one another, and how many among them could not be used, by reason."""

    start: Position
    table: pa.Table
    dropped: Counter[str]


RowsOf = Callable[[Chunk], tuple["Dataset", SplitReport]]


@dataclass(frozen=True)
class Stream:
    """The training data of a run: parts of shards, and how a chunk of them becomes rows of the task."""

    parts: Sequence[ShardPart]
    rows_of: RowsOf

    def order(self, seed: int, epoch: int) -> list[ShardPart]:
        """The parts in the order of an epoch."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self.parts))
        return [self.parts[place] for place in order]

    def in_file_order(self, epoch: int) -> Sequence[ShardPart]:
        """The parts in the order of the data."""
        return self.parts

    def split_off_head(self, rows: int) -> tuple["Dataset", SplitReport, "Stream"]:
        """The first rows of the data, in its own order, and a stream of all the others."""
        reader = ChunkReader(self.in_file_order)
        head, told = self._rows(reader.chunks(rows))
        at = reader.position
        reader.close()
        rest = [] if at.epoch else [replace(self.parts[at.place], cursor=at.cursor), *self.parts[at.place + 1 :]]
        return head, told, replace(self, parts=rest)

    def limit_to_head(self, rows: int) -> "Stream":
        """A stream of the first rows of the data, in its own order. They are read once, to see where they end."""
        reader, counts = ChunkReader(self.in_file_order), Counter[int]()
        for chunk in reader.chunks(rows):
            counts[chunk.start.place] += chunk.table.num_rows
        reader.close()
        return replace(self, parts=[replace(self.parts[place], rows=count) for place, count in counts.items()])

    def sample(self, rows: int) -> "Dataset":
        """At most so many rows, from the beginnings of shards that are spread over the data."""
        count = min(SAMPLED_SHARDS, len(self.parts), rows)
        chunks: list[Chunk] = []
        for place in np.linspace(0, len(self.parts) - 1, count).astype(int):
            reader = ChunkReader(replace(self, parts=[self.parts[place]]).in_file_order)
            chunks += reader.chunks(rows // count)
            reader.close()
        return self._rows(chunks)[0]

    def buffers(self, seed: int, size: int, micro_batches: int, start: Position = START) -> "Buffers":
        """The buffers of training from a position on, each with at least a row for every micro-batch."""
        return Buffers(ChunkReader(partial(self.order, seed), start), size, max(MIN_LAST_BATCH, micro_batches))

    def first_buffer(self, seed: int, size: int, micro_batches: int) -> tuple["Dataset", SplitReport]:
        """The rows that training begins with."""
        buffers = self.buffers(seed, size, micro_batches)
        found = self._rows(buffers.read())
        buffers.close()
        return found

    def _rows(self, chunks: Iterable[Chunk]) -> tuple["Dataset", SplitReport]:
        from datasets import concatenate_datasets

        told, found = SplitReport(0), []
        for chunk in chunks:
            rows, part = self.rows_of(chunk)
            told.add(part)
            found.append(rows)
        if not found:
            raise DataError(f"{self.parts[0].shard.name} holds no rows.")
        return concatenate_datasets(found), told


class ChunkReader:
    """Reads chunks, shard after shard and epoch after epoch, from a position on."""

    def __init__(self, order: Callable[[int], Sequence[ShardPart]], position: Position = START):
        self.position = position
        self.passed = Counter[str]()
        """Rows that could not be used after the last chunk, at the end of a shard."""
        self._order = order
        self._parts: tuple[int, Sequence[ShardPart]] = (-1, [])  # of the epoch at hand
        self._open: ShardRows | None = None

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Chunks of so many rows in all, or of as many as are left in the epoch."""
        while rows and (chunk := self.chunk(rows)) is not None:
            rows -= chunk.table.num_rows
            yield chunk

    def chunk(self, most: int) -> Chunk | None:
        """The next rows of a shard, at most `most`; None, once, if the epoch is over."""
        while True:
            at = self.position
            if self._parts[0] != at.epoch:
                self._parts = (at.epoch, self._order(at.epoch))
            parts = self._parts[1]
            if at.place == len(parts):
                self.position = Position(at.epoch + 1)
                return None
            part = parts[at.place]
            table = self._take(part, min(most, CHUNK_ROWS))
            if table is not None:
                dropped, self.passed = self.passed, Counter()
                return Chunk(at, table, dropped)
            self.position = Position(at.epoch, at.place + 1)

    def _take(self, part: ShardPart, most: int) -> pa.Table | None:
        """The next rows of a part; None, and the shard is closed, if there are none left."""
        at = self.position
        left = most if part.rows is None else min(most, part.rows - at.row)
        try:
            if self._open is None:
                self._open = part.shard.open(at.cursor or part.cursor)
            table = self._open.take(left) if left else None
        except KitError:
            raise
        # The libraries below raise dozens of kinds; each means that the data is not to be had.
        except Exception as error:
            raise DataError(
                f"{part.shard.name} could not be read on after {at.row:,} rows: {one_line(error)}"
            ) from error
        self.passed += self._open.dropped
        self._open.dropped.clear()
        if table is None or not table.num_rows:
            self.close()
            return None
        self.position = replace(at, row=at.row + table.num_rows, cursor=self._open.cursor)
        return table

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = None


class Buffers:
    """Cuts what a reader gives into buffers of `size` rows, none across two epochs.

    The last of an epoch takes in a rest that would be small: fewer than `least` rows, or than a quarter of a buffer and
    a chunk. To know of it, about a chunk is read beyond each buffer; nothing else is held here.
    """

    def __init__(self, reader: ChunkReader, size: int, least: int):
        self._reader, self._size = reader, max(size, least)
        self._rest = max(least, min(CHUNK_ROWS, size // 4))
        self._ahead: list[Chunk] = []

    @property
    def start(self) -> Position:
        """Where the next buffer begins."""
        return self._ahead[0].start if self._ahead else self._reader.position

    def read(self) -> Iterator[Chunk]:
        """The chunks of the next buffer; how they are cut depends on nothing but where it begins."""
        rows, ahead, self._ahead = 0, self._ahead, []
        for chunk in ahead:
            rows += chunk.table.num_rows
            yield chunk
        while rows < self._size:
            following = self._reader.chunk(self._size - rows)
            if following is None:
                return
            rows += following.table.num_rows
            yield following
        rows = 0
        while rows < self._rest:
            following = self._reader.chunk(self._size - rows)
            if following is None:
                ahead, self._ahead = self._ahead, []
                yield from ahead
                return
            rows += following.table.num_rows
            self._ahead.append(following)

    def passed(self) -> Counter[str]:
        """Rows after the last of the epoch that could not be used, by reason."""
        passed, self._reader.passed = self._reader.passed, Counter()
        return passed

    def close(self) -> None:
        self._reader.close()
