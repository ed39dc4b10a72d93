"""From `data:` in the recipe to splits of which train is a stream; validation and test are in memory, as always."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from kit.data.builder import SplitBuilder, Splits
from kit.data.columns import drop_missing, flatten_translations, name_columns, plain_text
from kit.data.formats.tables import check_column_names
from kit.data.report import DataReport, SplitReport
from kit.data.rows import to_dataset
from kit.data.sources import (
    SplitRows,
    all_rows,
    layout_of,
    load_from_hub,
    local_files,
    missing_split,
    read_files,
    source_kind,
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
    """Open the data that a recipe names. Raises DataError if it is missing or does not match the recipe.

    Of train, only this is read: the first rows, to check their columns; the head, where validation or test are held out
    of it; and the first `data.max_examples`.
    """
    shards, others = open_splits(data, steps)
    builder = SplitBuilder(data, steps)
    builder.report.splits["train"] = SplitReport(0)
    for split, (rows, report) in others.items():
        named = name_columns(rows, data, split, builder.report, steps.columns)
        builder.add(split, drop_missing(steps.expand(named, report), data.roles, report), report)
    check_columns(shards[0], data, steps, builder.report)
    stream = Stream([ShardPart(shard) for shard in shards], partial(rows_of, data, steps))
    stream = hold_out_head(stream, builder)
    if data.max_examples is not None:
        stream = stream.limit_to_head(max(1, data.max_examples // steps.examples_per_row))
    builder.check_not_empty()
    return builder.finish(stream)


def open_splits(data: "DataSection", steps: RowSteps) -> tuple[list[Shard], dict[str, SplitRows]]:
    """The shards of train, and the rows of validation and test as far as the data has them."""
    path, kind = Path(data.path).expanduser(), source_kind(data)
    if kind == "local":
        files = local_files(path, data, steps)
        if "train" not in files:
            raise missing_split(data, "train", [*files])
        shards: list[Shard] = [FileShard(shard, layout_of(data)) for shard in files.pop("train")]
        return shards, {split: read_files(rest, data, steps) for split, rest in files.items()}
    hub = load_from_hub(data, path, streaming=True)
    names = split_names(data, hub)
    if "train" not in names:
        raise missing_split(data, "train", hub)
    train = hub[names.pop("train")]
    shards = [HubShard(train, number, data.path, hub_commit(data)) for number in range(train.num_shards)]
    return shards, {split: all_rows(read_whole(hub[name], data)) for split, name in names.items()}


def hub_commit(data: "DataSection") -> str:
    """The current commit of a Hub dataset, by which a resumed run notices other data under the same name."""
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(data.path, revision=data.revision).sha)
    except Exception as error:
        raise DataError(f"data.path: cannot get the commit of {data.path} from the Hub: {one_line(error)}") from error


def read_whole(split: "Dataset", data: "DataSection") -> "Dataset":
    """All rows of a split that the Hub streams."""
    try:
        tables = [table for table, _ in usable_tables(split)]
    except Exception as error:
        raise DataError(f"data.path: a split of {data.path} could not be read: {one_line(error)}") from error
    return to_dataset(plain_text(pa.concat_tables(tables, promote_options="permissive")))


def check_columns(shard: Shard, data: "DataSection", steps: RowSteps, report: DataReport) -> None:
    """Raise DataError if the first rows of a stream lack the columns of the recipe."""
    rows = shard.open(())
    table = rows.take(100)
    rows.close()
    report.notes += [f"{count} of the first rows of train with {what}" for what, count in (+rows.flagged).items()]
    if not table.num_rows:
        raise DataError(f"{shard.name} has no rows.")
    check_column_names(table, shard.name)
    name_columns(to_dataset(table), data, "train", report, steps.columns)


def rows_of(data: "DataSection", steps: RowSteps, chunk: Chunk) -> tuple["Dataset", SplitReport]:
    """The rows of a chunk with only the columns of the task."""
    table = flatten_translations(to_dataset(chunk.table), set(data.text_columns)).data.table
    # where a chunk of JSON lines never has a key, there is no column
    absent = pa.nulls(table.num_rows, pa.string())
    columns = {name: table[name] if name in table.column_names else absent for name in data.text_columns}
    rows = name_columns(to_dataset(plain_text(pa.table(columns))), data, "train", DataReport(), steps.columns)
    report = SplitReport(chunk.table.num_rows + chunk.dropped.total(), dropped=Counter(chunk.dropped))
    rows = drop_missing(steps.expand(rows, report), data.roles, report, data.text_roles)
    report.rows = len(rows)
    return rows, report


def hold_out_head(stream: Stream, builder: SplitBuilder) -> Stream:
    """Take validation and test from the head of the stream where the data has none and the recipe gives a size; returns
    the rest."""
    data = builder.data
    for split, size in builder.held_out_sizes(builder.steps.holdout_sizes(0)).items():
        head, report, stream = stream.split_off_head(size)
        if not stream.parts:
            raise DataError(
                f"data.{split}_size: {size} rows cannot be held out of {data.path} and leave any to train on."
            )
        builder.add(split, head, report)
    return stream
