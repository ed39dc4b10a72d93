"""Formats and layouts of data on disk: each is read, or the message names the key, command or extra that helps."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from datasets import ClassLabel, Dataset, DatasetDict

from kit.data.rows import to_dataset
from kit.data.splits import load_splits
from kit.errors import DataError, NetworkError, RunError
from kit.hub.download import resolve_folder
from kit.recipe.data import DataSection
from kit.tasks.classification.recipe import ClassificationData
from kit.tasks.forecasting.recipe import ForecastingData
from kit.tasks.forecasting.series import read_series
from kit.tasks.tagging.recipe import TaggingData
from kit.tasks.translation.recipe import TranslationData

ROWS = [{"text": f"café {number}", "label": "ab"[number % 2]} for number in range(4)]
CONLL = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n"


def table(delimiter: str) -> str:
    return "".join(delimiter.join(row) + "\n" for row in (("text", "label"), *(row.values() for row in ROWS)))


def rows_of(data: DataSection) -> dict[str, list[dict[str, Any]]]:
    return {split: [dict(row) for row in rows] for split, rows in load_splits(data).datasets.items()}


def message_of(data: DataSection) -> str:
    with pytest.raises((DataError, NetworkError)) as caught:
        load_splits(data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "write", "keys"),
    [
        ("a.csv", lambda path: path.write_text(table(";"), "utf-8"), {"delimiter": ";"}),
        ("a.tsv", lambda path: path.write_text(table("\t"), "utf-16"), {"encoding": "utf-16", "delimiter": r"\t"}),
        ("a.csv", lambda path: path.write_text(table(","), "utf-16-le"), {"encoding": "utf-16-le"}),
        ("a.arrow", lambda path: pa.ipc.new_stream(path, (rows := pa.Table.from_pylist(ROWS)).schema).write(rows), {}),
        ("a.feather", lambda path: pyarrow.feather.write_feather(pa.Table.from_pylist(ROWS), path), {}),
    ],
)
def test_a_table_in_any_format_has_the_same_rows(
    name: str, write: Callable[[Path], object], keys: dict[str, str], tmp_path: Path
) -> None:
    write(tmp_path / name)
    assert rows_of(ClassificationData(path=str(tmp_path / name), **keys)) == {"train": ROWS}


def test_a_table_with_another_delimiter_or_encoding_names_its_key(tmp_path: Path) -> None:
    for delimiter, shown in ((";", ";"), ("\t", r"\t"), ("|", "|")):
        (tmp_path / "a.csv").write_text(table(delimiter), "utf-8")
        assert f'set data.delimiter="{shown}"' in message_of(ClassificationData(path=str(tmp_path / "a.csv")))
    (tmp_path / "a.csv").write_text(table(","), "utf-16")
    assert "Set data.encoding: utf-16." in message_of(ClassificationData(path=str(tmp_path / "a.csv")))


def test_the_files_of_conll_2003_have_the_names_of_their_splits(tmp_path: Path) -> None:
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (tmp_path / name).write_text(CONLL, "utf-8")
    sentence = {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}
    assert rows_of(TaggingData(path=str(tmp_path))) == {split: [sentence] for split in ("train", "validation", "test")}
    assert rows_of(TaggingData(path=str(tmp_path / "eng.train"))) == {"train": [sentence]}


def test_what_save_to_disk_wrote_is_read_with_its_class_labels(tmp_path: Path) -> None:
    rows = Dataset.from_list(ROWS).cast_column("label", ClassLabel(names=["a", "b"]))
    DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "splits", num_shards={"train": 2, "test": 1})
    splits = load_splits(ClassificationData(path=str(tmp_path / "splits")))
    assert {split: len(rows) for split, rows in splits.datasets.items()} == {"train": 4, "test": 4}
    assert splits.datasets["train"]["text"][:] == [row["text"] for row in ROWS]
    assert splits.datasets["test"].features["label"] == ClassLabel(names=["a", "b"])
    rows.save_to_disk(tmp_path / "one")
    (tmp_path / "one" / "cache-1.arrow").write_bytes(b"not part of the dataset")
    assert len(rows_of(ClassificationData(path=str(tmp_path / "one")))["train"]) == len(ROWS)


def test_a_split_may_be_a_folder_of_files(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / split).mkdir()
        for part in "ab":
            (tmp_path / split / f"{part}.csv").write_text(table(","), "utf-8")
            (tmp_path / split / f"{part}.de").write_text(f"{part} {split}\n", "utf-8")
            (tmp_path / split / f"{part}.en").write_text(f"{part}\n", "utf-8")
    pairs = TranslationData(path=str(tmp_path), source="de", target="en")
    assert "several files can be the split" in message_of(pairs)
    for file in tmp_path.glob("*/*.csv"):
        file.unlink()
    assert rows_of(pairs) == {
        split: [{"source": f"{part} {name}", "target": part} for part in "ab"]
        for split, name in (("train", "train"), ("validation", "dev"))
    }


def test_a_repository_of_the_hub_has_its_files_in_data(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "README.md").write_text("a card", "utf-8")
    pa.parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "data" / "train-00000-of-00001.parquet")
    assert rows_of(ClassificationData(path=str(tmp_path))) == {"train": ROWS}


def test_files_far_below_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "v1" / "csv").mkdir(parents=True)
    (tmp_path / "v1" / "csv" / "train.csv").write_text(table(","), "utf-8")
    assert f"one: {tmp_path / 'v1' / 'csv'}" in message_of(ClassificationData(path=str(tmp_path))).replace(
        "has a file, or a folder of files, for each split", "one"
    )
    for number in range(30):
        (tmp_path / "texts" / "train" / "pos").mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / "train" / "pos" / f"{number}.txt").write_text("great", "utf-8")
    assert "If pos is the class of the texts" in message_of(ClassificationData(path=str(tmp_path / "texts")))


def test_excel_is_read_or_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ClassificationData(path=str(tmp_path / "a.xlsx"))
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "openpyxl", None)
        assert 'pip install ".[excel]"' in message_of(data)
    assert "cannot be read as an Excel workbook" in message_of(data)
    workbook = openpyxl.Workbook()
    for cells in (["text", "label"], *(list(row.values()) for row in ROWS), [None, None]):
        workbook.active.append(cells)
    workbook.save(tmp_path / "a.xlsx")
    splits = load_splits(data)
    assert [dict(row) for row in splits.datasets["train"]] == ROWS
    assert splits.report.splits["train"].dropped == {"blank line": 1}
    workbook.active.append(["a", "b", "c"])
    workbook.save(tmp_path / "a.xlsx")
    assert "row 7: 3 cells where there are 2 columns" in message_of(data)


def test_a_missing_file_or_model_is_reported_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "trian").mkdir()
    message = message_of(ClassificationData(path="corpus/train"))
    assert message.endswith("no file or folder " + str(tmp_path / "corpus" / "train") + '. Did you mean "trian"?')
    for name in ("corpus/model", "./model", "/no/model"):
        with pytest.raises(RunError, match=f"{name} does not exist"):
            resolve_folder(name)


def test_dates_among_the_covariates_name_their_key() -> None:
    rows = to_dataset(pa.table({"values": [1.0, 2.0], "day": ["2024-01-01", "2024-01-02"]}))
    with pytest.raises(DataError, match=r"not a number: '2024-01-01'. A column of dates is named by data.date"):
        read_series(rows, ForecastingData(path="a.csv", context=["day"], history=1, horizon=1), "a.csv")
