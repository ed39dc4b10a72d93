"""Which files of a folder are which split: `train.tsv`, or `train.de` beside `train.en`, each plain or as .gz; or
several shards, named as on the Hub: `train-00000-of-00008.jsonl`."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa

from kit.data.formats.reader import EXTENSIONS, FileTable, Layout, read_parallel, read_table
from kit.errors import DataError, did_you_mean

Files = dict[str, dict[str, list[Path]]]
ShardFiles = Path | dict[str, Path]
"""A file, or those of parallel text by the names of their columns."""

SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)")


def list_data_files(folder: Path, suffixes: Collection[str]) -> Files:
    """The files of a folder by beginning and ending of their names, `.gz` not counted. An ending may hold a dot if it
    is one of `suffixes`."""
    files: Files = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            name = path.name.removesuffix(".gz")
            ending = next((known for known in suffixes if name.endswith(f".{known}")), name.rpartition(".")[2])
            files.setdefault(name.removesuffix(f".{ending}"), {}).setdefault(ending, []).append(path)
    return files


def splits_of(files: Files, suffixes: Collection[str]) -> list[str]:
    """The splits that there is something to read of."""
    readable = (stem for stem, endings in files.items() if endings.keys() & {*suffixes, *EXTENSIONS})
    return [*dict.fromkeys(split_of(stem) for stem in readable)]


def split_of(stem: str) -> str:
    """The split that files belong to by the beginning of their names."""
    shard = SHARD.fullmatch(stem)
    return shard[1] if shard else stem


def read_shards(shards: Sequence[ShardFiles], layout: Layout) -> FileTable:
    """Read all shards of a split into one table."""
    read = [read_parallel(files, layout) if isinstance(files, dict) else read_table(files, layout) for files in shards]
    try:
        table = pa.concat_tables([shard.table for shard in read], promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{shards[0]} and its other shards do not have the same columns ({error}).") from error
    dropped = sum((shard.dropped for shard in read), Counter[str]())
    return FileTable(table, dropped, sum((shard.flagged for shard in read), Counter[str]()))


def split_files(folder: Path, split: str, files: Files, suffixes: dict[str, str], layout: Layout) -> list[ShardFiles]:
    """The files of each shard of a split, in order; `suffixes` are those of parallel text, each with the key of the
    recipe for it. Raises DataError if one is missing, or if there are several ways to read the split."""
    stems = [stem for stem in files if split_of(stem) == split and files[stem].keys() & {*suffixes, *EXTENSIONS}]
    numbers = [(int(shard[2]), int(shard[3])) for shard in map(SHARD.fullmatch, stems) if shard]
    if numbers and sorted(numbers) != [(number, len(stems)) for number in range(len(stems))]:
        raise DataError(
            f'{folder}: the shards of "{split}" are not complete, or there are others beside them: '
            f"{', '.join(stems[:8])}{' …' if len(stems) > 8 else ''}."
        )
    ordered = [stem for _, stem in sorted(zip(numbers, stems, strict=True))] if numbers else stems
    return [shard_files(folder, stem, files[stem], suffixes, layout) for stem in ordered]


def shard_files(
    folder: Path, stem: str, endings: dict[str, list[Path]], suffixes: dict[str, str], layout: Layout
) -> ShardFiles:
    """The file that has a beginning of its name, or those of parallel text."""
    parallel = [suffix for suffix in suffixes if suffix in endings]
    tables = [ending for ending in EXTENSIONS if ending in endings and ending not in suffixes]
    used = [path for ending in parallel + tables for path in endings[ending]]
    if len(used) > (len(parallel) if parallel else 1) or (parallel and tables):
        names = ", ".join(path.name for path in used)
        raise DataError(
            f'{folder}: the split "{stem}" is there more than once ({names}). Keep one, or rename the others.'
        )
    if tables:
        return used[0]
    for suffix, key in suffixes.items():
        if suffix not in endings:
            raise missing_file(folder, stem, key, suffix, endings)
    if given := layout.of_cells:
        raise DataError(f"data.{given[0]} has no meaning for parallel text ({used[0]}). Remove it.")
    return {suffix: endings[suffix][0] for suffix in suffixes}


def missing_file(folder: Path, stem: str, key: str, suffix: str, endings: dict[str, list[Path]]) -> DataError:
    return DataError(
        f'data.{key}: {folder} has no file "{stem}.{suffix}".{did_you_mean(suffix, endings)} '
        f'"{stem}" is there with: {", ".join(endings)}.'
    )
