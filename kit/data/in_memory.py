"""Rows that a Python program passes to kit, as datasets: from data frames, Arrow tables and lists of dictionaries."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kit.data.columns import plain_text
from kit.data.formats.tables import ObjectTableBuilder, check_column_names
from kit.data.rows import to_dataset
from kit.data.sources import OTHER_NAMES, SPLITS
from kit.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset

EXPECTED = "a datasets.Dataset, a data frame or a list of dictionaries"
NAMES = {name: split for split in SPLITS for name in (split, *OTHER_NAMES.get(split, ()))}
"""The split that each accepted name stands for."""


def datasets_of(data: Any) -> dict[str, "Dataset"]:
    """The rows of each split as a dataset. Raises DataError for anything that is not rows of train, validation and
    test."""
    if not isinstance(data, Mapping):
        raise DataError(
            f'data: expected the rows of each split, such as {{"train": rows, "validation": rows}}; got a '
            f"{type(data).__name__}."
        )
    datasets: dict[str, Dataset] = {}
    for name, rows in data.items():
        split = NAMES.get(name)
        if split is None:
            expected = f"expected {', '.join(SPLITS)}"
            raise DataError(f'data: "{name}" is not a split; {expected}.{did_you_mean(str(name), NAMES)}')
        if split in datasets:
            raise DataError(f'data: "{name}" is a second name of the split {split}. Keep one.')
        datasets[split] = as_dataset(rows, f'data["{name}"]')
    return {split: datasets[split] for split in SPLITS if split in datasets}


def as_dataset(rows: Any, name: str) -> "Dataset":
    """Rows as a dataset; `name` is what messages call them."""
    from datasets import Dataset

    if isinstance(rows, Dataset):
        # filtering reads the table itself, which has the rows in another order or number if there is an index
        plain = rows.with_format(None)
        return plain if plain._indices is None else plain.flatten_indices(keep_in_memory=True)
    table = _table(rows, name)
    check_column_names(table, name)
    return to_dataset(plain_text(table.replace_schema_metadata(None)))


def _table(rows: Any, name: str) -> pa.Table:
    if hasattr(rows, "reset_index"):  # of pandas, whose index is not a column
        rows = rows.reset_index(drop=True)
    if hasattr(rows, "__arrow_c_stream__"):  # of pandas, polars, pyarrow and others
        try:
            return pa.table(rows)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            problem = " ".join(str(error).split())
            raise DataError(f"{name}: the data frame cannot be read: {problem}.") from error
    if not isinstance(rows, Sequence) or isinstance(rows, str | bytes):
        raise DataError(f"{name}: expected {EXPECTED}, got a {type(rows).__name__}.")
    builder = ObjectTableBuilder(name)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(f"{name}, row {number}: expected a dictionary, got a {type(row).__name__}.")
        builder.add(number, {str(key): cell for key, cell in row.items()})
    return builder.table()
