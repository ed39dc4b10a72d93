"""Rows of images with captions: the files that images are in, and all captions of an image in one row.

An image is identified by a digest of its content. So it is held out with all its captions, even if it occurs under two
names; a changed image is noticed; and rows can be compared, counted and written without the bytes of images.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.data.columns import is_text
from kit.data.report import SplitReport
from kit.data.rows import IMAGE_BYTES, filter_rows
from kit.data.sources import source_kind
from kit.data.steps import RowSteps
from kit.errors import DataError
from kit.hub.download import unsafe_paths
from kit.system.files import read_bytes

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.captioning.recipe import CaptioningData

FILE = "file"
"""Column with the file name of an image, which messages and predictions show."""

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
OTHER_NAMES = {"image": ("file_name",), "caption": ("captions", "text")}
BATCH_ROWS = 200
"""Few, since a row holds an image."""


class ImageSteps(RowSteps):
    """Image folders with a table of captions, and all captions of an image in one row."""

    data: "CaptioningData"

    def tables_in(self, folder: Path) -> dict[str, Path]:
        return metadata_files(folder)

    def adapt(self, rows: "Dataset", table: Path | None = None) -> "Dataset":
        rows = rename_common_columns(rows, self.data)
        return rows if table is None else with_relative_paths(rows, table, self.data)

    def merge(self, rows: "Dataset", split: str, report: SplitReport) -> "Dataset":
        return merge_captions(rows, self.data, split, report)

    def holdout_sizes(self, rows: int) -> dict[str, int | None]:
        """The numbers of images to hold out; the recipe may give shares."""
        sizes = super().holdout_sizes(rows)
        shares = {"validation": self.data.validation_share, "test": self.data.test_share}
        return sizes | {name: max(1, round(share * rows)) for name, share in shares.items() if share is not None}


def metadata_files(folder: Path) -> dict[str, Path]:
    """Find the tables of captions in an image folder, by split: one in the folder itself, for train, or one in each
    subfolder."""
    files: dict[str, Path] = {}
    for split, subfolder in [("train", folder), *((inner.name, inner) for inner in sorted(folder.iterdir()))]:
        tables = [subfolder / name for name in METADATA if (subfolder / name).is_file()]
        if len(tables) > 1:
            raise DataError(f"{subfolder} has {tables[0].name} and {tables[1].name}. Keep one.")
        if tables and "train" in files and files["train"].parent == folder:
            raise DataError(f"{folder} has {files['train'].name}, and {subfolder.name} in it has one, too. Keep one.")
        if tables:
            files[split] = tables[0]
    return files


def rename_common_columns(rows: "Dataset", data: "CaptioningData") -> "Dataset":
    """Rename columns with other usual names, such as file_name, to those of the recipe, where the recipe keeps the
    default."""
    for key, others in OTHER_NAMES.items():
        present = [name for name in others if name in rows.column_names]
        if getattr(data, key) == key and key not in rows.column_names and present:
            rows = rows.rename_column(present[0], key)
    return rows


def root_of(data: "CaptioningData") -> Path:
    """The folder that image file names are relative to; for rows from Python, the working folder."""
    if data.rows is not None:
        return Path()
    path = Path(data.path).expanduser()
    return path.parent if path.is_file() else path


def with_relative_paths(rows: "Dataset", table: Path, data: "CaptioningData") -> "Dataset":
    """The rows of a table in a subfolder, with file names relative to the whole folder."""
    folder, column = table.parent.relative_to(root_of(data)), data.image
    if folder == Path() or column not in rows.column_names or not is_text(rows.data.schema.field(column).type):
        return rows
    names = [None if name is None else (folder / name).as_posix() for name in rows[column]]
    return with_column(rows, column, names)


def merge_captions(rows: "Dataset", data: "CaptioningData", split: str, report: SplitReport) -> "Dataset":
    """Merge the rows of each image into one: `image` is its digest, `caption` the list of its captions, `file` its
    name.

    Images that are in the table itself rather than in files move to the column `image_bytes`. Rows without a caption
    are dropped.
    """
    from datasets import List, Value

    digests: list[str] = []
    names: list[str] = []
    for cell in cells(rows, "image"):
        content, name = image_content(cell, data, f"{split} {len(names) + 1}")
        digests.append(hashlib.blake2b(content, digest_size=8).hexdigest())
        names.append(name)
    first: dict[str, int] = {}
    captions: list[list[str]] = [[] for _ in digests]
    for index, (digest, cell) in enumerate(zip(digests, cells(rows, "caption"), strict=True)):
        texts = caption_texts(cell, f"data.caption: {data.path}, {split}, row {index + 1}")
        if texts:
            captions[first.setdefault(digest, index)] += texts
            report.merged += first[digest] != index
        else:
            report.dropped["no caption"] += 1
    keep = np.zeros(len(rows), dtype=bool)
    keep[list(first.values())] = True

    in_files = is_text(rows.data.schema.field("image").type)
    rows = rows if in_files else rows.rename_column("image", IMAGE_BYTES)
    rows = with_column(rows, "image", digests, Value("string"))
    rows = with_column(rows, "caption", captions, List(Value("string")))
    rows = with_column(rows, FILE, names, Value("string"))
    others = [name for name in rows.column_names if name not in ("image", "caption", FILE)]
    return filter_rows(rows.select_columns(["image", "caption", FILE, *others]), keep)


def with_column(rows: "Dataset", name: str, column: list[Any], feature: Any = None) -> "Dataset":
    """The rows with a column added or replaced."""
    from datasets.fingerprint import generate_random_fingerprint

    new = name if name not in rows.column_names else f"new {name}"
    rows = rows.add_column(name=new, column=column, new_fingerprint=generate_random_fingerprint(), feature=feature)
    # remove the old one last: a dataset without columns would have no rows
    return rows if new == name else rows.remove_columns([name]).rename_column(new, name)


def cells(rows: "Dataset", column: str) -> Any:
    """The cells of a column as they are stored: images as bytes, not decoded."""
    for batch in rows.select_columns([column]).with_format("arrow").iter(BATCH_ROWS):
        yield from batch[column].to_pylist()


def image_content(cell: Any, data: "CaptioningData", row: str) -> tuple[bytes, str]:
    """The bytes of the image that a cell holds or names, and its file name, or `row` if it has none.

    `row` also identifies the row in messages. Raises DataError for a cell that is neither an image, in the form of
    `datasets`, nor the name of a file in the data, and for a file that cannot be read.
    """
    if isinstance(cell, dict) and isinstance(cell.get("bytes"), bytes):
        return cell["bytes"], Path(cell.get("path") or row).name
    name = cell.get("path") if isinstance(cell, dict) else cell
    if not isinstance(name, str):
        raise DataError(
            f'data.image: {row} of {data.path} holds {type(cell).__name__} in the column "{data.image}", neither '
            "an image nor the name of a file."
        )
    if source_kind(data) == "Hub" and unsafe_paths([name]):
        raise DataError(f"data.image: {row} of {data.path} names the file {name!r}, which is outside the data.")
    path = root_of(data) / name
    try:
        return read_bytes(path), name if isinstance(cell, str) else path.name
    except OSError as error:
        raise DataError(
            f"data.image: {row} of {data.path} names the file {path}, which cannot be read: {error.strerror}."
        ) from error


def caption_texts(cell: Any, location: str) -> list[str]:
    """The captions in a cell that are not blank. Raises DataError if one is not text."""
    captions = cell if isinstance(cell, list) else [cell]
    for caption in captions:
        if caption is not None and not isinstance(caption, str):
            raise DataError(f"{location} holds {caption!r}, which is neither a text nor a list of texts.")
    return [caption for caption in captions if caption and caption.strip()]
