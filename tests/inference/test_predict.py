"""`kit predict` on rows: the predictions of training, from common file layouts, with every problem reported."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from support.labeling_runs import KINDS, recipe, trained, write_rows

import kit
from kit import train

IN_SOAK = ("pairs", "several", "tagging")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.soak) if kind in IN_SOAK else kind for kind in KINDS]
)
def test_predictions_equal_those_of_training(kind: str, tmp_path: Path, kit_here: Any) -> None:
    folder = tmp_path / kind
    run = trained(folder, kind)
    lines = (run.folder / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    expected = [json.loads(line) for line in lines]
    assert len({json.dumps(row["prediction"]) for row in expected}) > 1, kind
    learned = ("label", "tags", "answers", "prediction", "score", "null_score", "id")
    renamed = {"text_pair": "other"}  # the name in the recipe
    rows = [{renamed.get(name, name): row[name] for name in row if name not in learned} for row in expected]
    write_rows(folder, new=[{"number": n, **row} for n, row in enumerate(rows)])
    done = kit_here("predict", run.folder, folder / "new.jsonl", "--output", folder / "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert f"{len(rows)} rows: " in done.stderr
    predicted = [json.loads(line) for line in (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["prediction"] for row in predicted] == [
        pytest.approx(row["prediction"]) if kind == "numbers" else row["prediction"] for row in expected
    ]
    for number, (row, right, source) in enumerate(zip(predicted, expected, rows, strict=True)):
        assert {name: row[name] for name in ("number", *source)} == {"number": number, **source}
        if "score" in right:
            assert row["score"] == pytest.approx(right["score"], abs=1e-6)
        if kind == "question_answering":
            assert row["context"][row["start"] : row["end"]] == row["prediction"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on files without a header line, whose columns the recipe names."""
    folder = tmp_path_factory.mktemp("words")
    lines = [("aa b", "x"), ("c dd", "y"), ("b a", "x"), ("d", "y")] * 8
    (folder / "data").mkdir()
    for split in ("train", "validation"):
        text = "".join(f"{text}\t{label}\n" for text, label in lines)
        (folder / "data" / f"{split}.tsv").write_text(text, encoding="utf-8")
    data = {"path": str(folder / "data"), "columns": ["word", "label"], "text": "word", "max_length": 8}
    return train(recipe(folder, "classification", data, train={"max_steps": 60}), folder / "run").folder


def test_common_file_layouts(run: Path, tmp_path: Path, kit_here: Any) -> None:
    (tmp_path / "labeled.tsv").write_text("aa b\tx\nd\tno such label\n", encoding="utf-8")
    (tmp_path / "bare.tsv").write_text("aa b\nd\n", encoding="utf-8")
    (tmp_path / "lines.txt").write_text("aa b\nd\n", encoding="utf-8")
    (tmp_path / "named.csv").write_text('id,review\n1,aa b\n2,"d"\n', encoding="utf-8")
    (tmp_path / "named.tsv").write_text("1\taa b\n2\td\n", encoding="utf-8")
    (tmp_path / "semicolons.csv").write_text('id;word\n1;aa b\n2;"d"\n', encoding="utf-8")
    (tmp_path / "quoted.tsv").write_text('aa b\n"d"\n', encoding="utf-8")
    pa.parquet.write_table(pa.table({"word": pa.array(["aa b", "d"], pa.large_string())}), tmp_path / "own.parquet")
    (tmp_path / "[odd]: name.jsonl").write_text('{"word": "aa b"}\n{"word": "d"}\n', encoding="utf-8")
    for arguments in (
        ("labeled.tsv",),
        ("bare.tsv",),
        ("lines.txt",),
        ("named.csv", "data.columns=null", "data.text=review"),
        ("named.tsv", "data.columns=[id,review]", "data.text=review"),
        ("semicolons.csv", "data.columns=null", "data.delimiter=;"),
        ("quoted.tsv", "data.quoting=true"),
        ("own.parquet",),
        ("[odd]: name.jsonl",),
    ):
        done = kit_here("predict", run, *arguments)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["prediction"] for line in done.stdout.splitlines()] == ["x", "y"], arguments
        assert "quotation marks" not in done.stderr
    assert "1 rows with a cell in quotation marks" in kit_here("predict", run, "quoted.tsv").stderr


def test_rows_without_text_and_long_rows_are_reported(run: Path, tmp_path: Path, kit_here: Any) -> None:
    rows = [{"word": None, "tags": ["a", "b"]}, {"word": "", "tags": []}, {"word": "a" * 50, "tags": None}]
    write_rows(tmp_path, odd=[*rows, *({"word": "d", "tags": None} for _ in range(2100))])
    done = kit_here("predict", run, "odd.jsonl", "--output", "odd.csv")
    assert done.returncode == 0, done.stderr
    assert "2,103 rows: odd.csv" in done.stderr
    assert "1 row had nothing to read, the prediction is empty: row 1" in done.stderr
    assert "1 rows were longer than the model reads, and were truncated" in done.stderr
    with (tmp_path / "odd.csv").open(encoding="utf-8", newline="") as file:
        predicted = list(csv.DictReader(file))
    assert [row["prediction"] for row in predicted[:2]] == ["", predicted[1]["prediction"]]
    assert predicted[0] == {"word": "", "tags": '["a", "b"]', "prediction": "", "score": ""}
    assert {row["prediction"] for row in predicted[3:]} == {"y"}


def test_a_model_of_built_in_data_labels_files_of_any_layout(tmp_path: Path, kit_here: Any) -> None:
    run = trained(tmp_path, "classification").folder
    predictions = map(json.loads, (run / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines())
    rows = [row for row in predictions if row["label"] in ("de", "German")]
    (tmp_path / "dates.csv").write_text("".join(f"1;{row['text']}\n" for row in rows), encoding="cp1252")
    layout = ("data.columns=[id,text]", "data.delimiter=;", "data.encoding=cp1252")
    done = kit_here("predict", run, "dates.csv", *layout)
    assert done.returncode == 0, done.stderr
    predicted = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["prediction"] for row in predicted] == [row["prediction"] for row in rows] != []


def test_words_without_tags(tmp_path: Path, kit_here: Any) -> None:
    rows = [{"tokens": ["Anna", "met", "Bo"], "tags": ["B-PER", "O", "B-PER"]}] * 8
    data = {"path": str(write_rows(tmp_path / "data", train=rows, validation=rows))}
    run = train(recipe(tmp_path, "tagging", data, train={"max_steps": 60}), tmp_path / "run").folder
    (tmp_path / "bare.conll").write_text("Anna\nmet\nBo\n\nBo\n", encoding="utf-8")
    (tmp_path / "tagged.conll").write_text("Anna O\nmet O\nBo O\n\nBo O\n", encoding="utf-8")
    for name in ("bare.conll", "tagged.conll"):
        done = kit_here("predict", run, name)
        assert done.returncode == 0, done.stderr
        predicted = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["tokens"] for row in predicted] == [["Anna", "met", "Bo"], ["Bo"]]
        assert predicted[0]["prediction"] == ["B-PER", "O", "B-PER"]


def test_mistakes_are_reported(run: Path, tmp_path: Path, kit_here: Any) -> None:
    write_rows(tmp_path, other=[{"words": "d"}], taken=[{"word": "d", "score": 1}], numbers=[{"word": 1}])
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    (tmp_path / "two.tsv").write_text("d\tx\n", encoding="utf-8")
    (tmp_path / "kept.csv").write_text("before", encoding="utf-8")
    for arguments, message in (
        (("missing.csv",), "missing.csv does not exist"),
        (("other.jsonl",), 'has no column "word". Did you mean "words"?'),
        (("taken.jsonl",), 'taken.jsonl already has a column "score"'),
        (("numbers.jsonl", "--output", "kept.csv"), 'the column "word" of numbers.jsonl holds int64, not text'),
        (("empty.txt",), "empty.txt is empty"),
        (("other.jsonl", "data.columns=[word,label]"), "data.columns has no effect on other.jsonl"),
        (("other.jsonl", "data.txt=words"), "data.txt"),
        (("other.jsonl", "data.path=taken.jsonl"), "data.path has no effect on the predictions for other.jsonl"),
        (("two.tsv", "data.columns=[word]"), "two.tsv, line 1"),
        (
            ("other.jsonl", "train.seed=1"),
            "train.seed has no effect on the predictions for other.jsonl. Keys that can be changed here",
        ),
        (("other.jsonl", "--output", "out.xlsx"), "predictions are written as .csv or .jsonl"),
        (("other.jsonl", "--horizon", "3"), "--horizon has no effect on"),
    ):
        refused = kit_here("predict", run, *arguments)
        assert refused.returncode == 2, (arguments, refused.stderr)
        assert message in refused.stderr
        assert "Traceback" not in refused.stderr
    assert (tmp_path / "kept.csv").read_text(encoding="utf-8") == "before"
    model_alone = kit_here("predict", run / "model", "other.jsonl")
    assert "is not a run folder: it has no recipe.yaml" in model_alone.stderr


def test_plain_text_is_tagged_with_scores_in_one_scheme(tmp_path: Path, kit_here: Any) -> None:
    """Words of lines and of cells; tags that a file has are converted to the scheme of the model."""
    words = [["Anna", "lives", "in", "Oslo", "."], ["Bo", "Li", "met", "Anna"]]
    tags = [["I-PER", "O", "O", "I-LOC", "O"], ["I-PER", "I-PER", "O", "I-PER"]]  # IOB1
    rows = [{"tokens": row, "tags": of_row} for row, of_row in zip(words, tags, strict=True)]
    data = write_rows(tmp_path / "data", train=rows * 8, validation=rows)
    run = train(recipe(tmp_path, "tagging", {"path": str(data)}, train={"max_steps": 40}), tmp_path / "run").folder
    texts = ["Anna lives in Oslo.", "", "Bo Li met Anna"]
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    write_rows(tmp_path, cells=[{"tokens": text} for text in texts], tagged=rows)
    for name in ("in.txt", "cells.jsonl"):
        done = kit_here("predict", run, tmp_path / name)
        assert done.returncode == 0, done.stderr
        predicted = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["tokens"] for row in predicted] == [words[0], [], words[1]]
        assert [len(row["prediction"]) for row in predicted] == [len(row["score"]) for row in predicted] == [5, 0, 4]
        assert all(0 < score <= 1 for row in predicted for score in row["score"])
    assert [row["text"] for row in map(json.loads, kit_here("predict", run, "in.txt").stdout.splitlines())] == texts
    tagged = [json.loads(line) for line in kit_here("predict", run, "tagged.jsonl").stdout.splitlines()]
    assert tagged[1]["tags"] == ["B-PER", "I-PER", "O", "B-PER"]

    (entity, *_) = kit.pipeline("token-classification", run)("Anna lives in Oslo.")
    assert {"entity_group", "word", "score"} <= entity.keys()
    assert "entity" in kit.pipeline("ner", run, aggregation_strategy="none")("Anna lives in Oslo.")[0]
    assert 'aggregation_strategy="first")' in (run / "README.md").read_text(encoding="utf-8")
