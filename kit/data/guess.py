"""Describe data without a recipe: its files, format, encoding, delimiter, columns and splits."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kit.data.formats.folders import (
    NOT_DATA,
    files_in,
    is_saved_dataset,
    list_data_files,
    nested_files,
    read_shards,
    role_of,
    split_of,
    texts_in,
)
from kit.data.formats.layout import Layout, file_extension
from kit.data.formats.reader import EXTENSIONS, FORMATS, Format, check_extension
from kit.data.formats.sniff import first_lines, guess_documents, guess_encoding, guess_table
from kit.data.formats.squad import is_squad
from kit.data.sources import (
    BUILTIN,
    OTHER_NAMES,
    SPLITS,
    layout_of,
    load_from_hub,
    local_files,
    nested_hint,
    reject_pipe,
)
from kit.data.steps import RowSteps
from kit.errors import DataError
from kit.recipe.data import DataSection
from kit.recipe.suggestion import IMAGE_NAME, Column, DataSample

if TYPE_CHECKING:
    from datasets import Dataset

VALUES = 1000
"""Values of a column that are inspected: enough to tell labels from texts, whatever the size of the file."""
METADATA = re.compile(r"metadata\.(jsonl|csv|parquet)")
"""The table of an image folder, as `datasets` names it."""


@dataclass(frozen=True)
class DataFiles:
    """The files of each split, and how they are named in a recipe."""

    files: Mapping[str, Any]
    """One file of each split, or the files of parallel text by suffix."""
    path: Path
    names: Mapping[str, str] = field(default_factory=dict)
    """The keys train, validation and test where the names of the splits are not the default."""
    suffixes: tuple[str, ...] = ()
    """The suffixes of parallel text."""


def sample_data(path: str, known: Mapping[str, Any] = MappingProxyType({})) -> DataSample:
    """What is at a path, or in a dataset on the Hub. Raises DataError if there is nothing that kit reads.

    `known` has the keys of the section `data` that the user set; the others are guessed.
    """
    location = Path(path).expanduser()
    if path.startswith(BUILTIN):
        raise DataError(
            f"{path} is data that a recipe generates: `kit recipes` lists them, `kit data RECIPE` shows it."
        )
    if not location.exists():
        return sample_hub(path, location, known)
    data_files = find_files(location)
    return sample_parallel(data_files, known) if data_files.suffixes else sample_tables(data_files, known)


def sample_hub(path: str, location: Path, known: Mapping[str, Any]) -> DataSample:
    """A sample of a dataset on the Hub."""
    tables = load_from_hub(DataSection(path=path, **known), location)
    roles = roles_of(tables)
    train = tables[roles.get("train", next(iter(tables)))]
    sizes = {role: len(tables[name]) for role, name in roles.items()}
    return DataSample({"path": path, **other_names(roles), **known}, "Hub dataset", columns_of(train), sizes)


# ---- files → splits --------------------------------------------------------------------------------------------------


def find_files(path: Path) -> DataFiles:
    """The files of a folder, or a file, by split. Raises DataError if there are none, or if none is for training."""
    reject_pipe(path)
    if path.is_file():
        return DataFiles({"train": path}, path)
    tables = [file for file in (*path.glob("*"), *path.glob("*/*")) if METADATA.fullmatch(file.name)]
    if tables:
        by_split = {"train" if table.parent == path else table.parent.name: table for table in sorted(tables)}
        return DataFiles(by_split, path)
    if is_saved_dataset(path):
        return DataFiles({"train": files_in(path, {}, Layout())[0]}, path)
    files = list_data_files(path, ())
    stems = {split_of(stem): stem for stem, extensions in files.items() if is_data(stem, extensions)}
    if not stems:
        return find_folders(path)
    roles = roles_of(stems)
    if "train" not in roles:
        if len(stems) == 1:
            (stem,) = stems.values()
            (file,) = (file for paths in files[stem].values() for file in paths)
            return DataFiles({"train": file}, file)
        if texts := texts_in(path):
            return DataFiles({"train": texts[0]}, path)
        raise DataError(
            f"{path} has several files, and none of them is named as the training data: "
            f"{', '.join(sorted(stems)[:8])}. "
            "Name one of them train, such as train.csv; move the training files into a folder "
            "named train; or pass the path of one file."
        )
    suffixes = parallel_suffixes(files[stems[roles["train"]]])
    used: dict[str, Any] = {}
    for role, name in roles.items():
        of_stem = files[stems[name]]
        if suffixes:
            used[role] = {suffix: of_stem[suffix][0] for suffix in suffixes if suffix in of_stem}
        else:
            used[role] = next(paths[0] for extension, paths in of_stem.items() if extension in EXTENSIONS)
    return DataFiles(used, path, other_names(roles), suffixes)


def find_folders(path: Path) -> DataFiles:
    """The files of a folder whose splits are folders. Raises DataError if there are none."""
    inner = {folder.name: folder for folder in sorted(path.iterdir()) if folder.is_dir() and folder.name[0] != "."}
    if set(inner) == {"data"}:
        return find_files(inner["data"])
    roles = roles_of(inner)
    firsts = {role: first_of_folder(inner[name]) for role, name in roles.items()}
    if firsts.get("train") is None:
        if file := next(nested_files(path), None):
            raise DataError(nested_hint(path, file))
        if image := next((file for file in sorted(path.iterdir()) if IMAGE_NAME.fullmatch(file.name)), None):
            raise DataError(
                f"{path} holds images and no text: add metadata.jsonl, with a line such as "
                f'{{"file_name": "{image.name}", "text": "…"}} for each image.'
            )
        raise DataError(
            f"{path} holds no data: kit reads files that end in {', '.join(EXTENSIONS)} (and .gz), and parallel text "
            "such as train.de beside train.en."
        )
    suffixes = tuple(firsts["train"]) if isinstance(firsts["train"], dict) else ()
    return DataFiles({role: first for role, first in firsts.items() if first}, path, other_names(roles), suffixes)


def first_of_folder(folder: Path) -> Any:
    """The first file of a folder with the files of one split, or the first files of parallel text."""
    files = list_data_files(folder, ())
    for stem, extensions in files.items():
        if suffixes := parallel_suffixes(extensions):
            return {suffix: extensions[suffix][0] for suffix in suffixes}
        if is_data(stem, extensions):
            return next(paths[0] for extension, paths in extensions.items() if extension in EXTENSIONS)
    return None


def is_data(stem: str, extensions: Mapping[str, list[Path]]) -> bool:
    """Whether files of this stem are data, rather than a license or code."""
    return not NOT_DATA.fullmatch(stem) and bool(set(extensions) & set(EXTENSIONS) or parallel_suffixes(extensions))


def parallel_suffixes(extensions: Mapping[str, list[Path]]) -> tuple[str, ...]:
    """The suffixes of parallel text: several files of one stem that differ in an extension that is not a format."""
    language = r"[a-z]{2,3}([-_]\w+)?|src|tgt|source|target"
    suffixes = tuple(name for name in extensions if re.fullmatch(language, name) and name not in EXTENSIONS)
    return suffixes if len(suffixes) > 1 else ()


def roles_of(names: Iterable[str]) -> dict[str, str]:
    """The name of each split: the usual name, or else the first that contains a word for it."""
    names = [*names]
    roles = {}
    for role in SPLITS:
        usual = [name for name in standard_names(role) if name in names]
        similar = [name for name in names if role_of(name) == role]
        if usual or similar:
            roles[role] = [*usual, *similar][0]
    return roles


def standard_names(role: str) -> tuple[str, ...]:
    """The names of a split that need no key."""
    return (role, *OTHER_NAMES.get(role, ()))


def other_names(roles: Mapping[str, str]) -> dict[str, str]:
    return {role: name for role, name in roles.items() if name not in standard_names(role)}


# ---- files → columns -------------------------------------------------------------------------------------------------


def sample_parallel(data_files: DataFiles, known: Mapping[str, Any]) -> DataSample:
    """A sample of parallel text."""
    encoding = known.get("encoding") or guess_encoding(next(iter(data_files.files["train"].values())))
    splits = {
        role: read_shards([files], Layout(encoding=encoding)).table for role, files in data_files.files.items() if files
    }
    source = {
        "path": str(data_files.path),
        **data_files.names,
        **({} if encoding == "utf-8" else {"encoding": encoding}),
    }
    sizes = {role: table.num_rows for role, table in splits.items()}
    return DataSample(source, "parallel text", table_columns(splits["train"]), sizes, is_parallel=True)


def sample_tables(data_files: DataFiles, known: Mapping[str, Any]) -> DataSample:
    """A sample of tables, text or anything else with one file for each split or several."""
    file: Path = data_files.files["train"]
    extension = file_extension(file)
    form, layout, documents, what = check_extension(file, Layout()), Layout(), "row", extension
    if form.is_text:
        layout, documents, what = guess_layout(file, form)
    if data_files.path.is_dir() and documents != "row" and texts_in(data_files.path):
        documents = "file"
    source = {"path": str(data_files.path), **data_files.names, **keys_of(layout), **known}
    steps = FolderSteps(data_files)
    data = steps.data = DataSection(**source)
    shards = local_files(data_files.path, data, steps)
    tables = {role: read_shards(files, layout_of(data)).table for role, files in shards.items()}
    sizes = {role: table.num_rows for role, table in tables.items()}
    if what == "JSON" and tables["train"].num_rows == 1 and (key := rows_within(tables["train"])):
        raise DataError(
            f'{file} is one object, whose key "{key}" seems to hold the rows: write them as one list, or each on a '
            "line of a .jsonl file."
        )
    return DataSample(source, what, table_columns(tables["train"]), sizes, documents=documents)


def rows_within(table: pa.Table) -> str | None:
    """The column whose only cell is a list of objects."""
    for name, cells in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_list(cells.type) and pa.types.is_struct(cells.type.value_type):
            return str(name)
    return None


class FolderSteps(RowSteps):
    """Row steps that know the tables of an image folder, so that these are read instead of the images."""

    def __init__(self, data_files: DataFiles):
        self.data_files = data_files

    def tables_in(self, folder: Path) -> Mapping[str, Path]:
        files = self.data_files.files
        has_tables = any(isinstance(file, Path) and METADATA.fullmatch(file.name) for file in files.values())
        return dict(files) if has_tables and folder == self.data_files.path else {}


def guess_layout(file: Path, form: Format) -> tuple[Layout, str, str]:
    """The layout of a text file, what a document is in it, and its format in words."""
    extension, encoding = file_extension(file), guess_encoding(file)
    if extension in ("csv", "tsv", "txt") and (table := guess_table(file, encoding)) is not None:
        return table, "row", extension if extension != "txt" else "table in a .txt file"
    if extension == "txt":
        documents = guess_documents(file, encoding)
        return Layout(encoding=encoding), documents, "plain text"
    if extension == "json" and is_squad(file):
        return Layout(encoding=encoding), "row", "SQuAD"
    if form is FORMATS["conll"] or form.read is FORMATS["conll"].read:
        columns = max((len(line.split()) for line in first_lines(file, encoding, 50)), default=0)
        return Layout(encoding=encoding), "row", f"CoNLL, {columns} columns"
    return Layout(encoding=encoding), "row", {"jsonl": "JSON lines", "json": "JSON"}.get(extension, extension)


def keys_of(layout: Layout) -> dict[str, Any]:
    """The keys of a layout that are not the default."""
    keys = {"columns": layout.columns, "delimiter": layout.delimiter, "quoting": layout.quoting}
    if layout.encoding != "utf-8":
        keys["encoding"] = layout.encoding
    return {name: value for name, value in keys.items() if value is not None}


def columns_of(rows: "Dataset") -> list[Column]:
    """The columns of a dataset."""
    return table_columns(rows.with_format("arrow")[:], {name for name in rows.features if is_class(rows, name)})


def is_class(rows: "Dataset", name: str) -> bool:
    from datasets import ClassLabel

    return isinstance(rows.features[name], ClassLabel)


def table_columns(table: pa.Table, classes: Iterable[str] | None = None) -> list[Column]:
    """The columns of a table; `classes` are those whose numbers have names."""
    if classes is None:
        recorded = (table.schema.metadata or {}).get(b"huggingface", b"").decode()
        classes = [
            name for name in table.column_names if re.search(rf'"{re.escape(name)}": {{[^{{}}]*"ClassLabel"', recorded)
        ]
    return [described(name, table[name], name in set(classes)) for name in table.column_names]


def described(name: str, cells: pa.ChunkedArray, is_class: bool) -> Column:
    """A column with its first values."""
    present = cells.drop_null()
    values = present.slice(0, VALUES).to_pylist()
    filled = [value for value in values if value != ""]
    if pa.types.is_nested(cells.type):
        distinct = len({repr(item) for value in filled for item in (value if isinstance(value, list) else [value])})
    else:
        filled_cells = present.filter(pc.not_equal(present, "")) if pa.types.is_string(cells.type) else present
        distinct = pc.count_distinct(filled_cells).as_py()
    return Column(name, filled, len(present), distinct, is_class)
