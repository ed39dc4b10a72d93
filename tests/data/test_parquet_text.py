"""Text in parquet files that is not UTF-8, which pyarrow reads without checking."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.data.formats.layout import Layout
from kit.data.formats.parquet import parquet_batches, read_parquet
from kit.data.formats.tables import UNDECODABLE
from kit.errors import DataError

ROWS = 200


def texts(bad: int) -> pa.Array:
    """Strings of which one is invalid, which no check detects when the array is created."""
    return pa.array([b"\xff\xfe" if number == bad else b"text" for number in range(ROWS)], pa.binary()).view(
        pa.string()
    )


FORMS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "text": lambda column: column,
    "lists": lambda column: pa.ListArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), column),
    "structs": lambda column: pa.StructArray.from_arrays([column], ["en"]),
    "a dictionary": lambda column: pa.DictionaryArray.from_arrays(pa.array(range(ROWS), pa.int32()), column),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_with_invalid_text_are_dropped_and_counted(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"number": range(ROWS), "text": FORMS[form](texts(7))}), path)
    file = read_parquet(path, Layout())
    assert file.dropped == {UNDECODABLE: 1}
    assert file.table["number"].to_pylist() == [number for number in range(ROWS) if number != 7]
    file.table["text"].to_pylist()
    ((_, usable),) = parquet_batches(path, 0, ROWS)
    assert [number for number, is_usable in enumerate(usable) if not is_usable] == [7]


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_invalid_text_is_refused(form: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    column = pa.array([b"\xff"] * ROWS, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": FORMS[form](column)}), path)
    with pytest.raises(DataError, match=r"a\.parquet"):
        read_parquet(path, Layout())
