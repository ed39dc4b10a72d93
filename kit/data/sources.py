"""Locate and read the data that a recipe names: `builtin:NAME`, a local file or folder, or a Hub dataset."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.data.builtin import load_builtin
from kit.data.columns import plain_text
from kit.data.formats.folders import ShardFiles, list_data_files, missing_file, read_shards, split_files, splits_of
from kit.data.formats.layout import Layout, file_extension
from kit.data.formats.reader import EXTENSIONS
from kit.data.report import SplitReport
from kit.data.rows import to_dataset
from kit.data.steps import RowSteps
from kit.errors import DataError, NetworkError, did_you_mean
from kit.hub.names import looks_like_hub_id, one_line
from kit.hub.retry import is_transient
from kit.recipe.data import TEXT_FILE_KEYS

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.recipe.data import DataSection

BUILTIN = "builtin:"
SPLITS = ("train", "validation", "test")
OTHER_NAMES = {"validation": ("val", "valid", "dev")}
UNUSED = {
    "built-in": ("name", "revision", *TEXT_FILE_KEYS),
    "local": ("name", "revision", "languages", "sizes"),
    "Hub": (*TEXT_FILE_KEYS, "languages", "sizes"),
}
SplitRows = tuple["Dataset", SplitReport]
"""The rows of a split as they were read, and an account of them."""


def read_splits(data: "DataSection", steps: RowSteps) -> dict[str, SplitRows]:
    """The rows of train, validation and test, as far as the data has them."""
    path, kind = Path(data.path).expanduser(), source_kind(data)
    if kind == "built-in":
        sizes: dict[str, int] = dict((data.sizes or {}).items())
        name = data.path.removeprefix(BUILTIN)
        tables = load_builtin(name, data.languages, sizes, data.seed, list(data.text_columns))
        return {split: all_rows(to_dataset(tables[name])) for split, name in split_names(data, tables).items()}
    if kind == "Hub":
        hub = load_from_hub(data, path)
        return {split: all_rows(hub[name]) for split, name in split_names(data, hub).items()}
    return {split: read_files(shards, data, steps) for split, shards in local_files(path, data, steps).items()}


def all_rows(rows: "Dataset") -> SplitRows:
    """A split of which every row could be read."""
    return rows, SplitReport(len(rows))


def source_kind(data: "DataSection") -> str:
    """Where the data is: "built-in", "local" or, if no such file exists, "Hub".

    Raises DataError for a key of the recipe that has no effect there.
    """
    path = Path(data.path).expanduser()
    kind = "built-in" if data.path.startswith(BUILTIN) else "local" if path.exists() else "Hub"
    for name in UNUSED[kind]:
        if data.is_set(name):
            raise DataError(f"data.{name} has no meaning for {kind} data ({data.path}). Remove it.")
    return kind


def local_files(path: Path, data: "DataSection", steps: RowSteps) -> dict[str, list[ShardFiles]]:
    """The files of each split. A single file is train; in a folder, file names decide."""
    suffixes = data.text_columns
    if path.is_dir() and (tables := steps.tables_in(path)):
        return {split: [tables[name]] for split, name in split_names(data, tables).items()}
    if path.is_file():
        return {name: [path] for name in split_names(data, ["train"])}
    files = list_data_files(path, suffixes)
    available = splits_of(files, suffixes)
    if data.train in files and data.train not in available:
        suffix, key = next(iter(suffixes.items()))
        raise missing_file(path, data.train, key, suffix, files[data.train])
    layout = layout_of(data)
    return {
        split: split_files(path, name, files, suffixes, layout) for split, name in split_names(data, available).items()
    }


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
    if not looks_like_hub_id(data.path) or file_extension(path) in EXTENSIONS:
        raise DataError(f"data.path: there is no file or folder {path.absolute()}.")
    from datasets import load_dataset

    try:
        return load_dataset(data.path, data.name, revision=data.revision, streaming=streaming)
    # datasets, fsspec and pyarrow raise dozens of types here; all mean that the data is unavailable
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
