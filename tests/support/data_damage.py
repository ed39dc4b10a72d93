"""Ways to damage data files, and text files of any kind, beyond single bytes: tables, cells, arrays, images, encodings.

A change is a function of the content and of a source of randomness. It may raise for content that is damaged already.
"""

import io
import json
import random
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Change = Callable[[bytes, random.Random], bytes]

# ---- text ------------------------------------------------------------------------------------------------------------


def encoded_as(encoding: str) -> Change:
    """The same text in another encoding; what it lacks becomes question marks."""
    return lambda content, chance: content.decode("utf-8", "replace").encode(encoding, "replace")


def with_line_ends(end: bytes) -> Change:
    return lambda content, chance: content.replace(b"\n", end)


ENCODINGS: dict[str, Change] = {
    **{f"in {name}": encoded_as(name) for name in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp037")},
    "carriage returns": with_line_ends(b"\r"),
    "windows lines": with_line_ends(b"\r\n"),
    "unicode lines": with_line_ends("\u2028".encode()),
    "no last line end": lambda content, chance: content.rstrip(),
}


ODD_CELLS = (
    "", " ", "\t", '"', '""', '"a', "a,b", "a;b", "\0", "\ufeff", "\u2028", "\x85", "e\u0301" * 50, "\U0010ffff",
    "\u202e", "😀" * 300, "NaN",
    "inf", "-inf", "1e400", "9" * 400, "-0", "0x1f", "١٢٣", "1,5", "TRUE", "null", "None", "=1+1", "2024-13-45", "B-",
    "-DOCSTART-", "#", "[PAD]", "</s><unk>", "a" * 20_000, "a " * 3000, "{", '{"a": 1}', "../../etc/passwd", "%s%n",
    "\x1b[31m", "\\",
)  # fmt: skip
"""What replaces a cell of a table or a word of a text."""


def on_cells(change: Callable[[list[str], random.Random], list[str]]) -> Change:
    """Change the cells of one line, which are separated by whatever separates them now."""

    def changed(content: bytes, chance: random.Random) -> bytes:
        lines = content.decode("utf-8", "surrogateescape").split("\n")
        number = chance.randrange(len(lines))
        mark = next((mark for mark in ("\t", ",", " ") if mark in lines[number]), "\t")
        lines[number] = mark.join(change(lines[number].split(mark), chance))
        return "\n".join(lines).encode("utf-8", "surrogateescape")

    return changed


def odd_cell(cells: list[str], chance: random.Random) -> list[str]:
    cells[chance.randrange(len(cells))] = chance.choice(ODD_CELLS)
    return cells


def drop_line(content: bytes, chance: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    return b"".join(lines)


LINES: dict[str, Change] = {
    "an odd cell": on_cells(odd_cell),
    "a cell less": on_cells(lambda cells, chance: cells[1:]),
    "a cell more": on_cells(lambda cells, chance: [*cells, "odd"]),
    "the same cells": on_cells(lambda cells, chance: [cells[0]] * len(cells)),
    "only the first line": lambda content, chance: content[: content.index(b"\n") + 1],
    "without the first line": lambda content, chance: content[content.index(b"\n") + 1 :],
    "only line ends": lambda content, chance: b"\n" * content.count(b"\n"),
    "a line less": drop_line,
    "one long line": lambda content, chance: content.replace(b"\n", b" "),
    "equal lines": lambda content, chance: (content.split(b"\n", 1)[0] + b"\n") * 20,
    **ENCODINGS,
}

# ---- tables of Arrow -------------------------------------------------------------------------------------------------


def odd_columns(rows: int) -> list[Callable[[], Any]]:
    """Makers of columns of all types that Arrow has, each with so many rows."""

    def repeated(value: Any, kind: Any = None) -> Callable[[], Any]:
        return lambda: pa.array([value] * rows, kind)

    return [
        lambda: pa.nulls(rows), repeated(1), repeated(2**64 - 1, pa.uint64()), repeated(float("nan")), repeated(True),
        repeated(1.5, pa.float16()), repeated(Decimal("1.50")), repeated(date(2024, 2, 29)),
        repeated(datetime(1, 1, 1)),
        repeated(datetime(2024, 1, 1), pa.timestamp("ns", "Europe/Berlin")), repeated(timedelta(days=9)), repeated(""),
        repeated("a", pa.large_string()), repeated("a", pa.string_view()), repeated(b"\xff\0", pa.binary()),
        repeated(b"ab", pa.binary(2)), repeated("a", pa.dictionary(pa.int8(), pa.string())), repeated([]),
        repeated(["a", None]), repeated([[1, 2], []]), repeated(["a", "b"], pa.list_(pa.string(), 2)),
        repeated(["a"], pa.large_list(pa.string())), repeated({"a": 1}), repeated({"bytes": None, "path": None}),
        repeated({"bytes": b"x", "path": "../x.png"}), repeated([{"a": []}]),
        repeated([("a", 1)], pa.map_(pa.string(), pa.int8())),
        repeated("\0"), repeated("a" * 10**5), repeated(-(2**63)), repeated(1e308), repeated([float("inf")]),
        lambda: pa.array([None] * (rows - 1) + ["a"]), lambda: pa.array([b"\xff"] * rows).cast(pa.string(), safe=False),
        lambda: pa.array([b"\xed\xa0\x80"] * rows, pa.binary()).view(pa.string()),
        lambda: pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array(["a"])),
        lambda: pa.StructArray.from_arrays([pa.array(["x"] * rows)] * 2, ["a", "a"]),
    ]  # fmt: skip


ODD_NAMES = (
    "",
    " ",
    "\0",
    "text.label",
    "label ",
    "Ünï",
    "__index_level_0__",
    "a" * 10_000,
    "source",
    "input_ids",
    "bytes",
)


def change_table(table: pa.Table, chance: random.Random) -> pa.Table:
    """The table with one odd column, name, number of rows or record of its features."""
    index = chance.randrange(max(1, table.num_columns))
    name = table.column_names[index]
    names = [*table.column_names]
    names[index] = chance.choice(ODD_NAMES)
    features = chance.choice(
        ["", "{", "[]", '{"info": 3}', '{"info": {"features": {"label": {"_type": "ClassLabel"}}}}']
    )
    changes: list[Callable[[], pa.Table]] = [
        *[lambda: table.set_column(index, name, chance.choice(odd_columns(table.num_rows))())] * 6,
        lambda: table.rename_columns(names),
        lambda: table.remove_column(index),
        lambda: table.append_column(name, table[name]),
        lambda: table.append_column("odd", chance.choice(odd_columns(table.num_rows))()),
        lambda: table.slice(0, chance.choice([0, 1])),
        lambda: pa.concat_tables([table.slice(0, 1)] * 50),
        lambda: table.replace_schema_metadata({"huggingface": features}),
        lambda: table.select([]),
    ]
    return chance.choice(changes)()


def in_parquet(content: bytes, chance: random.Random) -> bytes:
    table, written = pq.read_table(io.BytesIO(content)), io.BytesIO()
    pq.write_table(change_table(table, chance), written, compression=chance.choice(["none", "snappy", "gzip", "zstd"]))
    return written.getvalue()


def in_arrow(content: bytes, chance: random.Random) -> bytes:
    table, written = pa.ipc.open_stream(content).read_all(), io.BytesIO()
    table = change_table(table, chance)
    make = chance.choice([pa.ipc.new_stream, pa.ipc.new_file])
    with make(written, table.schema) as writer:
        writer.write_table(table, chance.choice([1, None]))
    return written.getvalue()


# ---- arrays, workbooks, images ---------------------------------------------------------------------------------------


def change_array(array: np.ndarray, chance: random.Random) -> np.ndarray:
    kinds = ["u8", "f2", "f16", "c16", "i1", ">f4", "?", "U5", "S5", "M8[s]", "m8[s]", "O", "f4,i4", "V3"]
    changes: list[Callable[[], Any]] = [
        *[lambda: np.zeros(array.shape, chance.choice(kinds))] * 4,
        lambda: array * np.float32("nan"),
        lambda: array.astype("f8") + 1e308,
        lambda: np.full(array.shape, chance.choice([np.inf, -np.inf, 2**62, 0])),
        lambda: np.full(array.shape, 2**64 - 1, np.uint64),
        lambda: array[:0],
        lambda: array[:, :0],
        lambda: array[:1, :1],
        lambda: array[0],
        lambda: array[0, 0],
        lambda: array[..., None],
        lambda: np.asfortranarray(array)[::-1],
        lambda: np.zeros((1,) * 30),
    ]
    return np.asarray(chance.choice(changes)())


def in_npz(content: bytes, chance: random.Random) -> bytes:
    arrays = dict(np.load(io.BytesIO(content)))
    name = chance.choice(sorted(arrays))
    if chance.random() < 0.2:
        arrays[chance.choice(["odd", "", "a/b", "../x", "ü"])] = arrays.pop(name)
    else:
        arrays[name] = change_array(arrays[name], chance)
    written = io.BytesIO()
    np.savez(written, allow_pickle=True, **arrays)
    return written.getvalue()


def in_workbook(content: bytes, chance: random.Random) -> bytes:
    from openpyxl import load_workbook

    book = load_workbook(io.BytesIO(content))
    sheet = book.worksheets[0]
    values = (None, 1, 1.5, True, datetime(2024, 1, 1), timedelta(9), "=1/0", "=A1", "a" * 30_000, " ", "😀", 10**300)
    changes: list[Callable[[], Any]] = [
        *[lambda: sheet.cell(chance.randint(1, 5), chance.randint(1, 4), chance.choice(values))] * 4,
        lambda: sheet.cell(chance.choice([300, 5000]), chance.choice([1, 100]), "far"),
        lambda: sheet.delete_rows(1),
        lambda: sheet.delete_rows(1, 99),
        lambda: sheet.delete_cols(1),
        lambda: sheet.merge_cells("A1:C2"),
        lambda: book.create_sheet("empty", 0),
        lambda: (book.create_chartsheet("chart"), book.remove(sheet)),
    ]
    chance.choice(changes)()
    written = io.BytesIO()
    book.save(written)
    return written.getvalue()


def another_image(content: bytes, chance: random.Random) -> bytes:
    """An image of another format, mode or size."""
    mode = chance.choice(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "I;16", "F", "YCbCr", "HSV"])
    size = chance.choice([(1, 1), (1, 3000), (3000, 1), (7, 5), (300, 300)])
    form = chance.choice(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "TGA", "PCX"])
    written = io.BytesIO()
    try:
        Image.new(mode, size, 3 if mode not in ("F",) else 0.5).save(written, form)
    except (OSError, ValueError, TypeError, KeyError):  # the format does not have the mode
        Image.new("RGB", size).save(written, "PNG")
    return written.getvalue()


def huge_image(content: bytes, chance: random.Random) -> bytes:
    """The header of a PNG that states a size of gigabytes."""
    side = chance.choice([0, 20_000, 2**31 - 1, 2**32 - 1])
    return content[:16] + side.to_bytes(4) * 2 + content[24:]


# ---- JSON ------------------------------------------------------------------------------------------------------------


def odd_rows(content: bytes, chance: random.Random) -> bytes:
    """JSON lines with other keys, or with one value for all rows."""
    rows = [json.loads(line) for line in content.split(b"\n") if line.strip()]
    key = chance.choice(sorted(rows[0]))
    value = chance.choice(
        [None, 1, 1.5, True, "", "a", [], ["a"], [[1]], {}, {"a": None}, 2**63, float("nan"), "9" * 99, *ODD_CELLS]
    )
    changes: list[Callable[[dict[str, Any]], dict[str, Any]]] = [
        lambda row: row | {key: value},
        lambda row: row | {chance.choice(["", "\0", "a.b", "text", "\ud800", "😀"]): value},
        lambda row: {name: part for name, part in row.items() if name != key},
        lambda row: {name.upper(): part for name, part in row.items()},
        lambda row: row | {key: chance.choice([value, row[key]])},
        lambda row: row | {key: [row[key]]},
        lambda row: {"rows": row},
    ]
    change = chance.choice(changes)
    return "".join(json.dumps(change(row), ensure_ascii=chance.random() < 0.5) + "\n" for row in rows).encode(
        "utf-8", "surrogatepass"
    )


DATA_FILES: dict[str, dict[str, Change]] = {
    **dict.fromkeys((".csv", ".tsv", ".conll", ".txt", ".de", ".en"), LINES),
    ".jsonl": {"odd rows": odd_rows},
    ".parquet": {f"odd parquet {n}": in_parquet for n in range(8)},
    ".arrow": {f"odd arrow {n}": in_arrow for n in range(8)},
    ".npz": {f"odd arrays {n}": in_npz for n in range(8)},
    ".xlsx": {f"odd workbook {n}": in_workbook for n in range(8)},
    ".png": {**{f"another image {n}": another_image for n in range(4)}, "a huge image": huge_image},
}
"""By the ending of a file. What has many variants is listed several times, so that it is chosen as often."""
