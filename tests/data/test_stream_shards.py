"""Shards of every format: reading continues at any cursor."""

import csv
import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.data.formats.folders import ShardFiles, read_shards
from kit.data.formats.layout import Layout
from kit.data.streaming.shards import FileShard
from kit.errors import DataError

odd = st.sampled_from("a \u2028\x85\x0b\"',▁é中🙂\ufeff\\")
cell = st.text(odd, max_size=6)
FORMATS = ["txt", "tsv", "csv", "jsonl", "json", "parquet", "de+en", "txt.gz", "csv.gz", "jsonl.gz", "de+en.gz"]


def write_shard(folder: Path, kind: str, rows: list[tuple[str, str]]) -> ShardFiles:
    """Two columns in a file of a format, or in two files of parallel text; txt has only the first."""
    ending = kind.removesuffix(".gz")
    if ending == "parquet":
        path = folder / "a.parquet"
        pq.write_table(pa.table({"de": [de for de, _ in rows], "en": [en for _, en in rows]}), path, row_group_size=3)
        return path
    if ending == "de+en":
        return {
            side: write_text(folder / f"a.{side}{kind[5:]}", "".join(f"{row[column]}\n" for row in rows))
            for column, side in enumerate(("de", "en"))
        }
    if ending in ("json", "jsonl"):
        # blank lines and missing keys
        lines = (json.dumps({"de": de, "en": en} if en else {"de": de}) + "\n" * (1 + len(de) % 2) for de, en in rows)
        return write_text(folder / f"a.{kind}", "".join(lines))
    if ending == "csv":
        file = io.StringIO(newline="")
        csv.writer(file).writerows([("de", "en"), *((f"{de}\n{de}", en) for de, en in rows)])
        return write_text(folder / f"a.{kind}", file.getvalue())
    lines = (f"{de}\t{en}\n" for de, en in [("de", "en"), *rows]) if ending == "tsv" else (f"{de}\n" for de, _ in rows)
    return write_text(folder / f"a.{kind}", "".join(lines))


def write_text(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def values(table: pa.Table) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]


@pytest.mark.parametrize("kind", FORMATS)
@given(rows=st.lists(st.tuples(cell, cell), min_size=1, max_size=12), takes=st.lists(st.integers(1, 5), min_size=13))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_shard_continues_at_any_cursor(
    tmp_path: Path, kind: str, rows: list[tuple[str, str]], takes: list[int]
) -> None:
    files = write_shard(tmp_path, kind, rows)
    whole = read_shards([files], Layout())
    shard, cursor, taken, dropped = FileShard(files, Layout()), (), [], Counter[str]()
    for count in takes:
        open_shard = shard.open(cursor)
        table = open_shard.take(count)
        taken += values(table)
        dropped += open_shard.dropped
        cursor = open_shard.cursor
        open_shard.close()
        assert table.num_rows == count or len(taken) == whole.table.num_rows
    assert taken == values(whole.table)
    assert dropped == whole.dropped


def test_undecodable_rows_are_counted_once(tmp_path: Path) -> None:
    texts = [f"Gr\u00f6\u00dfe {n}".encode("latin-1" if n in (3, 19, 20, 39) else "utf-8") for n in range(40)]
    (tmp_path / "a.txt").write_bytes(b"\n".join(texts))
    column = pa.array(texts, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", row_group_size=7)
    for name in ("a.txt", "a.parquet"):
        shard, cursor, taken, dropped = FileShard(tmp_path / name, Layout()), (), [], Counter[str]()
        for count in (5, 11, 3, 2, 50, 1):
            rows = shard.open(cursor)
            taken += [row["text"] for row in values(rows.take(count))]
            dropped += rows.dropped
            cursor = rows.cursor
            rows.close()
        assert taken == [f"Gr\u00f6\u00dfe {n}" for n in range(40) if n not in (3, 19, 20, 39)]
        assert dropped == {"undecodable": 4}


def test_mistakes_in_shards_are_reported(tmp_path: Path) -> None:
    def reading(name: str, content: bytes, cursor: tuple[int, ...] = (), encoding: str = "utf-8") -> pa.Table:
        (tmp_path / name).write_bytes(content)
        return FileShard(tmp_path / name, Layout(encoding=encoding)).open(cursor).take(100_000)

    lines = b'{"a": "1"}\n{"a": "2"}\n{"a": }\n'
    with pytest.raises(DataError, match=r"a\.jsonl, line 3, column 7: invalid JSON"):
        reading("a.jsonl", lines, (1, 11))
    with pytest.raises(DataError, match=r"a\.json, row 1: expected an object"):
        reading("a.json", b'[{"a": "1"}]')
    with pytest.raises(DataError, match=r"a\.csv, line 3: .* starts at line 3"):
        reading("a.csv", b'a,b\n1,2\n3,"4\n', (2, 8))
    with pytest.raises(DataError, match=r"data\.encoding: in utf-16 a newline is not one byte"):
        reading("a.txt", "a\n".encode("utf-16"), encoding="utf-16")
    with pytest.raises(DataError, match=r"a\.parquet\.gz cannot be streamed"):
        reading("a.parquet.gz", b"")
    with pytest.raises(DataError, match="is truncated"):
        reading("a.txt.gz", gzip.compress(b"abc\n" * 10_000)[:-20])
