"""A folder of data files as a dataset on the Hub: parallel text becomes parquet, everything else is copied unchanged.

`DatasetDict.push_to_hub` would rewrite every file as parquet, in several commits if there are many, and does not
compare what arrived; here, a dataset gets the same single verified commit as a model.
"""

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
"""Extensions that `datasets` loads from the Hub by itself, also as .gz."""
_SPLIT_NAMES = {  # how datasets names the split of a file
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "dev": "validation",
}


def build_data_folder(source: Path, target: Path, repo: str) -> list[str]:
    """Write the files of a data folder into the empty folder `target`, in their form for the Hub; returns notes.

    Raises DataError if `datasets` cannot read the result, or the number of rows differs from that of `source`.
    """
    if not source.is_dir():
        raise DataError(f"{source} is not a folder: expected one with train, validation and test files")
    files = list_data_files(source, ())
    notes: list[str] = []
    rows_written: dict[str, int] = {}
    files.pop("README", None)
    for stem, by_extension in files.items():
        split = split_of(stem)
        copied = [extension for extension in by_extension if extension in COPIED_EXTENSIONS]
        if len(copied) == 1 and len(by_extension[copied[0]]) == 1:
            (path,) = by_extension[copied[0]]
            if not path.resolve().is_relative_to(source.resolve()):
                raise DataError(f"{path} is a link to a file outside {source}: replace it with the file, or remove it")
            shutil.copyfile(path, target / path.name)
            continue
        languages = [name for name, paths in by_extension.items() if name not in EXTENSIONS and len(paths) == 1]
        if len(languages) < 2:
            notes += [f"left out: {path.name}" for paths in by_extension.values() for path in paths]
            continue
        rows = parallel_rows(files, stem, languages)
        pq.write_table(rows, target / f"{stem}.parquet")
        rows_written[split] = rows_written.get(split, 0) + rows.num_rows
        notes.append(f"{stem}: {rows.num_rows:,} rows of {', '.join(languages)} as {stem}.parquet")
    if not any(target.iterdir()):
        raise DataError(f"{source} contains no data: expected files such as train.jsonl, or train.de and train.en")
    splits = read_back(target, source)
    for split, rows_expected in rows_written.items():
        rows_read = splits.get(_SPLIT_NAMES.get(split, split), ([], -1))[1]
        if rows_read != rows_expected:
            raise DataError(
                f"{source}: {split} has {rows_expected} rows, but datasets reads {rows_read} from "
                "the files prepared for the Hub"
            )
    write_data_card(source, target, repo, splits)
    check_secrets(target)
    return notes


def parallel_rows(files: Files, stem: str, languages: list[str]) -> pa.Table:
    """The lines of parallel text as a table with a column per language."""
    return read_shards([{language: files[stem][language][0] for language in languages}], Layout()).table


def read_back(folder: Path, source: Path) -> dict[str, tuple[list[str], int]]:
    """Column names and number of rows of every split, as `datasets` reads the folder."""
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar, enable_progress_bar

    disable_progress_bar()
    try:
        loaded = load_dataset(str(folder), cache_dir=str(folder.parent / "cache"))
        return {str(split): (rows.column_names, len(rows)) for split, rows in loaded.items()}
    except Exception as error:  # dozens of types, which all mean that the files are unreadable
        raise DataError(f"{source} cannot be read as a dataset: {' '.join(str(error).split())[:300]}") from None
    finally:
        enable_progress_bar()


def write_data_card(source: Path, target: Path, repo: str, splits: dict[str, tuple[list[str], int]]) -> None:
    """Copy the user's README.md, or write one that lists the splits."""
    if (source / "README.md").is_file():
        shutil.copyfile(source / "README.md", target / "README.md")
        return
    rows = [[split, count, ", ".join(columns)] for split, (columns, count) in splits.items()]
    text = ["---", "tags: [seq2seq-kit]", "---", "", f"# {repo.partition('/')[2]}", ""]
    text += [table(("split", "rows", "columns"), rows), ""]
    text += [f"Train on it with kit: `kit train RECIPE data.path={repo}`", ""]
    (target / "README.md").write_text("\n".join(text), encoding="utf-8")
