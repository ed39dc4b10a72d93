"""The batch plan of a stream: like that of data in memory, one buffer at a time, read ahead in a thread.

Every process reads all rows of a buffer but encodes only its share of the chunks; then the processes exchange what they
encoded. So all of them have the same examples and plan the same steps, whatever their number, while encoding, the slow
part, is shared. The price is that every process reads all bytes, and holds two encoded buffers: the one it trains on
and the next one. Resuming reads one buffer again.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from kit.data.batching.plan import BatchPlan, Padding
from kit.data.report import SplitReport
from kit.data.streaming.stream import START, Buffers, Position, Stream
from kit.errors import DataError, KitError

if TYPE_CHECKING:
    from datasets import Dataset

SECONDS_TO_STOP = 10
"""How long the end of a run waits for the reading thread, which the network may block."""

T = TypeVar("T")
E = TypeVar("E", bound=Sized)


def buffer_seed(seed: int, start: Position) -> int:
    """The seed that orders the examples of the buffer that begins at `start`."""
    numbers = [seed, start.epoch, start.shard, start.row]
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


@dataclass(frozen=True)
class StreamEncoder(Generic[E]):
    """How a task turns the rows of a stream into examples and batches."""

    encode: Callable[["Dataset"], tuple[E, dict[str, int]]]
    """Encodes rows; returns their examples, and the number of rows that each filter dropped. It is called in a thread,
    so it must not share mutable state (such as a tokenizer) with the rest of the program."""

    concat: Callable[[Sequence[E]], E]
    """Joins the examples of the chunks of a buffer, of which there may be none."""

    plan: Callable[[E, int], BatchPlan]
    """The plan of a buffer, given its seed."""


@dataclass
class StreamCounts:
    """Rows and tokens of a stream up to a position."""

    report: SplitReport = field(default_factory=lambda: SplitReport(0))
    filtered: dict[str, int] = field(default_factory=dict)
    real_tokens: int = 0
    padded_tokens: int = 0

    def add(self, report: SplitReport, filtered: dict[str, int]) -> None:
        self.report.add(report)
        for name, count in filtered.items():
            self.filtered[name] = self.filtered.get(name, 0) + count

    def state(self) -> dict[str, Any]:
        """The counts as JSON values."""
        rows = {"read": self.report.read, "rows": self.report.rows, "dropped": dict(self.report.dropped)}
        tokens = {"real_tokens": self.real_tokens, "padded_tokens": self.padded_tokens}
        return {**rows, "filtered": dict(self.filtered), **tokens}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state, in place."""
        report = self.report
        report.read, report.rows, report.dropped = state["read"], state["rows"], Counter(state["dropped"])
        self.filtered.clear()
        self.filtered.update(state["filtered"])
        self.real_tokens, self.padded_tokens = state["real_tokens"], state["padded_tokens"]


@dataclass(frozen=True)
class BufferStart:
    """The start of a buffer: all that is needed to continue there."""

    step: int
    position: Position
    counts: dict[str, Any]

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "position": self.position.state(), "counts": self.counts}


@dataclass(frozen=True)
class BufferShare(Generic[E]):
    """What one process encoded of a buffer: some of its chunks, by number."""

    start: Position
    end: Position
    num_chunks: int  # of the whole buffer
    dropped_at_end: Counter[str]
    encoded: dict[int, tuple[E, SplitReport, dict[str, int]]]


def run_in_background(call: Callable[[], T]) -> Future[T]:
    """The result of a call that runs in a thread.

    The thread is a daemon, unlike those of an executor: nothing can interrupt it while it waits for the network.
    """
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="stream", daemon=True).start()
    return future


class Cancelled(Exception):
    """Ends the reading thread when nobody waits for its result anymore."""


def single_process(share: T) -> list[T]:
    """The `exchange` of a run with a single process: there are no other shares to gather."""
    return [share]


class StreamPlan(Generic[E]):
    """Steps over the buffers of a stream, in order. The micro-batches of a step are indices into `examples`, the
    examples of the current buffer.

    Every example is in exactly one step of its epoch. The last step of a buffer can be smaller. If the filters leave
    fewer examples of a buffer than there are micro-batches, they are trained on together with the next buffer, which at
    the end of an epoch is the first one of the next.
    """

    def __init__(
        self,
        stream: Stream,
        encoder: StreamEncoder[E],
        *,
        seed: int,
        buffer_size: int,
        micro_batches: int,
        process: int = 0,
        processes: int = 1,
        exchange: Callable[[Any], list[Any]] = single_process,
    ):
        """`exchange` gathers one object per process, in the order of ranks; all processes call it equally often."""
        self.micro_batches = micro_batches
        self.counts = StreamCounts()
        self._stream, self._encoder = stream, encoder
        self._seed, self._size = seed, buffer_size
        self._process, self._processes, self._exchange = process, processes, exchange
        self._current = self._next = BufferStart(0, START, self.counts.state())
        self._examples: E | None = None
        self._plan: BatchPlan | None = None
        self._buffers: Buffers | None = None
        self._ahead: Future[BufferShare[E] | KitError] | None = None
        self._stop = threading.Event()

    # ---- the interface of the training loop --------------------------------------------------------------------------

    @property
    def steps_per_epoch(self) -> None:
        """Unknown until an epoch has been read."""
        return None

    @property
    def examples(self) -> E:
        """The examples of the current buffer."""
        assert self._examples is not None, "no step has been requested"
        return self._examples

    def step(self, number: int) -> list[np.ndarray]:
        """The micro-batches of a step, as indices into `examples`. Steps must be requested in order."""
        while number >= self._next.step:
            self._next_buffer()
        if self._plan is None or number < self._current.step:
            raise ValueError(f"step {number} has passed: a stream cannot go back")
        return self._plan.step(number - self._current.step)

    def epochs(self, steps: int) -> float:
        """How often the stream has been read after this many steps, rounded to shards."""
        position = self._buffer_start(steps).position
        return position.epoch + position.shard / len(self._stream.parts)

    def padding(self) -> Padding:
        """Real and padded tokens of all buffers up to the current one."""
        return Padding(self.counts.real_tokens, self.counts.padded_tokens)

    def describe(self) -> str:
        shards = len(self._stream.parts)
        return f"from a stream of {shards:,} shard{'s' * (shards > 1)}, {self._size:,} rows at a time"

    def state(self, steps: int) -> dict[str, Any]:
        """What a checkpoint after this many steps must contain: the start of the next step's buffer, and the counts."""
        return {**self._buffer_start(steps).state(), "all_counts": self.counts.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        self.close()
        self.counts.restore(state["all_counts"])
        position = Position.from_state(state["position"])
        self._current = self._next = BufferStart(state["step"], position, state["counts"])
        self._examples = self._plan = None

    def close(self) -> None:
        """Stop the thread that reads ahead, and wait for it a limited time; the next buffer would start another."""
        self._stop.set()
        if self._ahead is not None and self._buffers is not None and wait([self._ahead], SECONDS_TO_STOP).done:
            self._buffers.close()
        self._ahead = self._buffers = None
        self._stop = threading.Event()

    def _buffer_start(self, steps: int) -> BufferStart:
        return self._next if steps >= self._next.step else self._current

    # ---- from buffer to buffer ---------------------------------------------------------------------------------------

    def _next_buffer(self) -> None:
        """Advance by one buffer, or by several if the filters leave too few examples."""
        start, parts, counts = self._next.position, list[E](), StreamCounts()
        examples = self._encoder.concat(parts)
        whole_epochs = -1 if start.row or start.shard else 0
        while len(examples) < self.micro_batches:
            if whole_epochs > 0:  # a whole epoch was read, and there are still too few
                raise self._too_few(len(examples), counts)
            shares = self._take()
            encoded = {number: chunk for share in shares for number, chunk in share.encoded.items()}
            for number in sorted(encoded):
                part, report, filtered = encoded[number]
                parts.append(part)
                counts.add(report, filtered)
            dropped, end = shares[0].dropped_at_end, shares[0].end
            counts.add(SplitReport(dropped.total(), dropped=dropped), {})
            whole_epochs += end.epoch - shares[0].start.epoch
            examples = self._encoder.concat(parts)
            if not examples:
                start, parts = end, []
        self._examples, self._plan = examples, self._encoder.plan(examples, buffer_seed(self._seed, start))
        padding = self._plan.padding()
        self.counts.restore(self._next.counts)  # a resumed run has counted this buffer before
        self.counts.add(counts.report, counts.filtered)
        self.counts.real_tokens += padding.real_tokens
        self.counts.padded_tokens += padding.padded_tokens
        self._current = self._next
        self._next = BufferStart(self._current.step + self._plan.steps_per_epoch, end, self.counts.state())

    def _take(self) -> list[BufferShare[E]]:
        """The shares of all processes in the next buffer; starts to encode the one after it."""
        if self._ahead is None:
            self._buffers = self._stream.buffers(self._seed, self._size, self.micro_batches, self._next.position)
            self._ahead = run_in_background(self._encode_share)
        local_share = self._ahead.result()
        self._ahead = None
        shares: list[BufferShare[E]] = []
        for share in self._exchange(local_share):
            if isinstance(share, KitError):
                raise DataError(
                    f"{share} The run can continue from here once the data is readable again: kit train … --resume"
                ) from share
            shares.append(share)
        first = shares[0]
        if any((s.start, s.end, s.num_chunks) != (first.start, first.end, first.num_chunks) for s in shares):
            raise DataError("the processes read different training data. Give all of them the same files.")
        self._ahead = run_in_background(self._encode_share)
        return shares

    def _encode_share(self) -> BufferShare[E] | KitError:
        """This process's share of the next buffer. An error is returned, since the other processes must learn of it."""
        assert self._buffers is not None
        stop, buffers, encoded, number = self._stop, self._buffers, {}, -1
        start = buffers.start
        try:
            for number, chunk in enumerate(buffers.read()):
                if stop.is_set():
                    raise Cancelled
                if number % self._processes == self._process:
                    rows, report = self._stream.rows_of(chunk)
                    examples, filtered = self._encoder.encode(rows)
                    encoded[number] = (examples, report, filtered)
        except KitError as error:
            return error
        return BufferShare(start, buffers.start, number + 1, buffers.dropped_at_end(), encoded)

    def _too_few(self, count: int, counts: StreamCounts) -> DataError:
        filtered = {**counts.report.dropped, **counts.filtered}
        reasons = ", ".join(f"{name}: {number:,}" for name, number in filtered.items() if number)
        if count:
            return DataError(
                f"there are {count} training examples, too few for train.micro_batches={self.micro_batches}: every "
                f"micro-batch needs at least one ({reasons or 'none'} left out)"
            )
        return DataError(f"no training example is left of {counts.report.read:,} rows ({reasons})")
