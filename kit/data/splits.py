"""From `data:` in the recipe to splits with the columns of the task (source and target), and a report of what was left
out.

The data is found as `builtin:NAME`, as a local file or folder, or on the Hub, in this order. Nothing is dropped in
silence: the report accounts for every row that was read.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.data.builtin import load_builtin
from kit.data.columns import (
    drop_missing,
    identity,
    keep_common_columns,
    name_columns,
    plain_text,
)
from kit.data.formats.folders import ShardFiles, list_data_files, missing_file, read_shards, split_files, splits_of
from kit.data.formats.reader import EXTENSIONS, Layout, file_extension
from kit.data.report import DataReport, SplitReport
from kit.data.rows import (
    ColumnView,
    filter_rows,
    fingerprint,
    first_occurrences,
    held_out_mask,
    row_digests,
    to_dataset,
)
from kit.errors import DataError, NetworkError, did_you_mean
from kit.hub.names import looks_like_hub_id, one_line
from kit.hub.retry import is_transient
from kit.recipe.inputs import OF_TEXT_FILES
from kit.tasks.captioning.recipe import has_pictures
from kit.tasks.captioning.rows import known_names, metadata_files, one_row_a_picture, within
from kit.tasks.translation.directions import in_directions, limit_directions, linked_rows, repeat_directions
from kit.tasks.translation.recipe import has_directions

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from kit.data.streaming.stream import Stream
    from kit.recipe.inputs import DataSection

BUILTIN = "builtin:"
SPLITS = ("train", "validation", "test")
OTHER_NAMES = {"validation": ("val", "valid", "dev")}
UNUSED = {
    "built-in": ("name", "revision", *OF_TEXT_FILES),
    "local": ("name", "revision", "languages", "sizes"),
    "Hub": (*OF_TEXT_FILES, "languages", "sizes"),
}
# A split as it is in the data, and what there is to tell about its rows so far.
Read = tuple["Dataset", SplitReport]


@dataclass(frozen=True)
class Splits:
    """The data of a run."""

    datasets: "DatasetDict"
    """train, validation and, if there is one, test: each with the columns of the task and the same others."""

    report: DataReport
    """What was left out, and why."""

    fingerprints: dict[str, str]
    """Sixteen digits for each split that stand for all its rows; of a stream, for its files."""

    stream: "Stream | None" = None
    """The training data, if it is streamed: then it is not in `datasets`."""


def load_splits(data: "DataSection") -> Splits:
    """Load the data that a recipe names. Raises DataError if it is not there or not as the recipe says.

    Of the filters for training data, `drop_duplicates`, `direction_sizes` and `max_examples` are applied here; those
    that count tokens need a tokenizer.
    """
    from datasets import DatasetDict

    if data.streaming:
        from kit.data.streamed import load_streamed

        return load_streamed(data)
    report = DataReport()
    found: dict[str, Dataset] = {}
    for split, (dataset, told) in read_splits(data).items():
        report.splits[split] = told
        dataset = known_names(dataset, data) if has_pictures(data) else dataset
        found[split] = name_columns(dataset, data, split, report)
    if has_directions(data):
        # Before a row becomes several examples, so that it is held out in all directions.
        hold_out_missing(found, data, report)
        found = {split: in_directions(rows, data, report.splits[split]) for split, rows in found.items()}
    found = {split: drop_missing(rows, data.roles, report.splits[split]) for split, rows in found.items()}
    if has_pictures(data):
        found = {split: one_row_a_picture(rows, data, split, report.splits[split]) for split, rows in found.items()}
    if data.value_columns and "test" in found and not found["test"]:
        del found["test"], report.splits["test"]  # as in benchmarks that keep the answers to themselves
        report.notes.append("test is left out: none of its rows has all values")
    refuse_empty(found, data, report)
    if not has_directions(data):
        hold_out_missing(found, data, report)
    found["train"] = choose_training_rows(found["train"], data, report.splits["train"])
    found = {split: found[split] for split in SPLITS if split in found}
    if has_directions(data) and data.direction_repeats is not None:
        found["train"] = repeat_directions(found["train"], data, report.splits["train"])
    keep_common_columns(found, data.roles, report)
    count_rows(found, data.roles, report)
    fingerprints = {split: fingerprint(dataset) for split, dataset in found.items()}
    check_fingerprints(fingerprints, data)
    return Splits(DatasetDict(found), report, fingerprints)


def refuse_empty(found: "dict[str, Dataset]", data: "DataSection", report: DataReport) -> None:
    """Raise DataError for a split without rows; note a direction that has none."""
    for split, dataset in found.items():
        asked = set(data.directions or ()) if has_directions(data) else set()
        missing = asked - set(ColumnView(dataset, "direction") if asked else ())
        if missing and dataset:
            report.notes.append(f"{split}: no example in the direction {', '.join(sorted(missing))}")
        if not dataset:
            told = report.splits[split]
            reasons = ", ".join(f"{count} {why}" for why, count in told.dropped.items())
            raise DataError(f"{data.path}: no row of the {split} split can be used (of {told.read}: {reasons}).")


def read_splits(data: "DataSection") -> dict[str, Read]:
    """The splits train, validation and test, as far as the data has them."""
    path, kind = Path(data.path).expanduser(), kind_of(data)
    if kind == "built-in":
        sizes: dict[str, int] = dict((data.sizes or {}).items())
        name = data.path.removeprefix(BUILTIN)
        tables = load_builtin(name, data.languages, sizes, data.seed, list(data.text_columns))
        return {split: all_of(to_dataset(tables[name])) for split, name in split_names(data, tables).items()}
    if kind == "Hub":
        hub = load_from_hub(data, path)
        return {split: all_of(hub[name]) for split, name in split_names(data, hub).items()}
    return {split: read_files(shards, data) for split, shards in local_files(path, data).items()}


def all_of(rows: "Dataset") -> Read:
    """A split of which every row could be read."""
    return rows, SplitReport(len(rows))


def kind_of(data: "DataSection") -> str:
    """Where the data is found. Raises DataError if the recipe gives a key that has no meaning there."""
    path = Path(data.path).expanduser()
    kind = "built-in" if data.path.startswith(BUILTIN) else "local" if path.exists() else "Hub"
    for name in UNUSED[kind]:
        if getattr(data, name) != type(data).model_fields[name].default:
            raise DataError(f"data.{name} has no meaning for {kind} data ({data.path}). Remove it.")
    return kind


def local_files(path: Path, data: "DataSection") -> dict[str, list[ShardFiles]]:
    """The files of each split. A single file is train; in a folder, the names of the files say which split they are."""
    suffixes = data.text_columns
    if has_pictures(data) and path.is_dir() and (tables := metadata_files(path)):
        return {split: [tables[name]] for split, name in split_names(data, tables).items()}
    if path.is_file():
        return {name: [path] for name in split_names(data, ["train"])}
    there = list_data_files(path, suffixes)
    if data.train in there and data.train not in splits_of(there, suffixes):
        suffix, key = next(iter(suffixes.items()))
        raise missing_file(path, data.train, key, suffix, there[data.train])
    names = split_names(data, splits_of(there, suffixes))
    layout = layout_of(data)
    return {split: split_files(path, name, there, suffixes, layout) for split, name in names.items()}


def layout_of(data: "DataSection") -> Layout:
    return Layout(data.columns, data.delimiter, data.quoting, data.encoding)


def read_files(shards: list[ShardFiles], data: "DataSection") -> Read:
    """All rows of the files of a split."""
    file = read_shards(shards, layout_of(data))
    rows = to_dataset(plain_text(file.table))
    if has_pictures(data) and isinstance(shards[0], Path):
        rows = within(known_names(rows, data), data.image, shards[0], data)
    return rows, SplitReport(len(rows) + file.dropped.total(), dropped=file.dropped, flagged=file.flagged)


def load_from_hub(data: "DataSection", path: Path, streaming: bool = False) -> Any:
    """All splits of a Hub dataset: a DatasetDict, or an IterableDatasetDict that has read nothing yet.

    Whatever goes wrong, the message says that both a path and a Hub id were tried.
    """
    if not looks_like_hub_id(data.path) or file_extension(path) in EXTENSIONS:
        raise DataError(f"data.path: there is no file or folder {path.absolute()}.")
    from datasets import load_dataset

    try:
        return load_dataset(data.path, data.name, revision=data.revision, streaming=streaming)
    # The libraries below raise dozens of kinds; each means that the data is not to be had.
    except Exception as error:
        kind = NetworkError if is_transient(error) else DataError
        raise kind(
            f"data.path: there is no file or folder {path.absolute()}, and as a Hub id it could not be loaded: "
            f"{one_line(error)}"
        ) from error


def split_names(data: "DataSection", available: Collection[str]) -> dict[str, str]:
    """The name that each split has in the data. A split may only be missing if its name was left at the default."""
    names = {}
    for split in SPLITS:
        wanted = getattr(data, split)
        if wanted is None:
            continue
        candidates = (wanted, *OTHER_NAMES.get(split, ())) if wanted == split else (wanted,)
        name = next((candidate for candidate in candidates if candidate in available), None)
        if name is not None:
            names[split] = name
        elif split == "train" or wanted != split:
            raise DataError(
                f'data.{split}: {data.path} has no split "{wanted}".{did_you_mean(wanted, available)} '
                f"It has {', '.join(available) or 'none'}."
            )
    return names


def hold_out_missing(found: "dict[str, Dataset]", data: "DataSection", report: DataReport) -> None:
    """Take validation and test out of train where the data has none and the recipe gives a size."""
    data = data.with_sizes(len(found["train"])) if has_pictures(data) else data
    for split, size in missing_splits(found, data).items():
        held = held_out_mask(hold_out_groups(found["train"], data), size, f"{split}_size", data.held_out_by[0])
        found[split] = filter_rows(found["train"], held)
        found["train"] = filter_rows(found["train"], ~held)
        report.splits[split] = SplitReport(int(held.sum()))
        report.splits["train"].dropped[f"held out for {split}"] = int(held.sum())


def missing_splits(found: "Collection[str]", data: "DataSection") -> dict[str, int]:
    """The splits that have to be held out of train, and their sizes."""
    sizes = {"validation": data.validation_size, "test": data.test_size}
    for split, size in sizes.items():
        if split in found and size is not None:
            raise DataError(f"data.{split}_size: {data.path} has a split for {split} of its own. Remove the key.")
    if "validation" not in found and data.validation_size is None:
        raise DataError(
            f"{data.path} has no validation split, by which the best checkpoint is chosen. Name it "
            "(data.validation), or hold rows out of train (data.validation_size: 1000)."
        )
    return {split: size for split, size in sizes.items() if size is not None}


def hold_out_groups(train: "Dataset", data: "DataSection") -> np.ndarray:
    """A number for each row: rows of one number are held out together, or not at all."""
    if has_directions(data):
        return linked_rows(train, list(data.text_columns), data.seed)
    return row_digests(train, data.held_out_by, data.seed)


def choose_training_rows(train: "Dataset", data: "DataSection", told: SplitReport) -> "Dataset":
    """Apply drop_duplicates, then direction_sizes, then max_examples."""
    if data.drop_duplicates:
        first = first_occurrences(row_digests(train, identity(data)))
        told.dropped += Counter({"duplicate": int((~first).sum())})
        train = filter_rows(train, first)
    if has_directions(data) and data.direction_sizes is not None:
        train = limit_directions(train, data, told)
    if data.max_examples is not None and data.max_examples < len(train):
        told.dropped["beyond data.max_examples"] = len(train) - data.max_examples
        train = filter_rows(train, np.random.default_rng(data.seed).permutation(len(train)) < data.max_examples)
    return train


def count_rows(found: "dict[str, Dataset]", roles: Sequence[str], report: DataReport) -> None:
    """Complete the report by what was kept, split by split."""
    first = roles[0]
    trained = row_digests(found["train"], [first]) if "train" in found else np.empty(0)  # as of a stream
    for split, dataset in found.items():
        told = report.splits[split]
        told.rows = len(dataset)
        for role in roles:
            told.flagged += Counter({f"empty {role}": sum(cell == "" for cell in ColumnView(dataset, role))})
        if split != "train":
            known = np.isin(row_digests(dataset, [first]), trained).sum()
            article = "an" if first[0] in "aeiou" else "a"
            told.flagged += Counter({f"{article} {first} that is in train": int(known)})
    report.splits = {split: report.splits[split] for split in found}


def check_fingerprints(fingerprints: dict[str, str], data: "DataSection") -> None:
    """Raise DataError if the recipe knows other data under this path."""
    expected = fingerprints if data.fingerprints is None else data.fingerprints
    changed = [split for split in SPLITS if fingerprints.get(split) != expected.get(split)]
    if changed:
        raise DataError(
            f"data.fingerprints: {data.path} is not the data of this recipe: {', '.join(changed)} changed (now "
            f"{', '.join(f'{split} {fingerprints.get(split)}' for split in changed)}). Bring back the data, or undo "
            "the change of the data section; to go on with the new data, remove data.fingerprints."
        )
