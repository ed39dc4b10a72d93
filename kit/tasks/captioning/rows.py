"""Rows of pictures with captions: in which files they are, and all captions of a picture in one row.

A picture is known by a digest of its content. So it is held out with all its captions, also where it is there under two
names; a picture that was changed is noticed; and rows can be compared, counted and written down without its bytes.
"""

import hashlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.data.columns import is_text
from kit.data.report import SplitReport
from kit.data.rows import IMAGE_BYTES, filter_rows
from kit.data.steps import RowSteps
from kit.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.captioning.recipe import CaptioningData

FILE = "file"
"""Column of the name by which a person knows a picture."""

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
OTHER_NAMES = {"image": ("file_name",), "caption": ("captions", "text")}
ROWS_AT_ONCE = 200
"""Few, since a row holds a picture."""


class ImageSteps(RowSteps):
    """Image folders with a table of captions, and all captions of an image in one row."""

    data: "CaptioningData"

    def tables_in(self, folder: Path) -> dict[str, Path]:
        return metadata_files(folder)

    def adapt(self, rows: "Dataset", table: Path | None = None) -> "Dataset":
        rows = known_names(rows, self.data)
        return rows if table is None else within(rows, self.data.image, table, self.data)

    def merge(self, rows: "Dataset", split: str, report: SplitReport) -> "Dataset":
        return one_row_a_picture(rows, self.data, split, report)

    def holdout_sizes(self, rows: int) -> dict[str, int | None]:
        """Shares of the images count as numbers of images."""
        sizes = super().holdout_sizes(rows)
        shares = {"validation": self.data.validation_share, "test": self.data.test_share}
        return sizes | {name: max(1, round(share * rows)) for name, share in shares.items() if share is not None}


def metadata_files(folder: Path) -> dict[str, Path]:
    """The tables of an image folder by their splits: of the folder itself, which is train, or of folders in it."""
    found: dict[str, Path] = {}
    for split, place in [("train", folder), *((inner.name, inner) for inner in sorted(folder.iterdir()))]:
        tables = [place / name for name in METADATA if (place / name).is_file()]
        if len(tables) > 1:
            raise DataError(f"{place} has {tables[0].name} and {tables[1].name}. Keep one.")
        if tables and "train" in found and found["train"].parent == folder:
            raise DataError(f"{folder} has {found['train'].name}, and {place.name} in it has one, too. Keep one.")
        if tables:
            found[split] = tables[0]
    return found


def known_names(rows: "Dataset", data: "CaptioningData") -> "Dataset":
    """The rows with usual names of columns as the recipe has them, where the recipe leaves them at the default."""
    for key, others in OTHER_NAMES.items():
        there = [name for name in others if name in rows.column_names]
        if getattr(data, key) == key and key not in rows.column_names and there:
            rows = rows.rename_column(there[0], key)
    return rows


def root_of(data: "CaptioningData") -> Path:
    """The folder that file names are relative to."""
    path = Path(data.path).expanduser()
    return path.parent if path.is_file() else path


def within(rows: "Dataset", column: str, table: Path, data: "CaptioningData") -> "Dataset":
    """The rows of a table in a folder of its own with file names that are relative to the whole."""
    folder = table.parent.relative_to(root_of(data)) if table.parent != root_of(data) else Path()
    if folder == Path() or column not in rows.column_names or not is_text(rows.data.schema.field(column).type):
        return rows
    names = [None if name is None else (folder / name).as_posix() for name in rows[column]]
    return replaced(rows, column, names)


def one_row_a_picture(rows: "Dataset", data: "CaptioningData", split: str, told: SplitReport) -> "Dataset":
    """A row for each picture: `image` is its digest, `caption` the list of its captions, `file` its name.

    Pictures that are in the table, not in files, are in the column `picture`. Rows without a caption are left out.
    """
    from datasets import List, Value

    digests: list[str] = []
    names: list[str] = []
    for cell in cells(rows, "image"):
        content, name = content_of(cell, data, f"{split} {len(names) + 1}")
        digests.append(hashlib.blake2b(content, digest_size=8).hexdigest())
        names.append(name)
    first: dict[str, int] = {}
    captions: list[list[str]] = [[] for _ in digests]
    for place, (digest, cell) in enumerate(zip(digests, cells(rows, "caption"), strict=True)):
        found = captions_of(cell, f"data.caption: {data.path}, {split}, row {place + 1}")
        if found:
            captions[first.setdefault(digest, place)] += found
            told.merged += first[digest] != place
        else:
            told.dropped += Counter({"no caption": 1})
    kept = np.zeros(len(rows), dtype=bool)
    kept[list(first.values())] = True

    in_files = is_text(rows.data.schema.field("image").type)
    rows = rows if in_files else rows.rename_column("image", IMAGE_BYTES)
    for name, column, kind in (
        ("image", digests, Value("string")),
        ("caption", captions, List(Value("string"))),
        (FILE, names, Value("string")),
    ):
        rows = replaced(rows, name, column, kind)
    others = [name for name in rows.column_names if name not in ("image", "caption", FILE)]
    return filter_rows(rows.select_columns(["image", "caption", FILE, *others]), kept)


def replaced(rows: "Dataset", name: str, column: list[Any], kind: Any = None) -> "Dataset":
    """The rows with a column that is new, or has other cells."""
    from datasets.fingerprint import generate_random_fingerprint

    new = name if name not in rows.column_names else f"new {name}"
    rows = rows.add_column(name=new, column=column, new_fingerprint=generate_random_fingerprint(), feature=kind)
    # the old one goes last: a dataset without columns would have no rows
    return rows if new == name else rows.remove_columns([name]).rename_column(new, name)


def cells(rows: "Dataset", column: str) -> Any:
    """The cells of a column as they are stored: pictures as bytes, not decoded."""
    for batch in rows.select_columns([column]).with_format("arrow").iter(ROWS_AT_ONCE):
        yield from batch[column].to_pylist()


def content_of(cell: Any, data: "CaptioningData", otherwise: str) -> tuple[bytes, str]:
    """The file of a picture as it is, and a name for it: that of its file, or `otherwise`."""
    if isinstance(cell, dict) and isinstance(cell.get("bytes"), bytes):
        return cell["bytes"], Path(cell.get("path") or otherwise).name
    name = cell.get("path") if isinstance(cell, dict) else cell
    if not isinstance(name, str):
        raise DataError(
            f'data.image: {otherwise} of {data.path} holds {type(cell).__name__} in the column "{data.image}", neither '
            "a picture nor the name of a file."
        )
    path = root_of(data) / name
    try:
        return path.read_bytes(), name if isinstance(cell, str) else path.name
    except OSError as error:
        raise DataError(
            f"data.image: {otherwise} of {data.path} names the file {path}, which cannot be read: {error.strerror}."
        ) from error


def captions_of(cell: Any, where: str) -> list[str]:
    """The captions in a cell that say anything."""
    found = cell if isinstance(cell, list) else [cell]
    for caption in found:
        if caption is not None and not isinstance(caption, str):
            raise DataError(f"{where} holds {caption!r}, which is neither a text nor a list of texts.")
    return [caption for caption in found if caption and caption.strip()]
