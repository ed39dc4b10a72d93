"""Labels keep their names: class labels of `datasets` in parquet, numbers with decimals, and lists of labels."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from datasets import ClassLabel, Features, List, Value
from support.labeling_runs import recipe, write_rows

from kit.errors import DataError
from kit.runs.prepare import Prepared, prepare

NAMES = ["negative", "positive"]


def write_parquet(folder: Path, labels: Sequence[Any], feature: Any, column: str = "label", **splits: Any) -> Path:
    """A folder of parquet files for train and validation as `datasets` writes them."""
    words = ["aa", "b"] if isinstance(labels[0], list) else None
    features = Features(
        {
            "text" if words is None else "tokens": Value("string") if words is None else List(Value("string")),
            column: feature,
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    for split, of_split in {"train": labels, "validation": labels, **splits}.items():
        texts = ["a b" if words is None else words[: len(label)] for label in of_split]
        rows = datasets.Dataset.from_dict({next(iter(features)): texts, column: of_split}, features=features)
        rows.to_parquet(folder / f"{split}.parquet")
    return folder


def prepared(folder: Path, task: str = "classification", **data: Any) -> Prepared:
    return prepare(recipe(folder / "recipe", task, data))


def labels_of(ready: Prepared, split: str = "train") -> list[str]:
    names = ready.model.config.id2label
    return [names[int(label)] for label in ready.encoded[split].examples.labels]


def test_class_labels_in_parquet_keep_their_names(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "data", [0, 1, 1, 0], ClassLabel(names=NAMES), test=[-1, -1])
    ready = prepared(tmp_path, path=str(path))
    assert ready.model.config.id2label == dict(enumerate(NAMES))
    assert labels_of(ready) == ["negative", "positive", "positive", "negative"]
    assert "test" not in ready.encoded  # -1 withholds a class


def test_lists_of_class_labels_in_parquet_keep_their_names(tmp_path: Path) -> None:
    several = write_parquet(tmp_path / "several", [[0], [1, 0], []], List(ClassLabel(names=NAMES)))
    table = pyarrow.parquet.read_table(several / "train.parquet")
    for split in ("train", "validation"):  # as columns of a classification
        pyarrow.parquet.write_table(
            table.append_column("text", pa.array(["a", "b", "a b"])), several / f"{split}.parquet"
        )
    ready = prepared(tmp_path, path=str(several), problem_type="multi_label_classification")
    assert ready.model.config.id2label == dict(enumerate(NAMES))
    assert ready.encoded["train"].examples.labels.tolist() == [[1, 0], [1, 1], [0, 0]]

    tags = write_parquet(tmp_path / "tags", [[0, 1], [0]], List(ClassLabel(names=["O", "B-PER"])), column="tags")
    assert "B-PER" in prepared(tmp_path / "tagged", "tagging", path=str(tags)).model.config.label2id


def test_class_labels_that_are_stored_as_small_numbers_keep_their_names(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "data", [0, 1, 1, 0], ClassLabel(names=NAMES))
    for split in ("train", "validation"):
        table = pyarrow.parquet.read_table(path / f"{split}.parquet")
        small = pa.schema([pa.field("text", pa.string()), pa.field("label", pa.int8(), nullable=False)])
        small = small.with_metadata(table.schema.metadata)
        pyarrow.parquet.write_table(table.replace_schema_metadata(None).cast(small), path / f"{split}.parquet")
    assert prepared(tmp_path, path=str(path)).model.config.id2label == dict(enumerate(NAMES))


def test_class_labels_are_read_by_the_names_of_their_file(tmp_path: Path) -> None:
    """Neither the order of the training data nor that of the recipe changes what a number in a file stands for."""
    path = write_parquet(tmp_path / "data", [0, 1, 1, 0], ClassLabel(names=NAMES))
    write_parquet(tmp_path / "other", [0, 0, 0, 1], ClassLabel(names=NAMES[::-1]))
    (tmp_path / "other" / "train.parquet").rename(path / "test.parquet")
    ready = prepared(tmp_path, path=str(path), label_names=NAMES[::-1])
    assert ready.model.config.id2label == {0: "positive", 1: "negative"}
    assert labels_of(ready) == ["negative", "positive", "positive", "negative"]
    assert labels_of(ready, "test") == ["positive", "positive", "positive", "negative"]


def test_names_that_are_numbers_are_not_confused_with_label_numbers(tmp_path: Path) -> None:
    stars = ClassLabel(names=["1", "2", "3"])
    ready = prepared(tmp_path, path=str(write_parquet(tmp_path / "data", [0, 1, 2], stars)))
    assert labels_of(ready) == ["1", "2", "3"]
    rows = [{"text": "a", "label": number} for number in (0, 1, 2)]
    path = write_rows(tmp_path / "rows", train=rows, validation=rows)
    with pytest.raises(DataError, match=r"row 2: the label 1 can be the name 1 or the label with this number, 2"):
        prepared(tmp_path / "b", path=str(path), label_names=["1", "2", "3"])


def test_label_names_of_recipe_and_file_that_overlap_are_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "data", [0, 1, 2], ClassLabel(names=["negative", "neutral", "positive"]))
    with pytest.raises(DataError, match=r'data\.label_names has "negative" among other names'):
        prepared(tmp_path, path=str(path), label_names=NAMES)
    ready = prepared(tmp_path / "renamed", path=str(path), label_names=["bad", "so so", "good"])
    assert labels_of(ready) == ["bad", "so so", "good"]


def test_shards_that_name_their_classes_differently_are_refused(tmp_path: Path) -> None:
    for number, names in enumerate((NAMES, NAMES[::-1])):
        write_parquet(tmp_path / str(number), [0, 1], ClassLabel(names=names))
        (tmp_path / "data").mkdir(exist_ok=True)
        for split in ("train", "validation"):
            (tmp_path / str(number) / f"{split}.parquet").rename(
                tmp_path / "data" / f"{split}-{number:05}-of-00002.parquet"
            )
    with pytest.raises(DataError, match="name their class labels differently"):
        prepared(tmp_path, path=str(tmp_path / "data"))


@pytest.mark.parametrize(
    "recorded", ["{", '{"info": 3}', '{"info": {"features": {"label": {"_type": "ClassLabel", "names": 3}}}}']
)
def test_class_labels_that_cannot_be_read_are_refused(tmp_path: Path, recorded: str) -> None:
    table = pa.table({"text": ["a", "b"], "label": [0, 1]}).replace_schema_metadata({"huggingface": recorded})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(
        DataError, match=r"train\.parquet: the class labels that datasets recorded in it cannot be read"
    ):
        prepared(tmp_path, path=str(tmp_path))


def write_labels(folder: Path, labels: Sequence[Any], ending: str) -> Path:
    """A file of rows with these labels, which three rows each have."""
    path, rows = folder / f"rows.{ending}", [(f"a b {n}", label) for n, label in enumerate(labels * 3)]
    if ending == "csv":
        text = "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)
    else:
        text = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("labels", [[0.0, 1.0], [4.25, 1.0], [float("1e3"), 0.0]])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_numbers_with_decimals_are_no_classes(tmp_path: Path, labels: list[Any], ending: str) -> None:
    """transformers' run_classification takes such a column for the targets of a regression; kit asks."""
    path = write_labels(tmp_path, labels, ending)
    with pytest.raises(DataError) as refused:
        prepared(tmp_path, path=str(path), validation_size=1)
    for part in (f"the label is {labels[0]}, a number", "data.problem_type: regression", "data.label_names"):
        assert part in str(refused.value)
    ready = prepared(tmp_path / "numbers", path=str(path), validation_size=1, problem_type="regression")
    assert set(ready.encoded["train"].examples.labels) == set(labels)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_whole_numbers_with_decimals_are_numbers_of_named_labels(tmp_path: Path, ending: str) -> None:
    path = write_labels(tmp_path, [0.0, 1.0], ending)
    ready = prepared(tmp_path, path=str(path), validation_size=1, label_names=NAMES)
    assert ready.model.config.id2label == dict(enumerate(NAMES))
    assert set(labels_of(ready)) == set(NAMES)
    (tmp_path / "b").mkdir()
    path = write_labels(tmp_path / "b", [0.5, 1.0], ending)
    with pytest.raises(DataError, match=r"the label is 0\.5, a number with decimals"):
        prepared(tmp_path / "b", path=str(path), validation_size=1, label_names=NAMES)


def test_names_that_look_like_numbers_with_decimals_are_names_if_the_recipe_lists_them(tmp_path: Path) -> None:
    path = write_labels(tmp_path, ["3.9", "3.10"], "csv")
    assert set(labels_of(prepared(tmp_path, path=str(path), validation_size=1, label_names=["3.9", "3.10"]))) == {
        "3.9", "3.10",
    }  # fmt: skip


@pytest.mark.parametrize("label", [[0, 1, 0], [0.0, 1.0], ["x", "x"]])
def test_a_zero_or_one_for_each_label_is_no_list_of_labels(tmp_path: Path, label: list[Any]) -> None:
    path = write_labels(tmp_path, [label], "jsonl")
    message = "a number with decimals" if isinstance(label[0], float) else "is listed twice"
    with pytest.raises(DataError, match=message):
        prepared(tmp_path, path=str(path), validation_size=1, problem_type="multi_label_classification")


def test_a_label_of_thousands_of_digits_is_no_label_number(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": label} for label in ("no", "yes", "9" * 5000)]
    path = write_rows(tmp_path / "rows", train=rows, validation=rows[:2])
    with pytest.raises(DataError, match=r'row 3: the label "9999'):
        prepared(tmp_path / "b", path=str(path), label_names=["no", "yes"])
