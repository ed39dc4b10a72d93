"""Readers of text files and tables: every cell is read back, or the mistake is reported with file and line."""

import csv
import gzip
import io
import json
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.data.formats.layout import Layout
from kit.data.formats.reader import EXTENSIONS, read_table
from kit.data.formats.text import QUOTED, read_parallel
from kit.errors import DataError

in_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
# All of Unicode, with an emphasis on characters that other readers mistake for line ends.
odd = st.sampled_from("a \u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\"',\t▁é中🙂\ufeff")
text = st.text(odd | st.characters(exclude_categories=["Cs"]))
line = text.map(lambda value: value.replace("\n", "").replace("\r", "").replace("\x00", ""))
cell = line.map(lambda value: value.replace("\t", ""))


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@in_folder
@given(
    rows=st.lists(st.tuples(cell, cell), min_size=1),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    closed=st.booleans(),
    packed=st.booleans(),
)
def test_tsv_cells_are_read_back(tmp_path, rows, encoding, line_end, closed, packed):
    content = line_end.join("\t".join(row) for row in [("de", "en"), *rows]) + (line_end if closed else "")
    path = write(tmp_path / ("a.tsv.gz" if packed else "a.tsv"), content.encode(encoding))
    read = read_table(path, Layout(encoding=encoding))
    assert read.table.column_names == ["de", "en"]
    assert rows_of(read.table) == rows
    assert not read.dropped


@in_folder
@given(
    rows=st.lists(st.tuples(text, text), min_size=1),
    delimiter=st.sampled_from([None, ";", "|", "\t"]),
    ending=st.sampled_from(["csv", "tsv"]),
)
def test_csv_of_the_csv_module_is_read_back(tmp_path, rows, delimiter, ending):
    rows = [tuple(value.replace("\x00", "") for value in row) for row in rows]
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter or {"csv": ",", "tsv": "\t"}[ending]).writerows([("de", "en"), *rows])
    path = write(tmp_path / f"a.{ending}", file.getvalue().encode())
    read = read_table(path, Layout(delimiter=delimiter, quoting=None if ending == "csv" else True))
    assert rows_of(read.table) == rows
    assert not read.flagged


@in_folder
@given(
    rows=st.lists(st.tuples(text, text), min_size=1),
    escaped=st.booleans(),
    as_list=st.booleans(),
    ending=st.sampled_from(["jsonl", "json", "jsonl.gz"]),
)
def test_json_values_are_read_back(tmp_path, rows, escaped, as_list, ending):
    objects = [{"de": de, "en": en} for de, en in rows]
    if as_list and ending == "json":
        content = json.dumps(objects, ensure_ascii=escaped, indent=1)
    else:
        content = "\n".join(json.dumps(entry, ensure_ascii=escaped) for entry in objects)
    read = read_table(write(tmp_path / f"a.{ending}", content.encode()), Layout())
    assert rows_of(read.table) == rows


@in_folder
@given(rows=st.lists(st.tuples(text, text), min_size=1), packed=st.booleans())
def test_parquet_values_are_read_back(tmp_path, rows, packed):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"de": [row[0] for row in rows], "en": [row[1] for row in rows]}), buffer)
    path = write(tmp_path / ("a.parquet.gz" if packed else "a.parquet"), buffer.getvalue())
    assert rows_of(read_table(path, Layout()).table) == rows


@in_folder
@given(rows=st.lists(st.tuples(line, line), min_size=1))
def test_parallel_text_keeps_lines_aligned(tmp_path, rows):
    for column, name in enumerate(("de", "en.gz")):
        write(tmp_path / f"train.{name}", "".join(row[column] + "\n" for row in rows).encode("utf-8-sig"))
    read = read_parallel({"de": tmp_path / "train.de", "en": tmp_path / "train.en.gz"}, Layout())
    assert read.table.column_names == ["de", "en"]
    assert rows_of(read.table) == rows


@in_folder
@given(lines=st.lists(line, min_size=1))
def test_txt_is_one_column_of_lines(tmp_path, lines):
    path = write(tmp_path / "a.txt", ("\n".join(lines) + "\n").encode("utf-8-sig"))
    assert rows_of(read_table(path, Layout()).table) == [(value,) for value in lines]


@in_folder
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.text('[]{}",:\t\n\\ud8ab1', max_size=60).map(str.encode),
        st.sampled_from(
            [b"PAR1", gzip.compress(b"a\tb\n", mtime=0)[:-6], b"\xff\xfea\x00", b'{"a":1}\n{"a":"x"}', b"{}\n{}"]
        ),
    ),
    ending=st.sampled_from([*EXTENSIONS, *(f"{ending}.gz" for ending in EXTENSIONS)]),
    packed=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-16", "utf-16-le", "latin-1", "shift_jis", "utf-7", "idna", "hex", "none"]),
    delimiter=st.sampled_from([None, None, ",", "||"]),
)
def test_any_bytes_are_read_or_rejected_with_one_message(tmp_path, content, ending, packed, encoding, delimiter):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(gzip.compress(content) if packed else content)
    with suppress(DataError):
        rows_of(read_table(path, Layout(encoding=encoding, delimiter=delimiter)).table)


@pytest.mark.parametrize("bad", [1, 3, 10])
def test_undecodable_rows_are_dropped_and_counted(tmp_path, bad):
    good = [f"Größe {n}".encode() for n in range(100)]
    lines = [b"Gr\xf6\xdfe" if n < bad else line for n, line in enumerate(good)]
    path = write(tmp_path / "a.txt", b"\n".join(lines))
    read = read_table(path, Layout())
    assert read.dropped == {"undecodable": bad}
    assert rows_of(read.table) == [(line.decode(),) for line in good[bad:]]


def test_a_pair_with_an_undecodable_side_is_dropped(tmp_path):
    write(tmp_path / "a.de", b"".join(b"\xff\n" if n == 3 else b"%d\n" % n for n in range(50)))
    write(tmp_path / "a.en", b"".join(b"\xff\n" if n == 7 else b"%d\n" % n for n in range(50)))
    read = read_parallel({"de": tmp_path / "a.de", "en": tmp_path / "a.en"}, Layout())
    assert read.dropped == {"undecodable": 2}
    assert rows_of(read.table) == [(str(n), str(n)) for n in range(50) if n not in (3, 7)]


def test_half_a_surrogate_pair_in_a_json_escape_is_undecodable(tmp_path):
    content = "\n".join([r'{"a": "\ud83d"}', r'{"a": "\ud83d\ude42"}', *['{"a": "b"}'] * 20])
    read = read_table(write(tmp_path / "a.jsonl", content.encode()), Layout())
    assert read.dropped == {"undecodable": 1}
    assert rows_of(read.table)[0] == ("🙂",)


def test_a_file_in_another_encoding_is_rejected_with_the_first_line(tmp_path):
    few_of_all = b"a\n" * 1000 + "é\n".encode("latin-1") * 10 + "é\n".encode() * 9
    with pytest.raises(DataError, match=r"10 of 1019 rows .* line 1001\. Set data\.encoding"):
        read_table(write(tmp_path / "a.txt", few_of_all), Layout())
    with pytest.raises(DataError, match=r"11 of 100 rows .* line 1\."):
        read_table(write(tmp_path / "b.txt", b"\xff\n" * 11 + "é\n".encode() * 89), Layout())
    # With one wrong row fewer, the file is corrupt rather than in another encoding.
    assert read_table(write(tmp_path / "c.txt", few_of_all + "é\n".encode()), Layout()).dropped == {"undecodable": 10}
    assert rows_of(
        read_table(write(tmp_path / "d.txt", "é\n".encode("latin-1")), Layout(encoding="latin-1")).table
    ) == [("é",)]


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("csv", b"\0who,x\na,1\n"),
        ("tsv", b"who\tx\0y\na\t1\n"),
        ("jsonl", rb'{"x\u0000y": 1}' + b"\n"),
        ("jsonl", rb'{"x": [{"\u0000y": 1}]}' + b"\n"),
    ],
)
def test_a_null_byte_in_a_column_name_is_rejected(tmp_path, ending, content):
    with pytest.raises(DataError, match=r"a\.\w+: the name of the column '.*\\x00.*' contains a null byte"):
        read_table(write(tmp_path / f"a.{ending}", content), Layout())


def test_undecodable_text_in_messages_can_be_printed(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"a": 1}\n"\x9b"\n')
    with pytest.raises(DataError, match=r'row 2: expected an object .* got "\\udc9b"\.') as refused:
        read_table(path, Layout())
    str(refused.value).encode("utf-8")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_encodings_are_guessed(tmp_path, encoding):
    path = write(tmp_path / "a.txt", ("Ein Satz.\n" * 50).encode(encoding))
    guess = "utf-32" if encoding == "utf-32" else "utf-16"
    with pytest.raises(DataError, match=f"Set data.encoding: {guess}"):
        read_table(path, Layout())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt.gz", gzip.compress(b"", mtime=0), "a.txt.gz is empty"),
        ("a.tsv", b"de\ten\n", "has no rows"),
        ("a.tsv", b"de\ten\na\tb\nc\n", r"line 3: 1 columns where its first line has 2 \(de, en\)"),
        ("a.tsv", b"de\tde\na\tb\n", 'two columns "de"'),
        ("a.tsv", b"d\xe4\ten\na\tb\n", "line 1: the column names are not in utf-8"),
        ("a.csv", b'de,en\n"a\nb",c\nd,e,f\n', "line 4: 3 columns"),
        ("a.csv", b'de,en\na,b\n"c,d\ne,f\n', "line 4: .* starts at line 3"),
        ("a.jsonl", b'{"a": 1}\n{"a": }\n', "line 2, column 7: invalid JSON"),
        ("a.json", b'[{"a": 1},\n{"a": }]\n', "line 2, column 7: invalid JSON"),
        ("a.jsonl", b'{"a": "x"}\n[1]\n', "row 2: expected an object"),
        ("a.jsonl", b'{"a": "x"}\n\n{"a": 1}\n', 'row 3: the values of "a"'),
        ("a.jsonl", b'{"a": 1e999999, "b": 123456789012345678901234567890}\n', '"b"'),
        ("a.parquet", b"de,en\n", "not a valid parquet file"),
        ("a.txt", gzip.compress(b"a\n", mtime=0), "add .gz to its name"),
        ("a.txt.gz", b"a\n", "not a valid gzip file"),
        ("a.txt.gz", gzip.compress(b"abc\n" * 1000, mtime=0)[:-9], "is truncated"),
        ("a.xml", b"<a/>", "kit reads files that end in tsv"),
    ],
)
def test_mistakes_are_reported_with_file_and_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path, Layout())
    assert name in str(caught.value)


@pytest.mark.parametrize("longer", ["de", "en"])
def test_parallel_files_of_different_length_are_rejected_with_both_counts(tmp_path, longer):
    for name in ("de", "en"):
        write(tmp_path / f"a.{name}", b"x\n" * (7 if name == longer else 5))
    counts = "7 lines.* 5" if longer == "de" else "5 lines.* 7"
    with pytest.raises(DataError, match=counts):
        read_parallel({"de": tmp_path / "a.de", "en": tmp_path / "a.en"}, Layout())


@pytest.mark.parametrize(
    ("ending", "layout"),
    [
        ("jsonl", Layout(columns=["a"])),
        ("parquet", Layout(delimiter=";")),
        ("parquet", Layout(encoding="latin-1")),
        ("txt", Layout(columns=["a"])),
        ("csv", Layout(delimiter=" ||| ")),
        ("jsonl", Layout(quoting=False)),
        ("txt", Layout(quoting=True)),
        ("conll", Layout(quoting=True)),
    ],
)
def test_settings_without_effect_on_a_file_are_rejected(tmp_path, ending, layout):
    (tmp_path / f"a.{ending}").write_bytes(b"a\n")
    with pytest.raises(DataError, match=r"data\.(columns|delimiter|encoding|quoting)"):
        read_table(tmp_path / f"a.{ending}", layout)


def test_columns_name_files_without_a_header(tmp_path):
    layout = Layout(columns=["de", "en"], delimiter=" ||| ")
    read = read_table(write(tmp_path / "a.txt", b"a ||| b\nc ||| \n"), layout)
    assert read.table.to_pydict() == {"de": ["a", "c"], "en": ["b", ""]}


def test_blank_lines_between_rows_are_counted(tmp_path):
    assert read_table(write(tmp_path / "a.tsv", b"de\ten\na\tb\n\nc\td\n\n"), Layout()).dropped == {"blank line": 2}
    assert read_table(write(tmp_path / "a.csv", b"de,en\na,b\n\n"), Layout()).dropped == {"blank line": 1}
    assert read_table(write(tmp_path / "a.jsonl", b'{"a": 1}\n \n{"a": 2}\n'), Layout()).dropped == {"blank line": 1}


def test_quotation_marks_are_text_in_tsv(tmp_path):
    read = read_table(write(tmp_path / "a.tsv", b'de\ten\n"a\tb"\n'), Layout())
    assert rows_of(read.table) == [('"a', 'b"')]
    assert not read.flagged


def test_quoted_cells_are_flagged_unless_quoting_is_set(tmp_path):
    path = write(tmp_path / "a.tsv", b'de\ten\n"a ""b"" c"\td\n"e\t"f" "g"\nh\t"i"\n')
    plain = read_table(path, Layout())
    assert rows_of(plain.table) == [('"a ""b"" c"', "d"), ('"e', '"f" "g"'), ("h", '"i"')]
    assert plain.flagged == {QUOTED: 2}
    assert not read_table(path, Layout(quoting=False)).flagged
    path = write(tmp_path / "b.tsv", b'de\ten\n"a\nb"\tc\n')
    assert rows_of(read_table(path, Layout(quoting=True)).table) == [("a\nb", "c")]
    with pytest.raises(DataError, match=r"b\.tsv, line 2: 1 columns where .* set data\.quoting: true"):
        read_table(path, Layout())


def test_csv_without_quotes(tmp_path):
    path = write(tmp_path / "a.csv", b'de;en\n"a;b\n')
    assert rows_of(read_table(path, Layout(delimiter=";", quoting=False)).table) == [('"a', "b")]
    with pytest.raises(DataError, match=r"a\.csv, line 2: .* set data\.quoting: false"):
        read_table(path, Layout(delimiter=";"))
    path = write(tmp_path / "b.csv", b"de || en\na || b\n")
    assert rows_of(read_table(path, Layout(delimiter=" || ", quoting=False)).table) == [("a", "b")]


def test_a_quoted_cell_may_hold_a_whole_document(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"' + "x" * 200_000 + '",a\n', encoding="utf-8")
    assert len(read_table(path, Layout()).table["text"][0].as_py()) == 200_000


def test_chunks_are_concatenated_in_order_and_promoted_to_one_type(tmp_path):
    objects = [
        {"a": str(n), "n": None if n < 25_000 else n, **({"late": n} if n > 45_000 else {})} for n in range(50_000)
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, objects)).encode())
    table = read_table(path, Layout()).table
    assert table["a"].to_pylist() == [entry["a"] for entry in objects]
    assert table["n"].to_pylist() == [entry["n"] for entry in objects]
    assert table["late"].to_pylist() == [entry.get("late") for entry in objects]
    mixed = write(tmp_path / "b.jsonl", "\n".join(['{"a": "x"}'] * 30_000 + ['{"a": 1}'] * 30_000).encode())
    with pytest.raises(DataError, match="have different types"):
        read_table(mixed, Layout())


def test_invalid_text_in_parquet_is_counted(tmp_path):
    texts = pa.array([b"\xff" if n == 5 else b"%d" % n for n in range(20)]).view(pa.string())
    pq.write_table(pa.table({"a": texts, "n": list(range(20))}), tmp_path / "a.parquet")
    read = read_table(tmp_path / "a.parquet", Layout())
    assert read.dropped == {"undecodable": 1}
    assert read.table["n"].to_pylist() == [n for n in range(20) if n != 5]
