"""A folder of data files as a dataset on the Hub: parallel text becomes a table, everything else goes as it is."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kit.cards.markdown import table
from kit.data.formats.folders import Files, list_data_files, read_shards, split_of
from kit.data.formats.layout import Layout
from kit.data.formats.reader import EXTENSIONS
from kit.errors import DataError
from kit.sharing.folder import check_secrets

COPIED_EXTENSIONS = ("csv", "tsv", "json", "jsonl", "parquet", "txt")
"""Endings of files that the library `datasets` reads from the Hub, also as .gz."""
_SPLITS = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "dev": "validation",
}


def build_data_folder(source: Path, target: Path, repo: str) -> list[str]:
    """Write what is shared of a data folder into the empty folder `target`; returns what to tell about it.

    `datasets` reads it back from there, and every split must have as many rows as kit reads from the folder itself.
    """
    if not source.is_dir():
        raise DataError(f"{source} is no folder: give one with train, validation and test files")
    files = list_data_files(source, ())
    notes: list[str] = []
    counted: dict[str, int] = {}
    files.pop("README", None)
    for stem, endings in files.items():
        split = split_of(stem)
        known = [ending for ending in endings if ending in COPIED_EXTENSIONS]
        if len(known) == 1 and len(endings[known[0]]) == 1:
            (path,) = endings[known[0]]
            if not path.resolve().is_relative_to(source.resolve()):
                raise DataError(f"{path} is a link that leads out of {source}: replace it by the file, or remove it")
            shutil.copyfile(path, target / path.name)
            continue
        languages = [ending for ending in endings if ending not in EXTENSIONS and len(endings[ending]) == 1]
        if len(languages) < 2:
            notes += [f"left out: {path.name}" for paths in endings.values() for path in paths]
            continue
        rows = parallel_rows(files, stem, languages)
        pq.write_table(rows, target / f"{stem}.parquet")
        counted[split] = counted.get(split, 0) + rows.num_rows
        notes.append(f"{stem}: {rows.num_rows:,} rows of {', '.join(languages)} as {stem}.parquet")
    if not any(target.iterdir()):
        raise DataError(f"{source} holds no data: files such as train.jsonl, or train.de beside train.en")
    splits = read_back(target, source)
    for split, rows_expected in counted.items():
        found = splits.get(_SPLITS.get(split, split), ([], -1))[1]
        if found != rows_expected:
            raise DataError(
                f"{source}: {split} has {rows_expected} rows, but {found} are read back from the Hub's form"
            )
    write_data_card(source, target, repo, splits)
    check_secrets(target)
    return notes


def parallel_rows(files: Files, stem: str, languages: list[str]) -> pa.Table:
    """The lines of parallel text side by side, a column for each language."""
    return read_shards([{language: files[stem][language][0] for language in languages}], Layout()).table


def read_back(folder: Path, source: Path) -> dict[str, tuple[list[str], int]]:
    """Columns and number of rows of every split, as `datasets` reads the folder."""
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar, enable_progress_bar

    disable_progress_bar()
    try:
        loaded = load_dataset(str(folder), cache_dir=str(folder.parent / "cache"))
        return {str(split): (rows.column_names, len(rows)) for split, rows in loaded.items()}
    except Exception as error:  # dozens of kinds, all of which mean the same
        raise DataError(f"{source} cannot be read as a dataset: {' '.join(str(error).split())[:300]}") from None
    finally:
        enable_progress_bar()


def write_data_card(source: Path, target: Path, repo: str, splits: dict[str, tuple[list[str], int]]) -> None:
    """The user's own README.md, or one that says what is there."""
    if (source / "README.md").is_file():
        shutil.copyfile(source / "README.md", target / "README.md")
        return
    rows = [[split, count, ", ".join(columns)] for split, (columns, count) in splits.items()]
    text = ["---", "tags: [seq2seq-kit]", "---", "", f"# {repo.partition('/')[2]}", ""]
    text += [table(("split", "rows", "columns"), rows), ""]
    text += [f"Train on it with kit: `kit train RECIPE data.path={repo}`", ""]
    (target / "README.md").write_text("\n".join(text), encoding="utf-8")
