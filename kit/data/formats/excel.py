"""Excel workbooks: the first sheet as a table, whose first row names the columns unless `data.columns` does."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from kit.data.formats.compressed import check_archive
from kit.data.formats.layout import Layout
from kit.data.formats.lines import DecodingCheck, open_bytes, reading
from kit.data.formats.tables import BLANK, FileTable, ObjectTableBuilder, checked_table
from kit.errors import DataError, KitError, first_line

Row = tuple[int, list[Any]]
"""The number of a row in the sheet, from 1, and its cells."""


def read_excel(path: Path, layout: Layout) -> FileTable:
    """The rows of the first sheet; numbers and dates keep their types. Formulas have the values that were saved."""
    check, dropped = DecodingCheck(path, "utf-8"), Counter[str]()
    builder = ObjectTableBuilder(path)
    with reading(path), open_bytes(path) as raw:
        rows = sheet_rows(path, raw)
        columns = layout.columns or column_names(path, next(rows, (1, [])))
        for number, cells in rows:
            if not any(cell not in (None, "") for cell in cells):
                dropped[BLANK] += 1
                continue
            if any(cell not in (None, "") for cell in cells[len(columns) :]):
                raise DataError(
                    f"{path}, row {number}: {len(cells)} cells where there are {len(columns)} columns "
                    f"({', '.join(columns)})."
                )
            check.count("", number)
            builder.add(number, dict(zip(columns, chain(cells, [None] * len(columns)), strict=False)))
    return checked_table([check], builder.table, dropped, Counter())


def sheet_rows(path: Path, raw: BinaryIO) -> Iterator[Row]:
    """The rows of the first sheet without the empty cells at their ends. Raises DataError if it cannot be read."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise DataError(
            f'{path}: reading Excel files needs openpyxl, which is not installed: pip install ".[excel]" installs it. '
            "Or save the sheet as csv."
        ) from None
    try:
        check_archive(path, raw)
        sheets = load_workbook(raw, read_only=True, data_only=True).worksheets
        if not sheets:
            raise ValueError("it has no sheet with cells")
        for number, cells in enumerate(sheets[0].iter_rows(values_only=True), start=1):
            row = list(cells)
            while row and row[-1] in (None, ""):
                row.pop()
            yield number, row
    except (KitError, OSError):
        raise
    # openpyxl reads lazily, and raises whatever its XML parsers and descriptors raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as an Excel workbook (.xlsx): {first_line(error)}") from error


def column_names(path: Path, first: Row) -> list[str]:
    """The names in the first row. Raises DataError for an empty one, or one that occurs twice."""
    names = ["" if cell is None else str(cell).strip() for cell in first[1]]
    for index, name in enumerate(names):
        if not name:
            raise DataError(f"{path}, row 1: column {index + 1} has no name. Name the columns there (or data.columns).")
        if name in names[:index]:
            raise DataError(f'{path}: there are two columns "{name}". Give them different names.')
    return names
