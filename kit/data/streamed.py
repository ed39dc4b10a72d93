"""From `data:` in the recipe to splits of which train is a stream; validation and test are in memory, as always."""

import hashlib
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from kit.data.checks import Splits, check_fingerprints, count_rows, missing_splits, refuse_empty
from kit.data.columns import drop_missing, keep_common_columns, name_columns, plain_text, unfold
from kit.data.formats.tables import check_column_names
from kit.data.report import DataReport, SplitReport
from kit.data.rows import fingerprint, to_dataset
from kit.data.sources import (
    Read,
    all_of,
    kind_of,
    layout_of,
    load_from_hub,
    local_files,
    read_files,
    split_names,
)
from kit.data.steps import RowSteps
from kit.data.streaming.shards import FileShard, HubShard, Shard, usable_tables
from kit.data.streaming.stream import Chunk, ShardPart, Stream
from kit.errors import DataError
from kit.hub.names import one_line

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.recipe.data import DataSection


def load_streamed(data: "DataSection", steps: RowSteps) -> Splits:
    """Open the data that a recipe names. Raises DataError if it is not there or not as the recipe says.

    Of train, nothing is read but a row to see that it is as it should be, the head where validation or test are held
    out of it, and the first `data.max_examples`.
    """
    from datasets import DatasetDict

    shards, others = open_splits(data, steps)
    report = DataReport()
    found: dict[str, Dataset] = {}
    for split, (dataset, told) in others.items():
        report.splits[split] = told
        rows = name_columns(dataset, data, split, report, steps.columns)
        found[split] = drop_missing(steps.expand(rows, told), data.roles, told)
    check_columns(shards[0], data, steps, report)
    stream = Stream([ShardPart(shard) for shard in shards], partial(rows_of, data, steps))
    stream = hold_out_head(stream, found, data, report)
    if data.max_examples is not None:
        stream = stream.limit_to_head(max(1, data.max_examples // steps.examples_per_row))
    refuse_empty(found, data, steps, report)
    keep_common_columns(found, data.roles, report)
    count_rows(found, data.roles, report)
    report.splits = {"train": SplitReport(0), **report.splits}
    fingerprints = {"train": stream_fingerprint(stream)} | {name: fingerprint(split) for name, split in found.items()}
    check_fingerprints(fingerprints, data)
    return Splits(DatasetDict(found), report, fingerprints, stream)


def open_splits(data: "DataSection", steps: RowSteps) -> tuple[list[Shard], dict[str, Read]]:
    """The shards of train, and the rows of validation and test as far as the data has them."""
    path, kind = Path(data.path).expanduser(), kind_of(data)
    if kind == "local":
        files = local_files(path, data, steps)
        shards: list[Shard] = [FileShard(shard, layout_of(data)) for shard in files.pop("train")]
        return shards, {split: read_files(rest, data, steps) for split, rest in files.items()}
    hub = load_from_hub(data, path, streaming=True)
    names = split_names(data, hub)
    train = hub[names.pop("train")]
    shards = [HubShard(train, number, data.path, hub_commit(data)) for number in range(train.num_shards)]
    return shards, {split: all_of(read_whole(hub[name], data)) for split, name in names.items()}


def hub_commit(data: "DataSection") -> str:
    """The commit that a Hub dataset is at: other data under the same name must be noticed when a run is resumed."""
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(data.path, revision=data.revision).sha)
    except Exception as error:
        raise DataError(f"data.path: the Hub does not tell the commit of {data.path}: {one_line(error)}") from error


def read_whole(split: "Dataset", data: "DataSection") -> "Dataset":
    """All rows of a split that the Hub streams."""
    try:
        tables = [table for table, _ in usable_tables(split)]
    except Exception as error:
        raise DataError(f"data.path: a split of {data.path} could not be read: {one_line(error)}") from error
    return to_dataset(plain_text(pa.concat_tables(tables, promote_options="permissive")))


def check_columns(shard: Shard, data: "DataSection", steps: RowSteps, report: DataReport) -> None:
    """Raise DataError if the first rows of a stream do not have the columns of the recipe."""
    rows = shard.open(())
    table = rows.take(100)
    rows.close()
    report.notes += [f"{count} of the first rows of train with {what}" for what, count in (+rows.flagged).items()]
    if not table.num_rows:
        raise DataError(f"{shard.name} holds no rows.")
    check_column_names(table, shard.name)
    name_columns(to_dataset(table), data, "train", report, steps.columns)


def rows_of(data: "DataSection", steps: RowSteps, chunk: Chunk) -> tuple["Dataset", SplitReport]:
    """The rows of a chunk with no other columns than those of the task."""
    table = unfold(to_dataset(chunk.table), set(data.text_columns)).data.table
    # where a chunk of JSON lines never has a key, there is no column
    absent = pa.nulls(table.num_rows, pa.string())
    columns = {name: table[name] if name in table.column_names else absent for name in data.text_columns}
    rows = name_columns(to_dataset(plain_text(pa.table(columns))), data, "train", DataReport(), steps.columns)
    told = SplitReport(chunk.table.num_rows + chunk.dropped.total(), dropped=Counter(chunk.dropped))
    rows = drop_missing(steps.expand(rows, told), data.roles, told)
    told.rows = len(rows)
    return rows, told


def hold_out_head(stream: Stream, found: "dict[str, Dataset]", data: "DataSection", report: DataReport) -> Stream:
    """Take validation and test from the head of the data where it has none and the recipe gives a size; the rest is
    what is trained on."""
    for split, size in missing_splits(
        found, data, {"validation": data.validation_size, "test": data.test_size}
    ).items():
        head, report.splits[split], stream = stream.split_off_head(size)
        if not stream.parts:
            raise DataError(
                f"data.{split}_size: {size} rows cannot be held out of {data.path} and leave any to train on."
            )
        found[split] = head
    return stream


def stream_fingerprint(stream: Stream) -> str:
    """Sixteen hexadecimal digits that stand for the files that are streamed, by name and size, or their commit."""
    parts = [[part.shard.identity, part.cursor, part.rows] for part in stream.parts]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
