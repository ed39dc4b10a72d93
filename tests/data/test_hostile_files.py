"""Data files of odd types, that never end, or that decompress to gigabytes: one message, in bounded memory."""

import gzip
import io
import os
import resource
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import Workbook
from PIL import Image
from support.data_files import image, json_lines, workbook

from kit import DataError
from kit.data.formats.layout import Layout
from kit.data.formats.reader import read_table
from kit.pipelines.image_to_text import read_image
from kit.recipe.base import Recipe
from kit.runs.prepare import prepare


def zeros_npz(path: Path, size: int) -> None:
    """An archive with an array of zeros, written without holding it in memory."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        file.write(header.getvalue())
        for _ in range(size // 2**20):
            file.write(bytes(2**20))


def long_line(path: Path, size: int) -> None:
    """A line of this length."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(size // 2**20):
            file.write(b"x" * 2**20)


def peak_memory() -> int:
    """The peak of this process in bytes; Linux counts kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 2**10)


@pytest.mark.parametrize(
    ("name", "write"),
    [("bomb.npz", zeros_npz), ("bomb.txt.gz", long_line), ("bomb.csv.gz", long_line)],
)
def test_decompression_bombs_are_refused_in_bounded_memory(
    tmp_path: Path, name: str, write: Callable[[Path, int], None]
) -> None:
    write(tmp_path / name, 300 * 2**20)
    before = peak_memory()
    with pytest.raises(DataError, match=rf"{name} decompresses to [\d,]+ MB or more, over 200 times its"):
        read_table(tmp_path / name, Layout())
    assert peak_memory() - before < 900 * 2**20  # lines are joined from parts


def test_a_parquet_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.data.formats.compressed.ALWAYS_ALLOWED", 2**20)  # to write it quickly
    rows = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array(np.zeros(2**21, np.int32)), ["x"])})
    pq.write_table(rows, tmp_path / "bomb.parquet")
    with pytest.raises(DataError, match="decompresses to 2 MB or more"):
        read_table(tmp_path / "bomb.parquet", Layout())


def test_an_image_bomb_is_refused() -> None:
    written = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(written, "PNG")
    with pytest.raises(ValueError, match=r"cannot be read as an image: .*decompression bomb"):
        read_image(written.getvalue())


def changed_workbook(path: Path, part: str, change: Callable[[bytes], bytes]) -> None:
    """A workbook with one changed file in its archive."""
    original = zipfile.ZipFile(io.BytesIO(workbook(("text", "label"), ("a", "b"))))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in original.namelist():
            content = original.read(name)
            archive.writestr(name, change(content) if name == part else content)


@pytest.mark.parametrize(
    ("part", "change", "expected"),
    [
        ("xl/workbook.xml", lambda content: b"<a>", "cannot be read as an Excel workbook"),
        ("xl/worksheets/sheet1.xml", lambda content: content[:-40], "cannot be read as an Excel workbook"),
        ("xl/worksheets/sheet1.xml", lambda content: content + b" " * 300 * 2**20, "over 200 times its"),
    ],
)
def test_workbooks_of_broken_or_endless_xml(
    tmp_path: Path, part: str, change: Callable[[bytes], bytes], expected: str
) -> None:
    changed_workbook(tmp_path / "a.xlsx", part, change)
    with pytest.raises(DataError, match=rf"a.xlsx .*{expected}"):
        read_table(tmp_path / "a.xlsx", Layout())


def test_a_workbook_with_nothing_but_a_chart(tmp_path: Path) -> None:
    book = Workbook()
    book.create_chartsheet("chart")
    book.remove(book.worksheets[0])
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match=r"a.xlsx cannot be read as an Excel workbook"):
        read_table(tmp_path / "a.xlsx", Layout())


def test_an_array_whose_header_states_terabytes(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**44,)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(64))
    with pytest.raises(DataError, match=r"a.npz is not an .npz file of plain numbers: Unable to allocate"):
        read_table(tmp_path / "a.npz", Layout())


@pytest.mark.parametrize("value", ["[" * 70 + "1" + "]" * 70, '{"a":' * 70 + "1" + "}" * 70])
def test_deeply_nested_values_are_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "a", "x": {value}}}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"a.jsonl: a value is nested deeper than 50 levels"):
        read_table(tmp_path / "a.jsonl", Layout())


def test_tables_of_thousands_of_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",".join(f"c{n}" for n in range(6000)) + "\n" + ",".join("1" * 6000) + "\n")
    with pytest.raises(DataError, match=r"a.csv has 6,000 columns; kit reads at most 5,000"):
        read_table(tmp_path / "a.csv", Layout())


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([1, 2**63], np.uint64), 'npz: "x" has the number 9223372036854775808, which does not fit'),
        pytest.param(
            np.array([1, 2], np.longdouble),
            'npz: "x" has the type float128',
            marks=pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="this CPU has no float128"),
        ),
        (np.array([1, 2], np.complex128), "neither numbers nor text"),
    ],
)
def test_arrays_of_other_types_name_file_and_array(tmp_path: Path, array: np.ndarray, expected: str) -> None:
    np.savez(tmp_path / "a.npz", x=array)
    with pytest.raises(DataError, match=expected):
        read_table(tmp_path / "a.npz", Layout())


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (pa.table([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], ["pairs"]), '"pairs" is a map'),
        (pa.table([pa.array(["x"]), pa.array(["y"])], ["text", "text"]), 'there are two columns "text"'),
    ],
)
def test_columns_of_parquet_that_cannot_be_read_are_named(tmp_path: Path, table: pa.Table, expected: str) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=expected):
        read_table(tmp_path / "a.parquet", Layout())


@pytest.mark.parametrize("name", ["x.png\0", "pipe.png", "/dev/zero", "missing.png"])
def test_image_names_that_are_no_files(tmp_path: Path, make_recipe: Callable[..., Recipe], name: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    os.mkfifo(data / "pipe.png")
    for number in range(4):
        (data / f"{number}.png").write_bytes(image(number))
    rows: list[dict[str, Any]] = [{"file_name": f"{number}.png", "text": "a b"} for number in range(4)]
    (data / "metadata.jsonl").write_bytes(json_lines(*rows, {"file_name": name, "text": "c"}))
    with pytest.raises(DataError, match=r"data.image: train 5 of .* cannot be read: "):
        prepare(make_recipe("captioning", {"path": str(data), "validation_size": 1}))


@pytest.mark.parametrize("device", ["/dev/zero", "pipe"])
def test_data_that_is_no_file(tmp_path: Path, make_recipe: Callable[..., Recipe], device: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "pipe" if device == "pipe" else device
    with pytest.raises(DataError, match=r"data.path: .* is a pipe or a device"):
        prepare(make_recipe("classification", {"path": str(path), "validation_size": 1}))
