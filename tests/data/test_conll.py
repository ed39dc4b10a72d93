"""CoNLL files: any words are read back, and mistakes are reported with their line."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.data.formats.folders import read_shards
from kit.data.formats.layout import Layout
from kit.data.formats.reader import read_table
from kit.data.sources import read_splits
from kit.data.steps import RowSteps
from kit.errors import DataError
from kit.tasks.translation.recipe import TranslationData

# A word must not contain a separator or be white space only; everything else is allowed, including "#".
WORD = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r \ufeff"), min_size=1, max_size=5
).filter(lambda word: word.strip() and not word.startswith("-DOCSTART-"))
TAG = st.sampled_from(["O", "B-PER", "I-creative-work"])
SENTENCE = st.lists(st.tuples(WORD | st.sampled_from(["#", "#tag", '"', "''"]), TAG), min_size=1, max_size=5)
BREAK = st.sampled_from(["\n", "\t\n", " \n", "\n\n", " \t \n\n", "-DOCSTART- -X- O\n\n"])


def read(path: Path, content: str | bytes, **layout: object) -> list[dict[str, list[str]]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_table(path, Layout(**layout)).table.to_pylist()  # type: ignore[arg-type]


@given(st.lists(SENTENCE, min_size=1, max_size=4), st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_written_sentences_are_read_back(
    tmp_path: Path, sentences: list[list[tuple[str, str]]], data: st.DataObject
) -> None:
    delimiter = data.draw(st.sampled_from(["\t", " ", "   "]))
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    text = data.draw(st.sampled_from(["", "\n", "\ufeff"]))
    for sentence in sentences:
        text += "".join(f"{word}{delimiter}X{delimiter}{tag}\n" for word, tag in sentence) + data.draw(BREAK)
    rows = read(tmp_path / "a.conll", text.replace("\n", end))
    assert rows == [
        {"tokens": [word for word, _ in sentence], "tags": [tag for _, tag in sentence]} for sentence in sentences
    ]


def test_columns_and_delimiters(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    text = "New York|NNP|B-LOC\n.|.|O"
    assert read(path, text, delimiter="|", columns=["words", "pos", "ner"]) == [
        {"words": ["New York", "."], "pos": ["NNP", "."], "ner": ["B-LOC", "O"]}
    ]
    assert read(path, "New York\tB-LOC\n") == [{"tokens": ["New York"], "tags": ["B-LOC"]}]
    assert read(path, " a  b \n", delimiter=" ") == [{"tokens": ["a"], "tags": ["b"]}]
    assert read(path, "a\nb\n\nc\n", columns=["tokens"]) == [{"tokens": ["a", "b"]}, {"tokens": ["c"]}]
    packed = tmp_path / "b.conll.gz"
    assert read(packed, gzip.compress("a\tO\n".encode("utf-16")), encoding="utf-16") == [
        {"tokens": ["a"], "tags": ["O"]}
    ]


@pytest.mark.parametrize(
    ("content", "layout", "message"),
    [
        ("a\tO\n\nb\n", {}, "a.conll, line 3: 1 column where line 1 has 2"),
        ("a\tO\nb\tX\tO\n", {}, "a.conll, line 2: 3 columns where line 1 has 2"),
        ("a\tO\nb O\n", {}, r"line 2: 1 column where.*separated by '\\t'; if not, set data.delimiter"),
        ("a\tO\n# sent_id = 1\n", {}, "line 2: 1 column where.*remove comments"),
        ("\ta\tO\nb\tO\n", {"columns": ["tokens", "tags"]}, "line 1: 3 columns where data.columns names 2"),
        ("a\tO\n\tO\n", {}, "line 2: column 1 is empty"),
        ("a\tO\nb\t\n", {}, "line 2: column 2 is empty"),
        ("\na\nb\n", {}, "line 2: one column where words and tags were expected"),
        ("a\tO\n", {"columns": ["x", "x"]}, 'data.columns: there are two columns "x"'),
        (" \n\n-DOCSTART- -X-\n", {}, "a.conll has no sentences"),
        ("", {}, "a.conll is empty"),
        ("a\tO\n".encode("utf-16"), {}, "looks like utf-16, not utf-8"),
        (b"Gr\xf6\xdfe\tO\n\nMa\xdf\tO\n", {}, "is not in utf-8: 2 of 2 rows cannot be decoded, the first at line 1"),
    ],
)
def test_mistakes_are_reported_with_their_line(
    tmp_path: Path, content: str | bytes, layout: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.conll", content, **layout)


def test_undecodable_sentences_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(b"a\tO\n\n" * 20 + b"b\tO\n\xff\tO\n\n" + b"c\tO\n")
    file = read_table(path, Layout())
    assert file.dropped == {"undecodable": 1}
    assert file.table.num_rows == 21
    assert read_shards([path, path], Layout()).dropped == {"undecodable": 2}


def test_a_folder_of_conll_files_can_be_loaded(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}.conll").write_text(f"{split}\tO\n", encoding="utf-8")
    data = TranslationData(path=str(tmp_path))
    splits = read_splits(data, RowSteps(data))
    assert {name: rows["tokens"][0] for name, (rows, _) in splits.items()} == {
        "train": ["train"],
        "validation": ["dev"],
    }
