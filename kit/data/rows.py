"""Choosing rows of a dataset by what they say: held-out rows, duplicates, overlap, and the fingerprint of a split."""

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

BATCH_ROWS = 10_000
IMAGE_BYTES = "picture"
"""Column of the bytes of pictures, where they are not in files of their own; another column has a digest of each."""


@dataclass(frozen=True)
class ColumnView:
    """The texts of a column, read in large pieces: some sixty times as fast as going through the column itself."""

    dataset: "Dataset"
    column: str

    def __iter__(self) -> Iterator[str]:
        for batch in self.dataset.select_columns([self.column]).with_format("arrow").iter(BATCH_ROWS):
            yield from batch[self.column].to_pylist()


def to_dataset(table: pa.Table) -> "Dataset":
    """A dataset of a table."""
    from datasets import Dataset
    from datasets.fingerprint import generate_random_fingerprint
    from datasets.table import InMemoryTable

    # The cache of `datasets` knows data by a hash of its pickle, which takes several times the memory of the data.
    return Dataset(InMemoryTable(table), fingerprint=generate_random_fingerprint())


def filter_rows(dataset: "Dataset", wanted: np.ndarray) -> "Dataset":
    """The rows for which a mask is true, in order."""
    from datasets.table import InMemoryTable

    if isinstance(dataset.data, InMemoryTable):
        # Without a list of places to look rows up in, all later reading is several times as fast.
        return to_dataset(dataset.data.table.filter(pa.array(wanted)))
    return dataset.select(np.flatnonzero(wanted))


def row_digests(dataset: "Dataset", columns: Sequence[str], seed: int = 0) -> np.ndarray:
    """A number for each row: equal cells, equal number. The seed decides how the numbers are ordered."""
    key = str(seed).encode()
    rows = zip(*(map(cell_text, ColumnView(dataset, name)) for name in columns), strict=True)
    # Length first, so that ("ab", "c") is not ("a", "bc").
    joined = ("".join(f"{len(cell)}:{cell}" for cell in row).encode() for row in rows)
    hashes = b"".join(hashlib.blake2b(row, digest_size=8, key=key).digest() for row in joined)
    return np.frombuffer(hashes, dtype="<u8")


def cell_text(cell: Any) -> str:
    """A cell as text: text as it is, anything else as JSON."""
    return cell if isinstance(cell, str) else json.dumps(cell, sort_keys=True, default=repr)


def held_out_mask(groups: np.ndarray, size: int, key: str, what: str) -> np.ndarray:
    """A mask of `size` rows such that rows of the same group are all inside or all outside; `what` they have in common
    makes them one.

    Which ones is a matter of the digests alone: the order of the rows does not matter, and new rows in the data move
    few old ones. There are fewer than `size` rows only if no set of whole groups has that size.
    """
    if size >= len(groups):
        raise DataError(f"data.{key}: {size} rows cannot be held out of {len(groups)} and leave any to train on.")
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    taken = np.zeros(len(counts), dtype=bool)
    room = size
    for place, count in enumerate(counts):
        if count <= room:
            taken[place] = True
            room -= count
        if room == 0:
            break
    if room == size:
        raise DataError(
            f"data.{key}: every {what} occurs more than {size} times, so that no {size} rows can be held out without "
            f"having their {what} in train, too. Hold out more."
        )
    return taken[group]


def first_occurrences(rows: np.ndarray) -> np.ndarray:
    """A mask of the rows that are not equal to an earlier one."""
    first = np.zeros(len(rows), dtype=bool)
    first[np.unique(rows, return_index=True)[1]] = True
    return first


def fingerprint(dataset: "Dataset") -> str:
    """Sixteen hexadecimal digits that stand for all columns of all rows, in order, however they lie in memory."""
    names = sorted(name for name in dataset.column_names if name != IMAGE_BYTES)
    # Lengths and contents apart, so that both can be fed as they lie in memory, chunk after chunk.
    lengths = {name: hashlib.sha256() for name in names}
    contents = {name: hashlib.sha256() for name in names}
    for batch in dataset.select_columns(names).with_format("arrow").iter(BATCH_ROWS):
        for name in names:
            texts = as_text(batch[name])
            lengths[name].update(pc.fill_null(pc.binary_length(texts), -1).to_numpy(zero_copy_only=False).tobytes())
            contents[name].update(as_bytes(texts))
    whole = hashlib.sha256(json.dumps([names, len(dataset)]).encode())
    for name in names:
        whole.update(lengths[name].digest() + contents[name].digest())
    return whole.hexdigest()[:16]


def as_text(column: pa.ChunkedArray) -> pa.LargeStringArray:
    """The cells of a column as strings: text as it is, anything else as JSON."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return pa.concat_arrays(column.cast(pa.large_string()).chunks)
    cells = [None if cell is None else json.dumps(cell, sort_keys=True, default=repr) for cell in column.to_pylist()]
    return pa.array(cells, pa.large_string())


def as_bytes(texts: pa.LargeStringArray) -> memoryview:
    """All texts, one after the other, as they lie in memory."""
    filled = pc.fill_null(texts, "")
    _, places, contents = filled.buffers()
    ends = np.frombuffer(places, dtype=np.int64)[filled.offset : filled.offset + len(filled) + 1]
    return memoryview(contents or b"")[ends[0] : ends[-1]]
