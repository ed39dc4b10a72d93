"""Which files of a folder are which split: `train.tsv`, or `train.de` beside `train.en`, each plain or as .gz."""

from pathlib import Path

from kit.data.text_files import ENDINGS, FileTable, Layout, read_parallel, read_table
from kit.errors import DataError, did_you_mean

Files = dict[str, dict[str, list[Path]]]


def folder_files(folder: Path, suffixes: tuple[str, str]) -> Files:
    """The files of a folder by beginning and ending of their names, `.gz` not counted. An ending may hold a dot if it
    is one of `suffixes`."""
    files: Files = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            name = path.name.removesuffix(".gz")
            ending = next((known for known in suffixes if name.endswith(f".{known}")), name.rpartition(".")[2])
            files.setdefault(name.removesuffix(f".{ending}"), {}).setdefault(ending, []).append(path)
    return files


def splits_of(files: Files, suffixes: tuple[str, str]) -> list[str]:
    """The beginnings of names under which there is something to read."""
    return [stem for stem, endings in files.items() if endings.keys() & {*suffixes, *ENDINGS}]


def read_folder_split(folder: Path, stem: str, files: Files, suffixes: tuple[str, str], layout: Layout) -> FileTable:
    """Read the files of one split. Raises DataError if one is missing, or if there are several ways to read it."""
    endings = files[stem]
    parallel = [suffix for suffix in suffixes if suffix in endings]
    tables = [ending for ending in ENDINGS if ending in endings and ending not in suffixes]
    used = [path for ending in parallel + tables for path in endings[ending]]
    if len(used) > (2 if parallel else 1) or (parallel and tables):
        names = ", ".join(path.name for path in used)
        raise DataError(
            f'{folder}: the split "{stem}" is there more than once ({names}). Keep one, or rename the others.'
        )
    if tables:
        return read_table(used[0], layout)
    for key, suffix in zip(("source", "target"), suffixes, strict=True):
        if suffix not in endings:
            raise missing_suffix(folder, stem, key, suffix, endings)
    if layout.columns or layout.delimiter:
        raise DataError(f"data.columns and data.delimiter have no meaning for parallel text ({used[0]}). Remove them.")
    return read_parallel({suffix: endings[suffix][0] for suffix in suffixes}, layout)


def missing_suffix(folder: Path, stem: str, key: str, suffix: str, endings: dict[str, list[Path]]) -> DataError:
    return DataError(
        f'data.{key}: {folder} has no file "{stem}.{suffix}".{did_you_mean(suffix, endings)} '
        f'"{stem}" is there with: {", ".join(endings)}.'
    )
