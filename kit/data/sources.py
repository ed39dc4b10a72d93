"""Locate and read the data that a recipe names: `builtin:NAME`, a local file or folder, or a Hub dataset."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.data.builtin import load_builtin
from kit.data.columns import plain_text
from kit.data.formats.folders import (
    ShardFiles,
    list_data_files,
    missing_file,
    nested_files,
    read_shards,
    role_of,
    split_files,
    split_folders,
    splits_of,
    texts_in,
)
from kit.data.formats.layout import Layout, file_extension
from kit.data.formats.reader import EXTENSIONS
from kit.data.report import SplitReport
from kit.data.rows import to_dataset
from kit.data.steps import RowSteps
from kit.errors import DataError, DataMistakes, MissingDataError, NetworkError, did_you_mean
from kit.hub.download import hide_bars_without_terminal
from kit.hub.names import is_in_folder, looks_like_hub_id, one_line
from kit.hub.retry import is_transient
from kit.recipe.data import IN_MEMORY, TEXT_FILE_KEYS

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.recipe.data import DataSection

BUILTIN = "builtin:"
MAX_SHARDS = 20
"""More .txt files in a folder than this are taken for one text each, as in IMDb, rather than for shards of a split."""
SPLITS = ("train", "validation", "test")
OTHER_NAMES = {"validation": ("val", "valid", "dev")}
UNUSED = {
    "built-in": ("name", "revision", *TEXT_FILE_KEYS),
    "local": ("name", "revision", "languages", "sizes"),
    "Hub": (*TEXT_FILE_KEYS, "languages", "sizes"),
    "in-memory": ("name", "revision", *SPLITS, "languages", "sizes", *TEXT_FILE_KEYS, "streaming"),
}
"""Keys without effect on each kind of data."""
SplitRows = tuple["Dataset", SplitReport]
"""The rows of a split as they were read, and an account of them."""


def read_splits(data: "DataSection", steps: RowSteps) -> dict[str, SplitRows]:
    """Read the splits train, validation and test; those that the data does not have are left out."""
    path, kind = Path(data.path).expanduser(), source_kind(data)
    if data.rows is not None:
        return {split: all_rows(rows) for split, rows in data.rows.items()}
    if kind == "built-in":
        sizes: dict[str, int] = dict((data.sizes or {}).items())
        name = data.path.removeprefix(BUILTIN)
        tables = load_builtin(name, data.languages, sizes, data.seed, list(data.text_columns))
        return {split: all_rows(to_dataset(tables[name])) for split, name in split_names(data, tables).items()}
    if kind == "Hub":
        hub = load_from_hub(data, path)
        return {split: all_rows(hub[name]) for split, name in split_names(data, hub).items()}
    return {split: read_files(shards, data, steps) for split, shards in local_files(path, data, steps).items()}


def nearest_file(path: Path) -> str:
    """A hint at the file that was probably meant; empty if there is none."""
    return did_you_mean(path.name, os.listdir(path.parent)) if path.parent.is_dir() else ""


def all_rows(rows: "Dataset") -> SplitRows:
    """A split that was read without dropping a row."""
    return rows, SplitReport(len(rows))


def source_kind(data: "DataSection") -> str:
    """Where the data is: "in-memory", "built-in", "local" or, if no such file exists, "Hub".

    Raises DataError for a key of the recipe that has no effect there, and for rows that are no longer in memory.
    """
    path = Path(data.path).expanduser()
    if data.path == IN_MEMORY:
        kind = "in-memory"
        if data.rows is None:
            raise MissingDataError(
                "data.path: the rows were passed from Python, and a run does not store them. Name data to use "
                "instead, such as data.path=FILE; or, in Python, pass rows again: data={...}."
            )
    else:
        kind = "built-in" if data.path.startswith(BUILTIN) else "local" if path.exists() else "Hub"
    described = "rows passed from Python" if kind == "in-memory" else f"{kind} data ({data.path})"
    for name in UNUSED[kind]:
        if data.is_set(name):
            raise DataError(f"data.{name} has no meaning for {described}. Remove it.")
    return kind


def reject_pipe(path: Path) -> None:
    """Raise DataError for a pipe or a device, which can be read only once."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"data.path: {path} is a pipe or a device: write the data to a file.")


def local_files(path: Path, data: "DataSection", steps: RowSteps) -> dict[str, list[ShardFiles]]:
    """The files of each split. A single file is train; in a folder, the names of files or of folders decide."""
    suffixes = data.text_columns
    if path.is_dir() and (tables := steps.tables_in(path)):
        return {split: [tables[name]] for split, name in split_names(data, tables).items()}
    reject_pipe(path)
    if path.is_file():
        return {name: [path] for name in split_names(data, ["train"])}
    files, layout = list_data_files(path, suffixes), layout_of(data)
    available = splits_of(files, suffixes)
    if not any(name in available for split in SPLITS for name in candidates(data, split)):
        if folders := split_folders(path, suffixes, layout):
            if data.train not in folders and "data" in folders:  # as in repositories of the Hub
                return local_files(path / "data", data, steps)
            return {split: folders[name] for split, name in split_names(data, folders).items()}
        if data.train in files:
            suffix, key = next(iter(suffixes.items()))
            raise missing_file(path, data.train, key, suffix, files[data.train])
        if data.train == "train" and (texts := texts_in(path)):
            return {name: [*texts] for name in split_names(data, ["train"])}
        if not available and (file := next(nested_files(path), None)):
            raise DataError(nested_hint(path, file))
    return {
        split: split_files(path, name, files, suffixes, layout) for split, name in split_names(data, available).items()
    }


def nested_hint(folder: Path, file: Path) -> str:
    """What to do about a folder whose files are two or more folders below it."""
    if file.suffix == ".txt" and (role_of(file.parent.parent.name) or len(list(file.parent.iterdir())) > MAX_SHARDS):
        advice = (
            f"If {file.parent.name} is the class of the texts in its files, write one csv file for each split, with "
            "the columns text and label"
        )
    else:
        advice = f"Set data.path to the folder that has a file, or a folder of files, for each split: {file.parent}"
    return f"data.path: {folder} has no data files, but folders below it do, such as {file}. {advice}."


def layout_of(data: "DataSection") -> Layout:
    return Layout(data.columns, data.delimiter, data.quoting, data.encoding)


def read_files(shards: list[ShardFiles], data: "DataSection", steps: RowSteps) -> SplitRows:
    """All rows of the files of a split."""
    file = read_shards(shards, layout_of(data))
    # plain_text drops the metadata, which has the names of class labels
    rows = to_dataset(plain_text(file.table).replace_schema_metadata(file.table.schema.metadata))
    if isinstance(shards[0], Path):
        rows = steps.adapt(rows, shards[0])
    return rows, SplitReport(len(rows) + file.dropped.total(), dropped=file.dropped, flagged=file.flagged)


def load_from_hub(data: "DataSection", path: Path, streaming: bool = False) -> Any:
    """All splits of a Hub dataset: a DatasetDict, or an IterableDatasetDict that has read nothing yet.

    Raises DataError or NetworkError, naming both the path and the Hub id that were tried.
    """
    missing = MissingDataError(f"data.path: there is no file or folder {path.absolute()}.{nearest_file(path)}")
    has_extension = "/" not in data.path and re.fullmatch(r"\.[A-Za-z]{2,5}", path.suffix)
    if not looks_like_hub_id(data.path) or has_extension or file_extension(path) in EXTENSIONS:
        raise missing
    import datasets.utils
    import huggingface_hub.utils
    from huggingface_hub.constants import is_offline_mode

    try:
        with hide_bars_without_terminal(huggingface_hub.utils), hide_bars_without_terminal(datasets.utils):
            return datasets.load_dataset(data.path, data.name, revision=data.revision, streaming=streaming)
    # datasets, fsspec and pyarrow raise dozens of types here; all mean that the data is unavailable
    except Exception as error:
        if is_in_folder(data.path) and (is_transient(error) or is_offline_mode()):
            raise missing from None
        kind = NetworkError if is_transient(error) else MissingDataError
        raise kind(
            f"data.path: there is no file or folder {path.absolute()}, and it could not be loaded as a Hub id either: "
            f"{one_line(error)}"
        ) from error


def split_names(data: "DataSection", available: Collection[str]) -> dict[str, str]:
    """The name that each split has in the data. A split may only be missing if its name was left at the default.

    Data without a training split can be evaluated; `check_training_splits` rejects it for training.
    """
    names, mistakes = {}, []
    for split in SPLITS:
        name = next((candidate for candidate in candidates(data, split) if candidate in available), None)
        if name is not None:
            names[split] = name
        elif getattr(data, split) not in (None, split):
            mistakes.append(str(missing_split(data, split, available)))
    if not names and not mistakes:
        mistakes.append(str(missing_split(data, "train", available)))
    if mistakes:
        raise DataMistakes(mistakes, [*names])
    return names


def candidates(data: "DataSection", split: str) -> tuple[str, ...]:
    """The names that a split may have in the data."""
    wanted = getattr(data, split)
    return () if wanted is None else (wanted, *OTHER_NAMES.get(split, ())) if wanted == split else (wanted,)


def missing_split(data: "DataSection", split: str, available: Collection[str]) -> DataError:
    """The error for a split that the data does not have."""
    wanted = getattr(data, split)
    return DataError(
        f'data.{split}: {data.path} has no split "{wanted}".{did_you_mean(wanted, available)} '
        f"It has {', '.join(available) or 'none'}."
    )
