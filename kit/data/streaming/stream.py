"""The order of a stream: shards, shuffled per epoch, read one after the other and cut into buffers.

The start of a buffer is a `Position`, a few numbers. From there on, the same rows come in the same buffers, however
often reading is interrupted. Nothing here knows what an example is: `Stream.rows_of` turns a chunk of a shard into rows
of the task, and the readers of buffers turn those into examples.
"""

import hashlib
import json
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
"""Maximum number of rows that are encoded at a time: small enough that several processes share the chunks of a buffer
evenly, large enough for the batch encoding of `tokenizers`."""

SAMPLED_SHARDS = 32
"""Maximum number of shards that a sample is taken from: opening a shard on the Hub costs a request."""


@dataclass(frozen=True)
class Position:
    """A position in the stream."""

    epoch: int = 0
    shard: int = 0
    """Index of the shard in the order of this epoch."""

    row: int = 0
    """Number of the row among those of the shard that are trained on."""

    cursor: Cursor = ()
    """The shard's cursor to that row; () if nothing has been read of it."""

    def state(self) -> dict[str, Any]:
        """The position as JSON values."""
        return {**asdict(self), "cursor": list(self.cursor)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Position":
        return cls(**{**state, "cursor": tuple(state["cursor"])})


START = Position()


@dataclass(frozen=True)
class ShardPart:
    """The part of a shard that is trained on: from a cursor on, a number of rows or all."""

    shard: Shard
    cursor: Cursor = ()
    rows: int | None = None


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a shard, and the number of unusable rows before and among them, by reason."""

    start: Position
    table: pa.Table
    dropped: Counter[str]


RowsOf = Callable[[Chunk], tuple["Dataset", SplitReport]]


@dataclass(frozen=True)
class Stream:
    """The training data of a run: parts of shards, and the function that turns a chunk into rows of the task."""

    parts: Sequence[ShardPart]
    rows_of: RowsOf

    def order(self, seed: int, epoch: int) -> list[ShardPart]:
        """The parts in the order of an epoch."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self.parts))
        return [self.parts[index] for index in order]

    def in_file_order(self, epoch: int) -> Sequence[ShardPart]:
        """The parts in the order of the data, the same in every epoch."""
        return self.parts

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that identify the files by name and size, or the Hub dataset by its commit."""
        parts = [[part.shard.identity, part.cursor, part.rows] for part in self.parts]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def split_off_head(self, rows: int) -> tuple["Dataset", SplitReport, "Stream"]:
        """Split the stream in file order: the first `rows` rows with their report, and a stream of the rest."""
        reader = ChunkReader(self.in_file_order)
        head, report = self._rows(reader.chunks(rows))
        end = reader.position
        reader.close()
        rest = [] if end.epoch else [replace(self.parts[end.shard], cursor=end.cursor), *self.parts[end.shard + 1 :]]
        return head, report, replace(self, parts=rest)

    def limit_to_head(self, rows: int) -> "Stream":
        """A stream of the first `rows` rows in file order. They are read once, to learn where they end."""
        reader, counts = ChunkReader(self.in_file_order), Counter[int]()
        for chunk in reader.chunks(rows):
            counts[chunk.start.shard] += chunk.table.num_rows
        reader.close()
        return replace(self, parts=[replace(self.parts[index], rows=count) for index, count in counts.items()])

    def sample(self, rows: int) -> "Dataset":
        """At most `rows` rows, from the starts of shards that are spread evenly over the data."""
        count = min(SAMPLED_SHARDS, len(self.parts), rows)
        chunks: list[Chunk] = []
        for index in np.linspace(0, len(self.parts) - 1, count).astype(int):
            reader = ChunkReader(replace(self, parts=[self.parts[index]]).in_file_order)
            chunks += reader.chunks(rows // count)
            reader.close()
        return self._rows(chunks)[0]

    def buffers(self, seed: int, size: int, micro_batches: int, start: Position = START) -> "Buffers":
        """The buffers of training from a position on, each with at least one row per micro-batch."""
        return Buffers(ChunkReader(partial(self.order, seed), start), size, max(MIN_LAST_BATCH, micro_batches))

    def first_buffer(self, seed: int, size: int, micro_batches: int) -> tuple["Dataset", SplitReport]:
        """The rows of the buffer that training starts with, and their report."""
        buffers = self.buffers(seed, size, micro_batches)
        rows = self._rows(buffers.read())
        buffers.close()
        return rows

    def _rows(self, chunks: Iterable[Chunk]) -> tuple["Dataset", SplitReport]:
        from datasets import concatenate_datasets

        report, datasets = SplitReport(0), []
        for chunk in chunks:
            rows, chunk_report = self.rows_of(chunk)
            report.add(chunk_report)
            datasets.append(rows)
        if not datasets:
            raise DataError(f"{self.parts[0].shard.name} has no rows.")
        return concatenate_datasets(datasets), report


class ChunkReader:
    """Reads chunks from a position on, shard after shard and epoch after epoch."""

    def __init__(self, order: Callable[[int], Sequence[ShardPart]], position: Position = START):
        self.position = position
        self.dropped_at_end = Counter[str]()
        """Unusable rows after the last chunk of a shard, by reason. They go into the next chunk, if there is one."""
        self._order = order
        self._parts: tuple[int, Sequence[ShardPart]] = (-1, [])  # epoch, and its parts in order
        self._open: ShardRows | None = None

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """Chunks with `rows` rows in all, or with what is left of the epoch."""
        while rows and (chunk := self.chunk(rows)) is not None:
            rows -= chunk.table.num_rows
            yield chunk

    def chunk(self, max_rows: int) -> Chunk | None:
        """The next rows of a shard; None, once, at the end of an epoch."""
        while True:
            start = self.position
            if self._parts[0] != start.epoch:
                self._parts = (start.epoch, self._order(start.epoch))
            parts = self._parts[1]
            if start.shard == len(parts):
                self.position = Position(start.epoch + 1)
                return None
            table = self._read_rows(parts[start.shard], min(max_rows, CHUNK_ROWS))
            if table is not None:
                dropped, self.dropped_at_end = self.dropped_at_end, Counter()
                return Chunk(start, table, dropped)
            self.position = Position(start.epoch, start.shard + 1)

    def _read_rows(self, part: ShardPart, max_rows: int) -> pa.Table | None:
        """The next rows of a part, at most `max_rows`; None at its end. Counts unusable rows, closes its shard."""
        start = self.position
        count = max_rows if part.rows is None else min(max_rows, part.rows - start.row)
        try:
            if self._open is None:
                self._open = part.shard.open(start.cursor or part.cursor)
            table = self._open.take(count) if count else None
        except KitError:
            raise
        # datasets, fsspec and pyarrow raise dozens of types here; all mean that the data is unavailable
        except Exception as error:
            raise DataError(
                f"{part.shard.name} could not be read beyond row {start.row:,}: {one_line(error)}"
            ) from error
        self.dropped_at_end += self._open.dropped
        self._open.dropped.clear()
        if table is None or not table.num_rows:
            self.close()
            return None
        self.position = replace(start, row=start.row + table.num_rows, cursor=self._open.cursor)
        return table

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = None


class Buffers:
    """Cuts the chunks of a reader into buffers of `size` rows, none across two epochs.

    A small remainder at the end of an epoch is merged into the buffer before it: one of fewer than `min_rows` rows, or
    of less than a quarter of a buffer (at most a chunk). To know of it, about one chunk is read ahead; nothing else is
    held here.
    """

    def __init__(self, reader: ChunkReader, size: int, min_rows: int):
        self._reader, self._size = reader, max(size, min_rows)
        self._min_remainder = max(min_rows, min(CHUNK_ROWS, size // 4))
        self._ahead: list[Chunk] = []

    @property
    def start(self) -> Position:
        """Where the next buffer starts."""
        return self._ahead[0].start if self._ahead else self._reader.position

    def read(self) -> Iterator[Chunk]:
        """The chunks of the next buffer. How they are cut depends only on where it starts."""
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
        while rows < self._min_remainder:
            following = self._reader.chunk(self._size - rows)
            if following is None:
                ahead, self._ahead = self._ahead, []
                yield from ahead
                return
            rows += following.table.num_rows
            self._ahead.append(following)

    def dropped_at_end(self) -> Counter[str]:
        """Unusable rows after the last chunk of the epoch, by reason; each is returned once."""
        dropped, self._reader.dropped_at_end = self._reader.dropped_at_end, Counter()
        return dropped

    def close(self) -> None:
        self._reader.close()
