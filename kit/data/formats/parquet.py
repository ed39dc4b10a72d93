"""Parquet and Arrow files, whole or, for parquet, from any row on.

Their text is UTF-8 by definition, and libraries trust it without looking; here it is validated, and rows with invalid
text are dropped and counted. Of the metadata that `datasets` writes into a file, kit reads the names of class labels.
"""

import json
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kit.data.formats.compressed import check_expansion
from kit.data.formats.layout import Layout
from kit.data.formats.lines import DecodingCheck, open_bytes, reading
from kit.data.formats.tables import UNDECODABLE, FileTable, check_column_names, checked_table
from kit.errors import DataError, first_line

ADVICE = "Write the file again."
ARROW_MARK = b"ARROW1"
"""The first bytes of an Arrow file that is not a stream."""
DATASETS_KEY = b"huggingface"
"""Key of the metadata in which `datasets` records the features of a table."""

Tables = Generator[tuple[pa.Table, np.ndarray], None, None]
"""Tables, each with a mask of its usable rows."""


def read_parquet(path: Path, layout: Layout) -> FileTable:
    """The usable rows of a file."""
    try:
        with reading(path), open_bytes(path) as raw:
            file = pq.ParquetFile(pa.BufferReader(raw.read()) if path.suffix == ".gz" else raw)
            check_expansion(path, file.metadata.num_rows * file.metadata.num_columns)  # at least a byte each
            table = file.read()
    except pa.ArrowException as error:
        raise not_parquet(path, error) from error
    return usable_rows(table, path)


def read_arrow(path: Path, layout: Layout) -> FileTable:
    """The usable rows of an Arrow file: a stream, as `datasets` writes it, or the file format, also called Feather."""
    try:
        with reading(path), open_bytes(path) as raw:
            buffer = pa.BufferReader(raw.read())
            is_file = buffer.read(len(ARROW_MARK)) == ARROW_MARK
            buffer.seek(0)
            table = (pa.ipc.open_file(buffer) if is_file else pa.ipc.open_stream(buffer)).read_all()
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a valid Arrow file: {first_line(error)}") from error
    return usable_rows(table, path)


def usable_rows(table: pa.Table, path: Path) -> FileTable:
    """The rows of a table whose text is valid."""
    check_column_names(table, path)
    table = with_class_labels(table, path)
    check = DecodingCheck(path, "utf-8", advice=ADVICE)
    usable = decodable_rows(table, check)
    selected = table if usable.all() else table.filter(pa.array(usable))
    return checked_table([check], lambda: selected, Counter({UNDECODABLE: check.undecodable}), Counter())


def parquet_batches(path: Path, start: int, max_rows: int) -> Tables:
    """Tables of at most `max_rows` rows, from row `start` on. Row groups before it are not read."""
    if path.suffix == ".gz":
        raise DataError(f"{path} cannot be streamed: decompress it (parquet is compressed internally).")
    check = DecodingCheck(path, "utf-8", advice=ADVICE)
    try:
        with reading(path), pq.ParquetFile(path) as file:
            first = 0  # row number of the next table
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if first + rows > start:
                    for batch in file.iter_batches(max_rows, row_groups=[group]):
                        table = pa.Table.from_batches([batch]).slice(max(0, start - first))
                        first += batch.num_rows
                        if table.num_rows:
                            usable = decodable_rows(table, check)
                            if start == 0:  # a few corrupt rows can be most of what a reader sees that starts later
                                check.check_so_far()
                            yield table, usable
                else:
                    first += rows
            if start == 0:
                check.check()
    except pa.ArrowException as error:
        raise not_parquet(path, error) from error


def with_class_labels(table: pa.Table, path: Path) -> pa.Table:
    """The table with the class labels that `datasets` recorded in the file as its only metadata.

    Raises DataError if the record cannot be read: without it, labels would be numbers.
    """
    from datasets import Features

    recorded = (table.schema.metadata or {}).get(DATASETS_KEY)
    table = table.replace_schema_metadata(None)
    if recorded is None:
        return table
    try:
        columns = json.loads(recorded)["info"]["features"] or {}
        features = {name: columns[name] for name in table.column_names if holds_class_labels(columns.get(name))}
        schema = Features.from_dict(features).arrow_schema
        for name in features:  # a column of another type, such as int8, would not match the record
            index = table.column_names.index(name)
            table = table.set_column(index, schema.field(name), table[name].cast(schema.field(name).type))
    # a record can be malformed in any way
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, pa.ArrowException) as error:
        raise DataError(f"{path}: the class labels that datasets recorded in it cannot be read ({error}).") from error
    if not features:
        return table
    return table.replace_schema_metadata({DATASETS_KEY: json.dumps({"info": {"features": features}}).encode()})


def holds_class_labels(feature: Any) -> bool:
    """Whether a feature in the JSON form of `datasets` is a class label, or a list of them."""
    if isinstance(feature, list):
        return len(feature) == 1 and holds_class_labels(feature[0])
    if not isinstance(feature, dict):
        return False
    return feature.get("_type") == "ClassLabel" or holds_class_labels(feature.get("feature"))


def not_parquet(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} is not a valid parquet file: {first_line(error)}")


def decodable_rows(table: pa.Table, check: DecodingCheck) -> np.ndarray:
    """A mask of the rows whose text is valid UTF-8; counts all of them."""
    invalid = [name for name in table.column_names if not is_valid_text(table[name])]
    if not invalid:
        check.rows += table.num_rows
        return np.ones(table.num_rows, dtype=bool)
    rows = map("\n".join, zip(*(escaped_texts(table[name]) for name in invalid), strict=True))
    return np.array([check.count(row, number) for number, row in enumerate(rows, check.rows + 1)], dtype=bool)


def escaped_texts(column: pa.ChunkedArray) -> Iterator[str]:
    """The text of each row, in which a byte that is not UTF-8 is a surrogate; of lists and structs, only whether there
    is such a byte."""
    if not is_text(column.type):
        for cell in column:
            try:
                cell.as_py()
                yield ""
            except UnicodeDecodeError:
                yield "\udcff"
        return
    for cell in column.cast(pa.large_binary()).to_pylist():
        yield (cell or b"").decode("utf-8", "surrogateescape")


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type is text, rather than numbers or something nested."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_valid_text(column: pa.ChunkedArray) -> bool:
    """Whether all strings of a column, also those in lists and structs, are valid UTF-8."""
    if is_text(column.type) or pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return False
    return True
