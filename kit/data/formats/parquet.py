"""Parquet files, whole or row group by row group. Their text is UTF-8 by definition and checked here, since readers
trust it; rows that are not are left out and counted."""

import zlib
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kit.data.formats.lines import DecodingCheck, open_bytes, read_error
from kit.errors import DataError

ADVICE = "Write it anew."

Tables = Generator[tuple[pa.Table, np.ndarray], None, None]
"""Tables, each with a mask of its usable rows."""


def read_parquet(path: Path) -> tuple[pa.Table, DecodingCheck]:
    """The usable rows of a file, and the count of all."""
    try:
        with open_bytes(path) as raw:
            table = pq.read_table(pa.BufferReader(raw.read()) if path.suffix == ".gz" else raw)
    except pa.ArrowException as error:
        raise not_parquet(path, error) from error
    except (OSError, EOFError, zlib.error) as error:
        raise read_error(path, error) from error
    decoding = DecodingCheck(path, "utf-8", advice=ADVICE)
    usable = decodable_rows(table, decoding)
    return (table if usable.all() else table.filter(pa.array(usable))), decoding


def parquet_batches(path: Path, start: int, most: int) -> Tables:
    """Tables of at most `most` rows from row `start` on. Row groups before that are not read."""
    if path.suffix == ".gz":
        raise DataError(f"{path} can only be read as a whole: unpack it (parquet is compressed in itself).")
    decoding = DecodingCheck(path, "utf-8", advice=ADVICE)
    try:
        with pq.ParquetFile(path) as file:
            first = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if first + rows > start:
                    for batch in file.iter_batches(most, row_groups=[group]):
                        table = pa.Table.from_batches([batch]).slice(max(0, start - first))
                        first += batch.num_rows
                        if table.num_rows:
                            usable = decodable_rows(table, decoding)
                            if start == 0:  # begun further on, a few broken rows might seem to be the whole file
                                decoding.check_so_far()
                            yield table, usable
                else:
                    first += rows
            if start == 0:
                decoding.check()
    except pa.ArrowException as error:
        raise not_parquet(path, error) from error
    except OSError as error:
        raise read_error(path, error) from error


def not_parquet(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} is not a parquet file that can be read: {str(error).splitlines()[0]}")


def decodable_rows(table: pa.Table, decoding: DecodingCheck) -> np.ndarray:
    """A mask of the rows whose text is UTF-8; all are counted."""
    broken = [name for name in table.column_names if not is_decodable(table[name])]
    if not broken:
        decoding.rows += table.num_rows
        return np.ones(table.num_rows, dtype=bool)
    cells = zip(*(table[name].cast(pa.large_binary()).to_pylist() for name in broken), strict=True)
    rows = ["\n".join((cell or b"").decode("utf-8", "surrogateescape") for cell in row) for row in cells]
    return np.array([decoding.count(row, number) for number, row in enumerate(rows, decoding.rows + 1)], dtype=bool)


def is_decodable(column: pa.ChunkedArray) -> bool:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return False
    return True
