"""The plan of batches over a stream: buffer by buffer as over data in memory, read ahead in a thread.

Every process reads all rows of a buffer but makes examples of its share of them only; then they give each other what
they made. So all have the same examples and plan the same steps, whatever their number, while encoding, the slow part,
is shared. It costs each process the reading of all bytes, and the memory of two buffers of examples: the one that is
trained on, and the one that is being made. Resuming costs the reading of one buffer.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence, Sized
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
"""How long the end of a run waits for the reading thread, which the network may hold."""

T = TypeVar("T")
E = TypeVar("E", bound=Sized)


def buffer_seed(seed: int, start: Position) -> int:
    """Seed of the order of examples in the buffer that begins there."""
    numbers = [seed, start.epoch, start.place, start.row]
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


@dataclass(frozen=True)
class StreamEncoder(Generic[E]):
    """What a task does to the rows of a stream."""

    encode: Callable[["Dataset"], tuple[E, dict[str, int]]]
    """Examples of rows, and how many its filters left out, by filter. Called in a thread: it must share nothing that
    changes with the rest of the program."""

    join: Callable[[Sequence[E]], E]
    """All examples of a buffer out of those of its chunks, of which there may be none."""

    plan: Callable[[E, int], BatchPlan]
    """The plan of a buffer by a seed of its own."""


@dataclass
class StreamCounts:
    """What has been counted of the stream so far."""

    told: SplitReport = field(default_factory=lambda: SplitReport(0))
    left_out: dict[str, int] = field(default_factory=dict)
    real_tokens: int = 0
    padded_tokens: int = 0

    def add(self, told: SplitReport, left_out: dict[str, int]) -> None:
        self.told.add(told)
        for name, count in left_out.items():
            self.left_out[name] = self.left_out.get(name, 0) + count

    def state(self) -> dict[str, Any]:
        """As JSON can hold it."""
        told = {"read": self.told.read, "rows": self.told.rows, "dropped": dict(self.told.dropped)}
        tokens = {"real_tokens": self.real_tokens, "padded_tokens": self.padded_tokens}
        return {**told, "left_out": dict(self.left_out), **tokens}

    def restore(self, state: dict[str, Any]) -> None:
        """Count on from a state, in place."""
        self.told.read, self.told.rows, self.told.dropped = state["read"], state["rows"], Counter(state["dropped"])
        self.left_out.clear()
        self.left_out.update(state["left_out"])
        self.real_tokens, self.padded_tokens = state["real_tokens"], state["padded_tokens"]


@dataclass(frozen=True)
class BufferStart:
    """The beginning of a buffer: all that is needed to go on there."""

    step: int
    position: Position
    tally: dict[str, Any]

    def state(self) -> dict[str, Any]:
        return {"step": self.step, "position": self.position.state(), "tally": self.tally}


@dataclass(frozen=True)
class BufferShare(Generic[E]):
    """What one process made of a buffer: of some of its chunks, by their numbers."""

    start: Position
    end: Position
    chunks: int  # of the whole buffer
    passed: Counter[str]
    made: dict[int, tuple[E, SplitReport, dict[str, int]]]


class BackgroundTask(Generic[T]):
    """Something that is being made in a thread."""

    def __init__(self, make: Callable[[], T]):
        self._make = make
        self._result: T | None = None
        self._error: BaseException | None = None
        # a daemon, because nothing could stop it while it waits for the network
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._make()
        except BaseException as error:
            self._error = error

    def wait(self, seconds: float) -> bool:
        """Whether it is over after at most so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait for it; what was raised in the thread is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Cancelled(Exception):
    """Nobody waits for what is being made."""


def single_process(mine: T) -> list[T]:
    """The exchange of a single process."""
    return [mine]


class StreamPlan(Generic[E]):
    """Steps over the buffers of a stream, in order. Examples of a step are indices into `examples`, those of the
    buffer at hand.

    Every example is in exactly one step of its epoch. A buffer ends with a step that may be smaller. If the filters
    leave fewer examples of a buffer than there are micro-batches, they are seen with the next buffer, which at the
    end of an epoch is the first of the next.
    """

    def __init__(
        self,
        stream: Stream,
        making: StreamEncoder[E],
        *,
        seed: int,
        buffer_size: int,
        micro_batches: int,
        tally: StreamCounts | None = None,
        process: int = 0,
        processes: int = 1,
        exchange: Callable[[Any], list[Any]] = single_process,
    ):
        """`exchange` gives what each process has, in their order, to all of them; they all call it as often."""
        self.micro_batches = micro_batches
        self.tally = tally or StreamCounts()
        self._stream, self._making = stream, making
        self._seed, self._size = seed, buffer_size
        self._process, self._processes, self._exchange = process, processes, exchange
        self._current = self._next = BufferStart(0, START, self.tally.state())
        self._examples: E | None = None
        self._plan: BatchPlan | None = None
        self._buffers: Buffers | None = None
        self._ahead: BackgroundTask[BufferShare[E] | KitError] | None = None
        self._stop = threading.Event()

    # ---- what the loop asks for ------------------------------------------------------------------------------------

    @property
    def examples(self) -> E:
        """The examples of the buffer at hand."""
        assert self._examples is not None, "no step has been asked for"
        return self._examples

    def step(self, number: int) -> list[np.ndarray]:
        """The micro-batches of a step, as indices into `examples`. Steps are asked for in order."""
        while number >= self._next.step:
            self._next_buffer()
        if self._plan is None or number < self._current.step:
            raise ValueError(f"step {number} has passed: a stream does not go back")
        return self._plan.step(number - self._current.step)

    def epochs(self, steps: int) -> float:
        """How often the stream has been read after so many steps, to the nearest shard."""
        position = self._bookmark(steps).position
        return position.epoch + position.place / len(self._stream.parts)

    def padding(self) -> Padding:
        """Real and padded tokens of all buffers up to the one at hand."""
        return Padding(self.tally.real_tokens, self.tally.padded_tokens)

    def describe(self) -> str:
        shards = len(self._stream.parts)
        return f"from a stream of {shards:,} shard{'s' * (shards > 1)}, {self._size:,} rows at a time"

    def state(self, steps: int) -> dict[str, Any]:
        """What to go on from after so many steps: where the buffer of the next step begins, and what was counted."""
        return {**self._bookmark(steps).state(), "counted": self.tally.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.close()
        self.tally.restore(state["counted"])
        position = Position.of_state(state["position"])
        self._current = self._next = BufferStart(state["step"], position, state["tally"])
        self._examples = self._plan = None

    def close(self) -> None:
        """End the reading ahead."""
        self._stop.set()
        if self._ahead is not None and self._ahead.wait(SECONDS_TO_STOP) and self._buffers is not None:
            self._buffers.close()
        self._ahead = self._buffers = None
        self._stop = threading.Event()

    def _bookmark(self, steps: int) -> BufferStart:
        return self._next if steps >= self._next.step else self._current

    # ---- from buffer to buffer -------------------------------------------------------------------------------------

    def _next_buffer(self) -> None:
        """Go on to the next buffer, and to more if the filters leave too little of it."""
        start, parts, found = self._next.position, list[E](), StreamCounts()
        examples = self._making.join(parts)
        whole_epochs = -1 if start.row or start.place else 0
        while len(examples) < self.micro_batches:
            if whole_epochs > 0:  # and still too few
                raise self._too_few(len(examples), found)
            shares = self._take()
            made = {number: part for share in shares for number, part in share.made.items()}
            for number in sorted(made):
                part, told, left_out = made[number]
                parts.append(part)
                found.add(told, left_out)
            passed, end = shares[0].passed, shares[0].end
            found.add(SplitReport(passed.total(), dropped=passed), {})
            whole_epochs += end.epoch - shares[0].start.epoch
            examples = self._making.join(parts)
            if not examples:
                start, parts = end, []
        self._examples, self._plan = examples, self._making.plan(examples, buffer_seed(self._seed, start))
        padding = self._plan.padding()
        self.tally.restore(self._next.tally)  # a resumed run has counted this buffer before
        self.tally.add(found.told, found.left_out)
        self.tally.real_tokens += padding.real_tokens
        self.tally.padded_tokens += padding.padded_tokens
        self._current = self._next
        self._next = BufferStart(self._current.step + self._plan.steps_per_epoch, end, self.tally.state())

    def _take(self) -> list[BufferShare[E]]:
        """What each process made of the next buffer; the one after it is begun."""
        if self._ahead is None:
            self._buffers = self._stream.buffers(self._seed, self._size, self.micro_batches, self._next.position)
            self._ahead = BackgroundTask(self._make)
        mine = self._ahead.result()
        self._ahead = None
        shares: list[BufferShare[E]] = []
        for share in self._exchange(mine):
            if isinstance(share, KitError):
                raise DataError(
                    f"{share} The run can go on from here when the data can be read again: kit train … --resume"
                ) from share
            shares.append(share)
        first = shares[0]
        if any((share.start, share.end, share.chunks) != (first.start, first.end, first.chunks) for share in shares):
            raise DataError("the processes read different training data. Give all of them the same.")
        self._ahead = BackgroundTask(self._make)
        return shares

    def _make(self) -> BufferShare[E] | KitError:
        """This process's share of the next buffer; or why there is none, since the others must learn of it."""
        assert self._buffers is not None
        stop, buffers, made, number = self._stop, self._buffers, {}, -1
        start = buffers.start
        try:
            for number, chunk in enumerate(buffers.read()):
                if stop.is_set():
                    raise Cancelled
                if number % self._processes == self._process:
                    rows, told = self._stream.rows_of(chunk)
                    examples, left_out = self._making.encode(rows)
                    made[number] = (examples, told, left_out)
        except KitError as error:
            return error
        return BufferShare(start, buffers.start, number + 1, buffers.passed(), made)

    def _too_few(self, count: int, found: StreamCounts) -> DataError:
        left_out = {**found.told.dropped, **found.left_out}
        reasons = ", ".join(f"{name}: {number:,}" for name, number in left_out.items() if number)
        if count:
            return DataError(
                f"there are {count} training examples, too few for train.micro_batches={self.micro_batches}: every "
                f"micro-batch needs at least one ({reasons or 'none'} left out)"
            )
        return DataError(f"no training example is left of {found.told.read:,} rows ({reasons})")
