"""Streams: every example once per epoch, in an order that neither resuming nor the number of processes changes."""

import json
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.data.batching.plan import BatchPlan
from kit.data.report import SplitReport
from kit.data.streaming.plan import StreamEncoder, StreamPlan
from kit.data.streaming.stream import CHUNK_ROWS, Chunk, ShardPart, Stream
from kit.errors import DataError


@dataclass(frozen=True)
class Numbers:
    """A shard of numbers, which counts how many have been read."""

    numbers: tuple[int, ...]
    read: list[int]

    name = "numbers"
    identity = "numbers"

    def open(self, cursor: tuple[int, ...]) -> "NumberRows":
        return NumberRows(self, cursor[0] if cursor else 0)


class NumberRows:
    def __init__(self, shard: Numbers, first: int):
        self.shard, self.next, self.dropped = shard, first, Counter[str]()

    @property
    def cursor(self) -> tuple[int, ...]:
        return (self.next,)

    def take(self, count: int) -> pa.Table:
        taken = self.shard.numbers[self.next : self.next + count]
        self.next += len(taken)
        self.shard.read.append(len(taken))
        return pa.table({"number": pa.array(taken, pa.int64())})

    def close(self) -> None:
        pass


def length(number: int) -> int:
    return 1 + number * 7919 % 40


def rows_of(chunk: Chunk) -> tuple[Any, SplitReport]:
    numbers = chunk.table["number"].to_pylist()
    return numbers, SplitReport(len(numbers), len(numbers))


class Plans:
    """Plans over the same shards."""

    def __init__(self, sizes: list[int], buffer_size: int, parts: int, budget: int = 200, keep: int = 1, seed: int = 0):
        """One in `keep` examples passes the filter."""
        starts = np.cumsum([0, *sizes])
        self.read: list[int] = []
        shards = [
            Numbers(tuple(range(start, start + size)), self.read) for start, size in zip(starts, sizes, strict=False)
        ]
        self.stream = Stream([ShardPart(shard) for shard in shards], rows_of)
        self.examples = {number for shard in shards for number in shard.numbers if number % keep == 0}
        self.buffer_size, self.parts, self.budget, self.keep, self.seed = buffer_size, parts, budget, keep, seed
        self.encoded = Counter[int]()

    def plan(self, **settings: Any) -> StreamPlan[list[int]]:
        def encode(rows: Any) -> tuple[list[int], dict[str, int]]:
            self.encoded.update(rows)
            passing = [number for number in rows if number % self.keep == 0]
            return passing, {"filter": len(rows) - len(passing)}

        def plan(examples: list[int], seed: int) -> BatchPlan:
            sides = [np.array([length(number) for number in examples])]
            return BatchPlan(sides, seed=seed, size=self.budget * self.parts, micro_batches=self.parts)

        encoder = StreamEncoder(encode, lambda parts: [number for part in parts for number in part], plan)
        return StreamPlan(
            self.stream, encoder, seed=self.seed, buffer_size=self.buffer_size, micro_batches=self.parts, **settings
        )


Step = list[list[int]]


def take(plan: StreamPlan[list[int]], first: int, count: int) -> list[Step]:
    """The examples of some steps, micro-batch by micro-batch."""
    steps = []
    for number in range(first, first + count):
        parts = plan.step(number)
        steps.append([[plan.examples[index] for index in part] for part in parts])
    return steps


def epochs_of(plan: StreamPlan[list[int]], count: int) -> tuple[list[Step], list[int]]:
    """All steps of the first epochs, and the number of steps after each of them."""
    steps: list[Step] = []
    ends: list[int] = []
    while len(ends) < count:
        steps += take(plan, len(steps), 1)
        if plan.state(len(steps))["position"]["epoch"] > len(ends):
            ends.append(len(steps))
    return steps, ends


plans = st.builds(
    Plans,
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) >= 8),
    buffer_size=st.integers(1, 80),
    parts=st.integers(1, 4),
    seed=st.integers(0, 3),
)


@given(plans)
@settings(max_examples=40, deadline=None)
def test_every_example_is_seen_once_per_epoch_within_the_budget(plans: Plans) -> None:
    plan = plans.plan()
    steps, ends = epochs_of(plan, 3)
    plan.close()
    for start, end in zip([0, *ends], ends, strict=False):
        seen = [number for step in steps[start:end] for part in step for number in part]
        assert sorted(seen) == sorted(plans.examples)
    for step in steps:
        assert len(step) == plans.parts
        assert all(step)
        examples = [number for part in step for number in part]
        padded = len(examples) * max(map(length, examples))
        assert padded <= plans.budget * plans.parts or len(examples) < 2 * plans.parts
    assert plan.counts.report.read == plan.counts.report.rows == 3 * len(plans.examples)


@given(plans, st.data())
@settings(max_examples=40, deadline=None)
def test_the_order_does_not_depend_on_resuming(plans: Plans, data: st.DataObject) -> None:
    whole = plans.plan()
    steps, _ = epochs_of(whole, 2)
    whole.close()
    stops = sorted(data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=5)))
    resumed: list[Step] = []
    state = None
    for stop in [*stops, len(steps)]:
        plan = plans.plan()
        if state is not None:
            plan.restore(json.loads(json.dumps(state)))
        resumed += take(plan, len(resumed), stop - len(resumed))
        state = plan.state(stop)
        # killed some steps after its checkpoint; those steps are lost
        take(plan, stop, data.draw(st.integers(0, 3)))
        plan.close()
    assert resumed == steps
    final = plans.plan()
    final.restore(state)
    assert final.state(len(steps)) == whole.state(len(steps))
    assert final.counts == whole.counts
    assert final.epochs(len(steps)) == whole.epochs(len(steps)) == 2


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5).filter(sum),
    buffer_size=st.integers(1, 40),
    parts=st.integers(1, 4),
    keep=st.integers(2, 30),
)
@settings(max_examples=40, deadline=None)
def test_filtered_streams_neither_lose_nor_repeat_examples(
    sizes: list[int], buffer_size: int, parts: int, keep: int
) -> None:
    plans = Plans(sizes, buffer_size, parts, keep=keep)
    plan = plans.plan()
    if len(plans.examples) < parts:
        with pytest.raises(DataError, match="too few for" if plans.examples else "no training example is left"):
            plan.step(0)
        return
    steps, _ = epochs_of(plan, 3)
    reached = plan.counts.report.read
    plan.close()
    seen = Counter(number for step in steps for part in step for number in part)
    rows = [number for epoch in range(8) for part in plans.stream.order(0, epoch) for number in part.shard.numbers]
    assert seen == Counter(number for number in rows[:reached] if number in plans.examples)
    assert plan.counts.filtered == {"filter": reached - sum(seen.values())}


def test_epochs_and_seeds_have_different_orders() -> None:
    def orders(seed: int) -> list[list[int]]:
        plan = Plans([300, 300, 300, 300], 100, 1, seed=seed).plan()
        steps, ends = epochs_of(plan, 3)
        plan.close()
        return [
            [number for step in steps[start:end] for part in step for number in part]
            for start, end in zip([0, *ends], ends, strict=False)
        ]

    first, second = orders(0), orders(1)
    assert len({tuple(order) for order in (*first, *second)}) == 6
    # shards are shuffled as well: not all epochs start with the same one
    assert len({order[0] // 300 for order in (*first, *second)}) > 1


def test_padding_is_small_and_counted_exactly() -> None:
    plan = Plans([5000], 2000, 2, budget=400).plan()
    steps, _ = epochs_of(plan, 1)
    plan.close()
    padded = sum(len(part) * max(map(length, part)) for step in steps for part in step)
    real = sum(length(number) for step in steps for part in step for number in part)
    assert (plan.padding().real_tokens, plan.padding().padded_tokens) == (real, padded)
    assert plan.padding().share < 0.08


def test_one_buffer_is_read_ahead_and_resuming_reads_only_its_buffer() -> None:
    size = 10_000
    plans = Plans([3 * size + 1, 5 * size, 2 * size], size, 1, budget=100_000)
    plan = plans.plan()
    number = 0
    for buffer in range(1, 6):
        plan.step(number)
        assert plan._ahead is not None
        plan._ahead.result(60)
        assert (buffer + 1) * size <= sum(plans.read) <= (buffer + 1) * size + 2 * CHUNK_ROWS
        number = plan._next.step
    state = plan.state(number - 1)
    plan.close()
    plans.read.clear()
    again = plans.plan()
    again.restore(state)
    again.step(number - 1)
    assert again._ahead is not None
    again._ahead.result(60)
    assert sum(plans.read) <= 2 * size + 2 * CHUNK_ROWS
    again.close()


@given(plans, st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_processes_share_the_encoding_and_plan_the_same(plans: Plans, processes: int) -> None:
    single = plans.plan()
    steps, _ = epochs_of(single, 2)
    single.close()
    group = ThreadGroup(processes)
    plans.encoded.clear()

    def work(process: int) -> list[Step]:
        plan = plans.plan(process=process, processes=processes, exchange=group.exchange(process))
        taken = take(plan, 0, len(steps))
        plan.close()
        return taken

    assert group.run(work) == [steps] * processes
    # each example was encoded by one process per epoch; one more buffer may have been started
    assert all(2 <= plans.encoded[number] <= 3 for number in plans.examples)


class ThreadGroup:
    """Threads in the role of processes, with an all-gather."""

    def __init__(self, count: int):
        self.barrier = threading.Barrier(count)
        self.shared: list[Any] = [None] * count

    def exchange(self, process: int) -> Any:
        def exchange(mine: Any) -> list[Any]:
            self.shared[process] = mine
            self.barrier.wait(60)
            gathered = list(self.shared)
            self.barrier.wait(60)
            return gathered

        return exchange

    def run(self, work: Any) -> list[Any]:
        results: list[Any] = [None] * len(self.shared)

        def store(process: int) -> None:
            try:
                results[process] = work(process)
            except Exception as error:
                results[process] = error

        threads = [threading.Thread(target=store, args=(process,)) for process in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


def test_a_read_error_in_one_process_stops_all_with_the_same_message() -> None:
    class Unplugged(Numbers):
        def open(self, cursor: tuple[int, ...]) -> NumberRows:
            raise ConnectionError("the cable is out")

    unreadable = Plans([100], 50, 2)
    unreadable.stream = Stream([ShardPart(Unplugged((1, 2, 3), []))], rows_of)
    group = ThreadGroup(2)
    readable = Plans([100], 50, 2)

    def work(process: int) -> None:
        plans = unreadable if process else readable
        plans.plan(process=process, processes=2, exchange=group.exchange(process)).step(0)

    for error in group.run(work):
        assert isinstance(error, DataError)
        assert "numbers could not be read beyond row 0: the cable is out" in str(error)
        assert "kit train … --resume" in str(error)
