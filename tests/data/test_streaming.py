"""Streams: every example once per epoch, in an order that neither resuming nor the number of processes changes."""

import csv
import gzip
import io
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RunKit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.processes import in_processes

from kit import load_recipe, train
from kit.data.batching.plan import BatchPlan
from kit.data.formats.folders import ShardFiles, read_shards
from kit.data.formats.layout import Layout
from kit.data.report import SplitReport
from kit.data.splits import Splits, load_splits
from kit.data.streaming.plan import StreamEncoder, StreamPlan
from kit.data.streaming.shards import FileShard
from kit.data.streaming.stream import CHUNK_ROWS, Chunk, ChunkReader, ShardPart, Stream
from kit.errors import DataError, RecipeError
from kit.runs.prepare import prepare
from kit.tasks.translation.directions import DirectionSteps
from kit.tasks.translation.recipe import TranslationData

# ---- the order of examples: shards of numbers, each of which is an example -------------------------------------------


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
            kept = [number for number in rows if number % self.keep == 0]
            return kept, {"filter": len(rows) - len(kept)}

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
def test_every_example_is_seen_once_per_epoch_within_the_budget(some: Plans) -> None:
    plan = some.plan()
    steps, ends = epochs_of(plan, 3)
    plan.close()
    for start, end in zip([0, *ends], ends, strict=False):
        seen = [number for step in steps[start:end] for part in step for number in part]
        assert sorted(seen) == sorted(some.examples)
    for step in steps:
        assert len(step) == some.parts
        assert all(step)
        examples = [number for part in step for number in part]
        padded = len(examples) * max(map(length, examples))
        assert padded <= some.budget * some.parts or len(examples) < 2 * some.parts
    assert plan.counts.report.read == plan.counts.report.rows == 3 * len(some.examples)


@given(plans, st.data())
@settings(max_examples=40, deadline=None)
def test_the_order_does_not_depend_on_resuming(some: Plans, data: st.DataObject) -> None:
    whole = some.plan()
    steps, _ = epochs_of(whole, 2)
    whole.close()
    stops = sorted(data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=5)))
    resumed: list[Step] = []
    state = None
    for stop in [*stops, len(steps)]:
        plan = some.plan()
        if state is not None:
            plan.restore(json.loads(json.dumps(state)))
        resumed += take(plan, len(resumed), stop - len(resumed))
        state = plan.state(stop)
        # killed some steps after its checkpoint; those steps are lost
        take(plan, stop, data.draw(st.integers(0, 3)))
        plan.close()
    assert resumed == steps
    final = some.plan()
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
    some = Plans(sizes, buffer_size, parts, keep=keep)
    plan = some.plan()
    if len(some.examples) < parts:
        with pytest.raises(DataError, match="too few for" if some.examples else "no training example is left"):
            plan.step(0)
        return
    steps, _ = epochs_of(plan, 3)
    reached = plan.counts.report.read
    plan.close()
    seen = Counter(number for step in steps for part in step for number in part)
    rows = [number for epoch in range(8) for part in some.stream.order(0, epoch) for number in part.shard.numbers]
    assert seen == Counter(number for number in rows[:reached] if number in some.examples)
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
    some = Plans([3 * size + 1, 5 * size, 2 * size], size, 1, budget=100_000)
    plan = some.plan()
    number = 0
    for buffer in range(1, 6):
        plan.step(number)
        assert plan._ahead is not None
        assert plan._ahead.wait(60)
        assert (buffer + 1) * size <= sum(some.read) <= (buffer + 1) * size + 2 * CHUNK_ROWS
        number = plan._next.step
    state = plan.state(number - 1)
    plan.close()
    some.read.clear()
    again = some.plan()
    again.restore(state)
    again.step(number - 1)
    assert again._ahead is not None
    assert again._ahead.wait(60)
    assert sum(some.read) <= 2 * size + 2 * CHUNK_ROWS
    again.close()


@given(plans, st.integers(2, 4))
@settings(max_examples=25, deadline=None)
def test_processes_share_the_encoding_and_plan_the_same(some: Plans, processes: int) -> None:
    single = some.plan()
    steps, _ = epochs_of(single, 2)
    single.close()
    group = ThreadGroup(processes)
    some.encoded.clear()

    def work(process: int) -> list[Step]:
        plan = some.plan(process=process, processes=processes, exchange=group.exchange(process))
        taken = take(plan, 0, len(steps))
        plan.close()
        return taken

    assert group.run(work) == [steps] * processes
    # each example was encoded by one process per epoch; one more buffer may have been started
    assert all(2 <= some.encoded[number] <= 3 for number in some.examples)


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

    some = Plans([100], 50, 2)
    some.stream = Stream([ShardPart(Unplugged((1, 2, 3), []))], rows_of)
    group = ThreadGroup(2)
    whole = Plans([100], 50, 2)

    def work(process: int) -> None:
        which = some if process else whole
        which.plan(process=process, processes=2, exchange=group.exchange(process)).step(0)

    for error in group.run(work):
        assert isinstance(error, DataError)
        assert "numbers could not be read beyond row 0: the cable is out" in str(error)
        assert "kit train … --resume" in str(error)


# ---- shards: reading continues at a cursor ---------------------------------------------------------------------------

odd = st.sampled_from("a \u2028\x85\x0b\"',▁é中🙂\ufeff\\")
cell = st.text(odd, max_size=6)
FORMATS = ["txt", "tsv", "csv", "jsonl", "json", "parquet", "de+en", "txt.gz", "csv.gz", "jsonl.gz", "de+en.gz"]


def write_shard(folder: Path, kind: str, rows: list[tuple[str, str]]) -> ShardFiles:
    """Two columns in a file of a format, or in two files of parallel text; txt has only the first."""
    ending = kind.removesuffix(".gz")
    if ending == "parquet":
        path = folder / "a.parquet"
        pq.write_table(pa.table({"de": [de for de, _ in rows], "en": [en for _, en in rows]}), path, row_group_size=3)
        return path
    if ending == "de+en":
        return {
            side: write_text(folder / f"a.{side}{kind[5:]}", "".join(f"{row[place]}\n" for row in rows))
            for place, side in enumerate(("de", "en"))
        }
    if ending in ("json", "jsonl"):
        # blank lines and missing keys
        lines = (json.dumps({"de": de, "en": en} if en else {"de": de}) + "\n" * (1 + len(de) % 2) for de, en in rows)
        return write_text(folder / f"a.{kind}", "".join(lines))
    if ending == "csv":
        file = io.StringIO(newline="")
        csv.writer(file).writerows([("de", "en"), *((f"{de}\n{de}", en) for de, en in rows)])
        return write_text(folder / f"a.{kind}", file.getvalue())
    lines = (f"{de}\t{en}\n" for de, en in [("de", "en"), *rows]) if ending == "tsv" else (f"{de}\n" for de, _ in rows)
    return write_text(folder / f"a.{kind}", "".join(lines))


def write_text(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def values(table: pa.Table) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]


@pytest.mark.parametrize("kind", FORMATS)
@given(rows=st.lists(st.tuples(cell, cell), min_size=1, max_size=12), takes=st.lists(st.integers(1, 5), min_size=13))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_shard_continues_at_any_cursor(
    tmp_path: Path, kind: str, rows: list[tuple[str, str]], takes: list[int]
) -> None:
    files = write_shard(tmp_path, kind, rows)
    whole = read_shards([files], Layout())
    shard, cursor, found, dropped = FileShard(files, Layout()), (), [], Counter[str]()
    for most in takes:
        open_shard = shard.open(cursor)
        table = open_shard.take(most)
        found += values(table)
        dropped += open_shard.dropped
        cursor = open_shard.cursor
        open_shard.close()
        assert table.num_rows == most or len(found) == whole.table.num_rows
    assert found == values(whole.table)
    assert dropped == whole.dropped


def test_undecodable_rows_are_counted_once(tmp_path: Path) -> None:
    texts = [f"Gr\u00f6\u00dfe {n}".encode("latin-1" if n in (3, 19, 20, 39) else "utf-8") for n in range(40)]
    (tmp_path / "a.txt").write_bytes(b"\n".join(texts))
    column = pa.array(texts, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", row_group_size=7)
    for name in ("a.txt", "a.parquet"):
        shard, cursor, found, dropped = FileShard(tmp_path / name, Layout()), (), [], Counter[str]()
        for most in (5, 11, 3, 2, 50, 1):
            rows = shard.open(cursor)
            found += [row["text"] for row in values(rows.take(most))]
            dropped += rows.dropped
            cursor = rows.cursor
            rows.close()
        assert found == [f"Gr\u00f6\u00dfe {n}" for n in range(40) if n not in (3, 19, 20, 39)]
        assert dropped == {"undecodable": 4}


def test_mistakes_in_shards_are_reported(tmp_path: Path) -> None:
    def reading(name: str, content: bytes, cursor: tuple[int, ...] = (), encoding: str = "utf-8") -> pa.Table:
        (tmp_path / name).write_bytes(content)
        return FileShard(tmp_path / name, Layout(encoding=encoding)).open(cursor).take(100_000)

    lines = b'{"a": "1"}\n{"a": "2"}\n{"a": }\n'
    with pytest.raises(DataError, match=r"a\.jsonl, line 3, column 7: invalid JSON"):
        reading("a.jsonl", lines, (1, 11))
    with pytest.raises(DataError, match=r"a\.json, row 1: expected an object"):
        reading("a.json", b'[{"a": "1"}]')
    with pytest.raises(DataError, match=r"a\.csv, line 3: .* starts at line 3"):
        reading("a.csv", b'a,b\n1,2\n3,"4\n', (2, 8))
    with pytest.raises(DataError, match=r"data\.encoding: in utf-16 a newline is not one byte"):
        reading("a.txt", "a\n".encode("utf-16"), encoding="utf-16")
    with pytest.raises(DataError, match=r"a\.parquet\.gz cannot be streamed"):
        reading("a.parquet.gz", b"")
    with pytest.raises(DataError, match="is truncated"):
        reading("a.txt.gz", gzip.compress(b"abc\n" * 10_000)[:-20])


# ---- whole runs ----------------------------------------------------------------------------------------------------

RECIPE = """\
task: translation
model: {type: rnn_seq2seq, cell: gru, hidden_size: 16, embedding_size: 8, attention: additive, dropout: 0.2}
tokenizer: {train: char, min_frequency: 1, train_examples: 120}
data: {path: corpus, source: de, target: en, streaming: true, buffer_size: 60, max_length: 12}
train: {max_steps: 70, tokens_per_batch: 128, learning_rate: 1e-2, logging_steps: 1, save_steps: 7}
eval: {steps: 35, metrics: [], max_new_tokens: 8, examples: 0}
"""
SHARDS = [70, 0, 45, 110]


def pair(number: int) -> dict[str, str]:
    """A text of up to fourteen letters and its reversal; all pairs are distinct."""
    text = f"{number:03d}" + "abcdefghijk"[: number % 12]
    return {"de": text, "en": text[::-1]}


def write_corpus(folder: Path, splits: tuple[str, ...] = ("validation", "test")) -> Path:
    corpus = folder / "corpus"
    corpus.mkdir()
    first = 0
    for place, size in enumerate(SHARDS):
        lines = "".join(json.dumps(pair(number)) + "\n" for number in range(first, first + size))
        (corpus / f"train-{place:05d}-of-{len(SHARDS):05d}.jsonl").write_text(lines or "\n", encoding="utf-8")
        first += size
    for split in splits:
        (corpus / f"{split}.jsonl").write_text("".join(json.dumps(pair(n)) + "\n" for n in range(500, 510)))
    (folder / "stream.yaml").write_text(RECIPE, encoding="utf-8")
    return folder / "stream.yaml"


@pytest.fixture
def stream_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe that streams a corpus of four shards, one of them empty, in the working folder."""
    monkeypatch.chdir(tmp_path)
    return write_corpus(tmp_path)


def weights(run: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(run / "model" / "model.safetensors").items()}


def losses(run: Path) -> list[float]:
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [entry["train_loss"] for entry in entries if "train_loss" in entry]


# `kit train` in child processes, the first of which are killed; forked, so that imports happen only once
KILLER = """
import os, signal, sys, time
from pathlib import Path
import kit.runs.train
from kit.cli import main

log = Path(sys.argv[1], "metrics.jsonl")
for kill_at in (9, 24, 40, None):
    child = os.fork()
    if child == 0:
        sys.argv = ["kit", "train", "stream.yaml", "--output", str(log.parent), "--resume"]
        main()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if kill_at and log.exists() and log.read_bytes().count(b"\\n") >= kill_at:
            os.kill(child, signal.SIGKILL)
            kill_at = None
        time.sleep(0.001)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the recipe that was never stopped."""
    folder = tmp_path_factory.mktemp("unbroken")
    recipe = load_recipe(write_corpus(folder))
    return train(recipe.with_values("data", path=str(folder / "corpus")), folder / "run").folder


@pytest.mark.slow
def test_killed_and_resumed_three_times_is_bit_identical(stream_recipe: Path, tmp_path: Path, unbroken: Path) -> None:
    killer = [sys.executable, "-c", KILLER, "broken"]
    done = subprocess.run(killer, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    codes = [line for line in done.stdout.splitlines() if line.removeprefix("-").isdigit()]
    assert codes == ["-9", "-9", "-9", "0"], done.stderr
    assert done.stderr.count("resuming at step") == 3
    assert weights(tmp_path / "broken") == weights(unbroken)
    assert losses(tmp_path / "broken") == losses(unbroken)
    results = [json.loads((run / "results.json").read_text()) for run in (tmp_path / "broken", unbroken)]
    assert results[0]["data"] == results[1]["data"]
    assert results[0]["train"]["epochs"] == results[1]["train"]["epochs"] > 2
    assert results[0]["data"]["left_out"]["max_length"] > 0


def test_two_processes_give_the_result_of_one(stream_recipe: Path, tmp_path: Path) -> None:
    recipe = load_recipe(stream_recipe, ["train.micro_batches=2", "train.max_steps=40", "eval.steps=0"])
    one = train(recipe, tmp_path / "one")
    in_processes(2, train, recipe, tmp_path / "two")
    two = json.loads((tmp_path / "two" / "results.json").read_text())
    assert two["train"]["processes"] == 2
    assert two["data"] == one.results["data"]
    assert losses(tmp_path / "two") == pytest.approx(losses(one.folder), rel=1e-5)
    states = [
        json.loads((run / "checkpoints" / "step-40" / "state.json").read_text())["plan"]
        for run in (one.folder, tmp_path / "two")
    ]
    assert states[0] == states[1]


def test_a_run_stopped_by_an_unreadable_line_can_be_resumed(
    stream_recipe: Path, tmp_path: Path, unbroken: Path, kit_here: RunKit
) -> None:
    shard = tmp_path / "corpus" / "train-00003-of-00004.jsonl"
    whole = shard.read_text(encoding="utf-8")
    shard.write_text(whole[:-3] + "!\n}", encoding="utf-8")  # the same size, so that it passes for the same data
    stopped = kit_here("train", stream_recipe, "--output", "broken")
    assert stopped.returncode == 2
    assert "train-00003-of-00004.jsonl, line 110" in stopped.stderr
    assert "kit train … --resume" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    shard.write_text(whole, encoding="utf-8")
    resumed = kit_here("train", stream_recipe, "--output", "broken", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    # from the step where the data ended, not from the last multiple of train.save_steps
    at = int(re.search(r"resuming at step (\d+)", resumed.stderr)[1])
    assert at % 7
    assert weights(tmp_path / "broken") == weights(unbroken)
    assert threading.active_count() == 1 or all(thread.name != "stream" for thread in threading.enumerate())


def streamed(path: str, **keys: Any) -> Splits:
    return load_splits(TranslationData(path=path, source="de", target="en", streaming=True, **keys))


def trained_on(splits: Splits) -> list[str]:
    """The sources of an epoch, in file order."""
    assert splits.stream is not None
    reader = ChunkReader(splits.stream.in_file_order)
    return [source for chunk in reader.chunks(10**6) for source in splits.stream.rows_of(chunk)[0]["source"]]


def test_the_head_is_held_out_and_never_trained_on(tmp_path: Path) -> None:
    write_corpus(tmp_path, splits=())
    corpus = str(tmp_path / "corpus")
    everything = [pair(number)["de"] for number in range(sum(SHARDS))]
    splits = streamed(corpus, validation_size=80, test_size=10)
    assert splits.datasets["validation"]["source"] == everything[:80]  # more than the first shard
    assert splits.datasets["test"]["source"] == everything[80:90]
    assert trained_on(splits) == everything[90:]
    assert set(splits.stream.sample(60)["source"]) <= set(everything[90:])
    capped = streamed(corpus, validation_size=10, max_examples=130)
    assert trained_on(capped) == everything[10:140]
    prints = [each.fingerprints["train"] for each in (splits, capped, streamed(corpus, validation_size=10))]
    assert len(set(prints)) == 3
    with pytest.raises(DataError, match=r"data\.validation_size: 300 rows .* leave any to train on"):
        streamed(corpus, validation_size=300)
    with pytest.raises(DataError, match="has no validation split"):
        streamed(corpus)


def test_quoted_cells_are_flagged_in_streams_as_well(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.tsv").write_text('de\ten\n"a b"\tc\nd\te\n', encoding="utf-8")
    told = streamed(str(tmp_path)).report.lines()
    assert any(line.startswith("1 of the first rows of train with a cell in quotation marks") for line in told)
    assert any(line.startswith("validation: 1 with a cell in quotation marks") for line in told)
    read = streamed(str(tmp_path), quoting=True)
    assert trained_on(read) == ["a b", "d"]
    assert "quotation" not in "".join(read.report.lines())


def test_a_sample_for_the_tokenizer_is_spread_over_the_shards(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    sample = streamed(str(tmp_path / "corpus")).stream.sample(12)["source"]
    assert sample == [pair(number)["de"] for number in (0, 1, 2, 70, 71, 72, 115, 116, 117)]


def test_shards_can_be_loaded_into_memory(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    corpus = tmp_path / "corpus"
    (corpus / "train-00001-of-00004.jsonl").write_text(json.dumps(pair(999)), encoding="utf-8")
    data = TranslationData(path=str(corpus), source="de", target="en")
    assert load_splits(data).datasets["train"]["source"] == trained_on(streamed(str(corpus)))
    (corpus / "train-00002-of-00004.jsonl").rename(corpus / "elsewhere.jsonl")
    for streaming in (False, True):
        with pytest.raises(DataError, match='the shards of "train" are incomplete'):
            load_splits(data.model_copy(update={"streaming": streaming}))


def test_changed_data_under_the_same_name_is_detected(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    corpus = tmp_path / "corpus"
    before = streamed(str(corpus)).fingerprints
    with (corpus / "train-00000-of-00004.jsonl").open("a") as file:
        file.write(json.dumps(pair(999)) + "\n")
    with pytest.raises(DataError, match="is not the data of this recipe: train changed"):
        streamed(str(corpus), fingerprints=before)


def test_a_column_can_be_missing_in_a_chunk_but_not_in_all(tmp_path: Path) -> None:
    rows = [{"de": str(n), "en": str(n)} if n < 500 else {"de": str(n)} for n in range(1000)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    splits = streamed(str(tmp_path / "train.jsonl"), validation_size=5)
    assert trained_on(splits) == [str(n) for n in range(5, 500)]
    with pytest.raises(DataError, match=r'data\.target: the train split .* has no column "fr"'):
        load_splits(TranslationData(path=str(tmp_path / "train.jsonl"), source="de", target="fr", streaming=True))


def test_directions_are_expanded_while_streaming(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    data = TranslationData(path=str(tmp_path / "corpus"), directions=["de-en", "en-de"], streaming=True)
    splits = load_splits(data, DirectionSteps(data))
    rows = splits.stream.sample(4)
    assert sorted(zip(rows["source"], rows["target"], rows["direction"], strict=True))[:1] == [("000", "000", "de-en")]
    assert Counter(rows["direction"]) == {"de-en": 3, "en-de": 3}
    assert Counter(splits.datasets["test"]["direction"]) == {"de-en": 10, "en-de": 10}


@pytest.mark.parametrize("names", [("de", "en"), ("translation.de", "translation.en")])
def test_a_hub_dataset_streams_shard_by_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    """Streams of `datasets`, over local files, since tests have no network."""
    import datasets
    import huggingface_hub

    plain = datasets.load_dataset
    files = {}
    for split, sizes in {"train": [30, 1200, 7], "validation": [4]}.items():
        files[split] = [str(tmp_path / f"{split}-{place}.parquet") for place in range(len(sizes))]
        for place, (file, size) in enumerate(zip(files[split], sizes, strict=True)):
            texts = [{"de": f"{place} {n}", "en": f"{n} {place}"} for n in range(size)]
            pq.write_table(pa.table({"translation": texts}), file, row_group_size=100)

    def load(path: str, name: str | None, revision: str | None, streaming: bool) -> Any:
        assert (path, name, revision) == ("wmt/wmt99", "de-en", None)
        return plain("parquet", data_files=files, streaming=streaming, cache_dir=str(tmp_path / "cache"))

    monkeypatch.setattr(datasets, "load_dataset", load)
    told = huggingface_hub.hf_api.DatasetInfo(
        id="wmt/wmt99", sha="c0ffee", private=False, downloads=0, likes=0, tags=[]
    )
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, path, revision: told)
    data = TranslationData(path="wmt/wmt99", name="de-en", source=names[0], target=names[1])
    splits = load_splits(data.model_copy(update={"streaming": True}))
    assert len(splits.stream.parts) == 3
    assert trained_on(splits) == load_splits(data).datasets["train"]["source"]
    assert splits.datasets["validation"]["target"] == ["0 0", "1 0", "2 0", "3 0"]
    # from any row on
    for row in (0, 1, 99, 1150):
        rows = splits.stream.parts[1].shard.open((row,))
        table = rows.take(60)
        rows.close()
        expected = [f"1 {n}" for n in range(row, min(row + 60, 1200))]
        assert [text["de"] for text in table["translation"].to_pylist()] == expected
    told.sha = "cafe"
    with pytest.raises(DataError, match="train changed"):
        load_splits(data.model_copy(update={"streaming": True, "fingerprints": splits.fingerprints}))


def test_the_dry_run_shows_the_first_buffer_of_training(stream_recipe: Path) -> None:
    prepared = prepare(load_recipe(stream_recipe, ["train.micro_batches=2"]))
    head = prepared.first_buffer()
    make, make_head = prepared.batch_maker(), head.batch_maker()
    for number in range(head.steps_per_epoch):
        for mine, theirs in zip(prepared.plan.step(number), head.plan.step(number), strict=True):
            batch, other = make(mine, np.random.default_rng(0)), make_head(theirs, np.random.default_rng(0))
            assert all(batch[name].equal(other[name]) for name in batch)
    prepared.plan.close()
    assert prepared.encoded.left_out == head.encoded.left_out


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["train.max_steps=null", "train.num_train_epochs=2"], "the number of steps in an epoch is unknown"),
        (["data.max_length=null"], "Set the maximum length"),
        (["data.drop_duplicates=true"], "data.drop_duplicates: it needs all training data in memory"),
        (["data.streaming=false"], "data.buffer_size: it has no effect without data.streaming"),
        (["tokenizer.train=bpe", "tokenizer.bpe_dropout=0.1"], "tokenizer.bpe_dropout: it needs all"),
        (["data.path=builtin:dates"], "data.streaming: built-in data is generated in memory"),
    ],
)
def test_keys_that_do_not_apply_to_streams_are_rejected(stream_recipe: Path, keys: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(stream_recipe, keys)


def test_a_batch_too_small_for_the_longest_text_is_rejected_at_once(stream_recipe: Path) -> None:
    with pytest.raises(DataError, match=r"Set train\.tokens_per_batch to 130 or more"):
        prepare(load_recipe(stream_recipe, ["train.micro_batches=10"]))


def test_the_recipe_for_many_gpus_streams_a_folder_with_the_layout_of_the_hub(tmp_path: Path) -> None:
    for split, count in {"train": 3, "validation": 1, "test": 1}.items():
        for place in range(count):
            texts = [{"de": f"Satz {place} {n}", "en": f"sentence {place} {n}"} for n in range(40)]
            file = tmp_path / f"{split}-{place:05d}-of-{count:05d}.parquet"
            pq.write_table(pa.table({"translation": texts}), file)
    small = ["model.hidden_size=8", "model.intermediate_size=8", "model.num_attention_heads=2"]
    prepared = prepare(load_recipe("wmt", [f"data.path={tmp_path}", "data.name=null", *small]))
    parts = prepared.plan.step(0)
    batch = prepared.batch_maker()(parts[0], np.random.default_rng(0))
    prepared.plan.close()
    assert len(batch["input_ids"]) == 120
    assert prepared.total_steps == 100_000
    assert "stream of 3 shards, 200,000 rows at a time" in "".join(prepared.summary())
