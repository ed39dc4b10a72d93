"""NumPy .npz archives as tables: the first dimension of each array is the row, the others become nested lists."""

import io
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kit.data.formats.compressed import check_archive
from kit.data.formats.layout import Layout
from kit.data.formats.lines import DecodingCheck, open_bytes, reading
from kit.data.formats.tables import FileTable, checked_table
from kit.errors import DataError, first_line


def read_npz(path: Path, layout: Layout) -> FileTable:
    """The arrays of a file as columns. Nothing in the file is executed: pickled objects are rejected."""
    try:
        with reading(path), open_bytes(path) as raw, io.BytesIO(raw.read()) as content:
            check_archive(path, content)
            file = np.load(content, allow_pickle=False)
            arrays = {name: file[name] for name in file.files} if isinstance(file, np.lib.npyio.NpzFile) else {}
    # MemoryError: an array whose header states terabytes
    except (
        ValueError, LookupError, TypeError, RuntimeError, OverflowError, MemoryError, zipfile.BadZipFile,
    ) as error:  # fmt: skip
        raise DataError(f"{path} is not an .npz file of plain numbers: {first_line(error)}") from error
    if not arrays:
        raise DataError(f"{path} is not an .npz file, or contains no array.")
    shapes = {name: array.shape for name, array in arrays.items()}
    if len({shape[:1] for shape in shapes.values()}) > 1 or () in shapes.values():
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise DataError(f"{path}: all arrays need the same first dimension, the series or the steps, got {listed}.")
    check = DecodingCheck(path, "utf-8", rows=next(iter(shapes.values()))[0])
    table = pa.table({name: nested_column(array, path, name) for name, array in arrays.items()})
    return checked_table([check], lambda: table, Counter(), Counter())


def nested_column(array: np.ndarray, path: Path, name: str) -> Any:
    """An array as a column of (lists of …) numbers or strings."""
    if array.dtype.kind not in "biufU":
        raise DataError(f'{path}: "{name}" has the type {array.dtype}, neither numbers nor text.')
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise DataError(
            f'{path}: "{name}" has the type {array.dtype}, which no other program reads. Convert it to float64.'
        )
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise DataError(f'{path}: "{name}" has the number {array.max()}, which does not fit into 64 bits with a sign.')
    column: Any = pa.array(array.reshape(-1).tolist())
    for size in reversed(array.shape[1:]):
        if size == 0:
            raise DataError(f'{path}: "{name}" has the shape {array.shape}, without any numbers.')
        column = pa.ListArray.from_arrays(pa.array(np.arange(0, len(column) + 1, size), pa.int32()), column)
    return column
