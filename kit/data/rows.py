"""Selecting rows of a dataset by their content: held-out rows, duplicates, overlap, and the fingerprint of a split.

Everything here follows from digests of cells, so the order of the rows, their layout in memory and the number of
processes never change which rows are selected.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kit.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

BATCH_ROWS = 10_000  # rows converted to Python at a time, which bounds memory
IMAGE_BYTES = "image_bytes"
"""Column with the bytes of images that are not separate files; another column has a digest of each."""


@dataclass(frozen=True)
class ColumnView:
    """The cells of a column, which can be iterated repeatedly. About sixty times as fast as `dataset[column]`, which
    decodes row by row: cells are converted from Arrow in large batches."""

    dataset: "Dataset"
    column: str

    def __iter__(self) -> Iterator[Any]:
        for batch in self.dataset.select_columns([self.column]).with_format("arrow").iter(BATCH_ROWS):
            yield from batch[self.column].to_pylist()


def to_dataset(table: pa.Table) -> "Dataset":
    """A dataset of a table in memory."""
    from datasets import Dataset
    from datasets.fingerprint import generate_random_fingerprint
    from datasets.table import InMemoryTable

    # By default, datasets fingerprints data by hashing its pickle, which takes several times the memory of the data.
    return Dataset(InMemoryTable(table), fingerprint=generate_random_fingerprint())


def filter_rows(dataset: "Dataset", mask: np.ndarray) -> "Dataset":
    """The rows for which a mask is true, in order."""
    from datasets.table import InMemoryTable

    if isinstance(dataset.data, InMemoryTable):
        # Dataset.select would add an index of rows, which makes all later reading several times slower.
        return to_dataset(dataset.data.table.filter(pa.array(mask)))
    return dataset.select(np.flatnonzero(mask))


def row_digests(dataset: "Dataset", columns: Sequence[str], seed: int = 0) -> np.ndarray:
    """A 64-bit number per row; rows with equal cells have equal numbers. The seed determines how they sort."""
    key = str(seed).encode()
    rows = zip(*(map(cell_text, ColumnView(dataset, name)) for name in columns), strict=True)
    # Lengths are included, so that ("ab", "c") differs from ("a", "bc").
    joined = ("".join(f"{len(cell)}:{cell}" for cell in row).encode() for row in rows)
    hashes = b"".join(hashlib.blake2b(row, digest_size=8, key=key).digest() for row in joined)
    return np.frombuffer(hashes, dtype="<u8")


def cell_text(cell: Any) -> str:
    """A cell as text: strings unchanged, anything else as JSON."""
    return cell if isinstance(cell, str) else json.dumps(cell, sort_keys=True, default=repr)


def too_large(key: str, size: int, rows: int) -> str:
    """The message about a hold-out size that would leave no training rows."""
    return f"data.{key}: {size} rows cannot be held out of {rows} and leave any to train on."


def held_out_mask(groups: np.ndarray, size: int, key: str, what: str) -> np.ndarray:
    """A mask of `size` rows that keeps groups together: rows with equal numbers are all inside or all outside.

    Only the digests decide: the order of the rows does not matter, and adding rows to the data moves few old ones. The
    mask has fewer than `size` rows only if no set of whole groups has that size. Raises DataError if no rows remain, or
    if every group is too large. `key` is the recipe's key for the size, and `what` the rows of a group have in common.
    """
    if size >= len(groups):
        raise DataError(too_large(key, size, len(groups)))
    _, group_of_row, counts = np.unique(groups, return_inverse=True, return_counts=True)
    taken = np.zeros(len(counts), dtype=bool)
    room = size
    for group, count in enumerate(counts):
        if count <= room:
            taken[group] = True
            room -= count
        if room == 0:
            break
    if room == size:
        raise DataError(
            f"data.{key}: every {what} occurs more than {size} times, so no {size} rows can be held out without "
            f"keeping their {what} in train as well. Hold out more."
        )
    return taken[group_of_row]


def first_occurrences(digests: np.ndarray) -> np.ndarray:
    """A mask of the rows that do not equal an earlier one."""
    first = np.zeros(len(digests), dtype=bool)
    first[np.unique(digests, return_index=True)[1]] = True
    return first


def fingerprint(dataset: "Dataset") -> str:
    """Sixteen hexadecimal digits that identify the content of all columns and rows, in order.

    The layout in memory (chunks, string types) does not matter. `Dataset._fingerprint` identifies how a dataset was
    computed, not what it contains.
    """
    names = sorted(name for name in dataset.column_names if name != IMAGE_BYTES)
    # Lengths and contents are hashed separately, so that both can be fed from Arrow's buffers without copying.
    lengths = {name: hashlib.sha256() for name in names}
    contents = {name: hashlib.sha256() for name in names}
    for batch in dataset.select_columns(names).with_format("arrow").iter(BATCH_ROWS):
        for name in names:
            texts = column_as_text(batch[name])
            lengths[name].update(pc.fill_null(pc.binary_length(texts), -1).to_numpy(zero_copy_only=False).tobytes())
            contents[name].update(text_bytes(texts))
    digest = hashlib.sha256(json.dumps([names, len(dataset)]).encode())
    for name in names:
        digest.update(lengths[name].digest() + contents[name].digest())
    return digest.hexdigest()[:16]


def column_as_text(column: pa.ChunkedArray) -> pa.LargeStringArray:
    """The cells of a column as strings: strings unchanged, anything else as JSON."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return pa.concat_arrays(column.cast(pa.large_string()).chunks)
    cells = [None if cell is None else json.dumps(cell, sort_keys=True, default=repr) for cell in column.to_pylist()]
    return pa.array(cells, pa.large_string())


def text_bytes(texts: pa.LargeStringArray) -> memoryview:
    """The bytes of all texts, concatenated; a view into Arrow's buffer."""
    filled = pc.fill_null(texts, "")
    _, offsets, contents = filled.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[filled.offset : filled.offset + len(filled) + 1]
    return memoryview(contents or b"")[ends[0] : ends[-1]]
