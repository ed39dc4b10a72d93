"""Which files of a folder belong to which split.

`train.tsv`, or `train.de` beside `train.en`, each plain or as .gz; or several shards, named as on the Hub:
`train-00000-of-00008.jsonl`. A split can also be a folder of files with any names, in the order of these:
`train/a.csv`, `train/b.csv`; or a dataset that `save_to_disk` wrote, whose state.json lists its files. A folder of
texts (`.txt`) of which none is named like a split is training data as a whole.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from kit.data.formats.conll import SPLIT_OF_EXTENSION
from kit.data.formats.layout import Layout, file_extension
from kit.data.formats.reader import EXTENSIONS, read_table
from kit.data.formats.tables import FileTable
from kit.data.formats.text import read_parallel
from kit.errors import DataError, did_you_mean

Files = dict[str, dict[str, list[Path]]]
"""Files by stem and extension: {"train": {"de": [train.de], "en": [train.en.gz]}}."""
ShardFiles = Path | dict[str, Path]
"""A file, or the files of parallel text by column name."""

STATE = "state.json"
"""The file in which `save_to_disk` lists the files of a dataset."""
SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)")
WORDS_OF_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid", "dev", "development", "testa"),
    "test": ("test", "tests", "testing", "testb", "tst", "eval", "evaluation", "heldout", "held", "holdout"),
}
"""Words in the names of files by the split that they stand for; "held" as in held-out."""
NOT_DATA = re.compile(r"(readme|licen[cs]e|notice|copying|citation|requirements|dataset_\w+|state)\b.*", re.IGNORECASE)


def list_data_files(folder: Path, suffixes: Collection[str]) -> Files:
    """The files of a folder by stem and extension, ignoring `.gz`. An extension in `suffixes` may contain a dot."""
    files: Files = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            name = path.name.removesuffix(".gz")
            extension = next((known for known in suffixes if name.endswith(f".{known}")), name.rpartition(".")[2])
            stem = SPLIT_OF_EXTENSION.get(extension) or name.removesuffix(f".{extension}")
            files.setdefault(stem, {}).setdefault(extension, []).append(path)
    return files


def split_folders(folder: Path, suffixes: dict[str, str], layout: Layout) -> dict[str, list[ShardFiles]]:
    """The data files of each subfolder, in order, by the name of the subfolder. Subfolders without data files are left
    out.

    A dataset that `save_to_disk` wrote without splits is "train".
    """
    if is_saved_dataset(folder):
        return {"train": files_in(folder, suffixes, layout)}
    inner = (path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith("."))
    return {path.name: files for path in inner if (files := files_in(path, suffixes, layout))}


def nested_files(folder: Path) -> Iterator[Path]:
    """The readable files at any depth below a folder."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and file_extension(path) in EXTENSIONS)


def role_of(name: str) -> str | None:
    """The split that a name stands for, by the words in it."""
    words = re.findall(r"[a-z]+", name.lower())
    for role, known in WORDS_OF_SPLITS.items():
        if any(word in known for word in words) or any(word.endswith(known[0]) for word in words):
            return role
    return None


def texts_in(folder: Path) -> list[Path]:
    """The .txt files of a folder that has no other data and no names of splits; empty for any other folder."""
    files = {
        stem: extensions
        for stem, extensions in list_data_files(folder, ()).items()
        if extensions.keys() & set(EXTENSIONS) and not NOT_DATA.fullmatch(stem)
    }
    if any(extensions.keys() & set(EXTENSIONS) != {"txt"} or role_of(stem) for stem, extensions in files.items()):
        return []
    return [path for extensions in files.values() for path in extensions["txt"]]


def is_saved_dataset(folder: Path) -> bool:
    """Whether `Dataset.save_to_disk` wrote the folder."""
    return (folder / STATE).is_file() and (folder / "dataset_info.json").is_file()


def files_in(folder: Path, suffixes: dict[str, str], layout: Layout) -> list[ShardFiles]:
    """The readable files of a folder whose files belong to one split, in order."""
    if is_saved_dataset(folder):
        return saved_files(folder)
    files = list_data_files(folder, suffixes)
    stems = [stem for stem, extensions in files.items() if extensions.keys() & {*suffixes, *EXTENSIONS}]
    return [shard_files(folder, stem, files[stem], suffixes, layout) for stem in stems]


def saved_files(folder: Path) -> list[ShardFiles]:
    """The files of a dataset that `save_to_disk` wrote, in order."""
    try:
        names = [str(entry["filename"]) for entry in json.loads((folder / STATE).read_bytes())["_data_files"]]
        if not names:
            raise ValueError("the list is empty")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{folder / STATE} does not list the files of the dataset ({error}): save it again.") from None
    return [folder / Path(name).name for name in names]


def splits_of(files: Files, suffixes: Collection[str]) -> list[str]:
    """The splits that have a readable file."""
    readable = (stem for stem, extensions in files.items() if extensions.keys() & {*suffixes, *EXTENSIONS})
    return [*dict.fromkeys(split_of(stem) for stem in readable)]


def split_of(stem: str) -> str:
    """The split that a file belongs to by its stem, which may have a shard number."""
    shard = SHARD.fullmatch(stem)
    return shard[1] if shard else stem


def read_shards(shards: Sequence[ShardFiles], layout: Layout) -> FileTable:
    """Read all shards of a split into one table."""
    tables = [
        read_parallel(files, layout) if isinstance(files, dict) else read_table(files, layout) for files in shards
    ]
    for shard, file in zip(tables[1:], shards[1:], strict=True):
        if shard.table.schema.metadata != tables[0].table.schema.metadata:
            raise DataError(
                f"{shards[0]} and {file} name their class labels differently: write them again with the same names."
            )
    try:
        table = pa.concat_tables([shard.table for shard in tables], promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{shards[0]} and its other shards have different columns ({error}).") from error
    dropped = sum((shard.dropped for shard in tables), Counter[str]())
    return FileTable(table, dropped, sum((shard.flagged for shard in tables), Counter[str]()))


def split_files(folder: Path, split: str, files: Files, suffixes: dict[str, str], layout: Layout) -> list[ShardFiles]:
    """The files of each shard of a split, in order; `suffixes` maps those of parallel text to their recipe keys.

    Raises DataError if a file is missing, or if the split could be read in several ways.
    """
    stems = [stem for stem in files if split_of(stem) == split and files[stem].keys() & {*suffixes, *EXTENSIONS}]
    numbers = [(int(shard[2]), int(shard[3])) for shard in map(SHARD.fullmatch, stems) if shard]
    if numbers and sorted(numbers) != [(number, len(stems)) for number in range(len(stems))]:
        raise DataError(
            f'{folder}: the shards of "{split}" are incomplete, or other files have the same name: '
            f"{', '.join(stems[:8])}{' …' if len(stems) > 8 else ''}."
        )
    ordered = [stem for _, stem in sorted(zip(numbers, stems, strict=True))] if numbers else stems
    return [shard_files(folder, stem, files[stem], suffixes, layout) for stem in ordered]


def shard_files(
    folder: Path, stem: str, by_extension: dict[str, list[Path]], suffixes: dict[str, str], layout: Layout
) -> ShardFiles:
    """The file with this stem; of parallel text, one file for each of `suffixes`.

    Raises DataError if a file of parallel text is missing, or if several formats share the stem.
    """
    parallel = [suffix for suffix in suffixes if suffix in by_extension]
    tables = [extension for extension in EXTENSIONS if extension in by_extension and extension not in suffixes]
    used = [path for extension in parallel + tables for path in by_extension[extension]]
    if len(used) > (len(parallel) if parallel else 1) or (parallel and tables):
        names = ", ".join(path.name for path in used)
        raise DataError(f'{folder}: several files can be the split "{stem}" ({names}). Keep one, or rename the others.')
    if tables:
        return used[0]
    for suffix, key in suffixes.items():
        if suffix not in by_extension:
            raise missing_file(folder, stem, key, suffix, by_extension)
    if keys := layout.tabular_keys:
        raise DataError(f"data.{keys[0]} has no effect on parallel text ({used[0]}). Remove it.")
    return {suffix: by_extension[suffix][0] for suffix in suffixes}


def missing_file(folder: Path, stem: str, key: str, suffix: str, by_extension: dict[str, list[Path]]) -> DataError:
    return DataError(
        f'data.{key}: {folder} has no file "{stem}.{suffix}".{did_you_mean(suffix, by_extension)} '
        f'"{stem}" exists with: {", ".join(by_extension)}.'
    )
