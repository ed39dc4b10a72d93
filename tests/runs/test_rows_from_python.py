"""Rows that a Python program passes to `kit.train`: the same run as from files, tied to their content."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from support.recipes import RECIPES
from support.runs import rewind, weight_bytes

import kit
from kit import DataError, KitError, RecipeError, load_recipe
from kit.data.builtin import load_builtin
from kit.data.in_memory import datasets_of
from kit.data.rows import ColumnView
from kit.recipe.base import Recipe
from kit.recipe.data import IN_MEMORY
from kit.tasks.registry import create_task

RECIPE = {"task": "classification", **RECIPES["classification"]}
del RECIPE["data"]
COLUMNS = {"text": "text", "label": "label"}
WORDS = {"good": "fine nice lovely", "bad": "poor sad dull"}


def reviews() -> pd.DataFrame:
    """Reviews of both labels, in turn; the index does not count from 0, as after a selection."""
    rows = [{"text": f"{WORDS[label]} {number}", "label": label} for number in range(30) for label in WORDS]
    return pd.DataFrame(rows, index=range(100, 160))


def splits_of(rows: pd.DataFrame) -> dict[str, Any]:
    """The rows in splits, each in another form."""
    return {
        "train": rows[:40],
        "validation": rows[40:50].to_dict("records"),
        "test": Dataset.from_pandas(rows[50:], preserve_index=False).with_format("numpy"),
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows as csv files."""
    folder, rows = tmp_path_factory.mktemp("files"), reviews()
    for name, part in {"train": rows[:40], "validation": rows[40:50], "test": rows[50:]}.items():
        part.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on rows from Python."""
    folder = tmp_path_factory.mktemp("python") / "run"
    return kit.train({**RECIPE, "data": COLUMNS}, folder, data=splits_of(reviews()), quiet=True).folder


def test_rows_from_python_train_the_same_weights_as_files(run: Path, files: Path, tmp_path: Path) -> None:
    from_files = kit.train({**RECIPE, "data": {"path": files, **COLUMNS}}, tmp_path / "run", quiet=True)
    assert weight_bytes(run) == weight_bytes(from_files.folder)
    for file in ("predictions/test.jsonl", "metrics.jsonl"):
        texts = [(folder / file).read_text(encoding="utf-8") for folder in (run, from_files.folder)]
        first, second = (re.sub(r'"tokens_per_second": [^,]*', "", text) for text in texts)
        assert first == second


def test_a_run_resumes_with_the_same_rows_only(run: Path, tmp_path: Path) -> None:
    data, recipe, output = splits_of(reviews()), {**RECIPE, "data": COLUMNS}, tmp_path / "run"
    kit.train(recipe, output, data=data, quiet=True)
    changed = {**data, "train": data["train"].assign(text=data["train"]["text"].replace("fine nice lovely 0", "awful"))}
    with pytest.raises(DataError, match=f"{IN_MEMORY} is not the data of this recipe: train changed"):
        kit.train(recipe, output, data=changed)  # although it is finished
    rewind(output, 4)
    for other in (changed, {**data, "test": data["test"].select(range(5))}):
        with pytest.raises(DataError, match=f"{IN_MEMORY} is not the data of this recipe: (train|test) changed"):
            kit.train(recipe, output, resume=True, data=other)
    with pytest.raises(DataError, match="the rows were passed from Python, and a run does not store them"):
        kit.train(output, resume=True)
    kit.train(output, resume=True, data=data, quiet=True)
    assert weight_bytes(output) == weight_bytes(run)


def test_the_command_line_names_other_data_for_such_a_run(run: Path, files: Path, kit_here: Callable[..., Any]) -> None:
    refused = kit_here("eval", run)
    assert refused.returncode == 2
    assert "a run does not store them. Name data to use instead, such as data.path=FILE" in refused.stderr
    assert kit_here("eval", run, f"data.path={files}").returncode == 0


def test_a_run_is_evaluated_on_rows_from_python(run: Path, files: Path) -> None:
    trained = kit.train(run, data=splits_of(reviews())).results["test"]
    for rows in ({"test": reviews()[50:]}, {"train": reviews()[50:].to_dict("records")}):
        evaluation = kit.evaluate(run, data=rows)
        assert evaluation.figures["examples"] == 10
        assert evaluation.figures["accuracy"] == trained["accuracy"]
        assert evaluation.figures["loss"] == pytest.approx(trained["loss"], rel=1e-5)
    assert kit.evaluate(run, "validation", data={"validation": reviews()}).figures["examples"] == 60
    with pytest.raises(DataError, match='has no column "text"'):
        kit.evaluate(run, data={"test": [{"txt": "a", "label": "good"}]})


@pytest.mark.parametrize("task", RECIPES)
def test_every_task_reads_rows_from_python(task: str, make_recipe: Callable[..., Recipe]) -> None:
    recipe = make_recipe(task)
    data, loaded = recipe.data, create_task(recipe).load_splits()
    tables = load_builtin(
        data.path.partition(":")[2], data.languages, dict(data.sizes or {}), data.seed, list(data.text_columns)
    )
    rows = {name: rows_of(table) for name, table in tables.items()}
    from_python = create_task(load_recipe(recipe, rows=datasets_of(rows))).load_splits()
    assert from_python.fingerprints == loaded.fingerprints


def rows_of(table: Any) -> Any:
    """Rows as dictionaries; those of a dataset, which can hold images, stay one."""
    return table if isinstance(table, Dataset) else table.to_pylist()


def test_a_recipe_keeps_nothing_about_other_data() -> None:
    rows = datasets_of({"train": reviews(), "dev": reviews()[:4]})
    recipe = load_recipe("classification_banking77", {"model": {"type": "bert"}, "tokenizer.train": "word"}, rows=rows)
    assert recipe.data.path == IN_MEMORY
    assert recipe.data.validation_size is None
    assert (recipe.hub.datasets, recipe.hub.tags, recipe.measured) == ([], [], None)
    assert recipe.dropped["data.validation_size"] == "the rows are passed from Python"
    with pytest.raises(RecipeError, match=r"data\.path: it has no effect on rows passed from Python"):
        load_recipe("classification_banking77", ["data.path=x"], rows=rows)
    with pytest.raises(DataError, match=r"data\.delimiter has no meaning for rows passed from Python"):
        create_task(load_recipe({**RECIPE, "data": COLUMNS}, {"data.delimiter": ";"}, rows=rows)).load_splits()


def test_a_selection_of_a_dataset_and_the_names_of_its_labels() -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    rows = Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features)
    data = datasets_of(DatasetDict(train=rows.select([2, 0]), valid=rows, test=rows))
    assert list(ColumnView(data["train"], "text")) == ["c", "a"]
    assert list(data) == ["train", "validation", "test"]
    splits = create_task(load_recipe({**RECIPE, "data": COLUMNS}, rows=data)).load_splits()
    assert splits.report.splits["train"].dropped["no label"] == 1
    assert splits.datasets["train"].features["label"].names == ["bad", "good"]


def test_tables_and_categories_and_missing_cells() -> None:
    frame = pd.DataFrame({"text": ["a", None, "c"], "label": pd.Categorical(["x", "y", "x"]), "index": [3, 4, 5]})
    data = datasets_of({"train": frame, "validation": pa.table({"text": ["a"], "label": ["x"]})})
    assert data["train"].column_names == ["text", "label", "index"]
    assert list(ColumnView(data["train"], "text")) == ["a", None, "c"]
    assert list(ColumnView(data["train"], "label")) == ["x", "y", "x"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (reviews(), "expected the rows of each split, such as .*; got a DataFrame"),
        ({"tran": []}, r'"tran" is not a split; expected train, validation, test\. Did you mean "train"'),
        ({"dev": [], "validation": []}, '"validation" is a second name of the split validation'),
        ({"train": 3}, r'data\["train"\]: expected a datasets.Dataset, a data frame or a list of dictionaries'),
        ({"train": [{}, "text"]}, r'data\["train"\], row 2: expected a dictionary, got a str'),
        ({"train": [{"a": "x"}, {"a": 1}]}, r'row 2: the values of "a" have different types'),
        ({"train": [{"a": "\ud800"}]}, '"a" holds text that is not valid Unicode'),
        ({"train": [{"a\0": "x"}]}, "contains a null byte"),
        ({"train": pd.DataFrame({"a": ["x", 1]})}, "the data frame cannot be read: .*column a"),
    ],
)  # fmt: skip
def test_invalid_rows_are_rejected(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        datasets_of(data)


def test_a_recipe_in_python_has_the_checks_of_a_file(tmp_path: Path) -> None:
    mistakes = {**RECIPE, "dat": {}, "data": {"path": tmp_path, "lable": "x"}, "train": {"max_step": 3}}
    with pytest.raises(RecipeError) as caught:
        kit.train(mistakes, tmp_path / "run")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("recipe: ") for line in lines)
    for hint in ('Did you mean "data"', 'Did you mean "label"', 'Did you mean "max_steps"'):
        assert any(hint in line for line in lines), (hint, lines)
    with pytest.raises(RecipeError, match="expected a file, the name of a shipped recipe, a mapping or a loaded"):
        kit.train(3)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=r'overrides: expected a list such as \["train.max_steps=3"\]'):
        load_recipe("dates_rnn", "train.max_steps=3")
    with pytest.raises(KitError, match="needs a run folder"):
        kit.train({**RECIPE, "data": {**COLUMNS, "path": tmp_path}})


def test_overrides_change_a_loaded_recipe_and_can_be_a_mapping() -> None:
    recipe = load_recipe("dates_rnn")
    changed = load_recipe(recipe, {"train.max_steps": 7, "data.languages": ("de", "fr"), "model.attention": "dot"})
    assert changed.differences(recipe) == ["model.attention", "data.languages", "train.max_steps"]
    assert changed == load_recipe(recipe, ["train.max_steps=7", "data.languages=[de, fr]", "model.attention=dot"])


def test_a_plot_that_needs_the_rows_has_them(tmp_path: Path) -> None:
    """The run folder does not contain the history of a forecast."""
    rows = [{"y": math.sin(step / 3)} for step in range(200)]
    recipe = {
        "task": "forecasting",
        "model": RECIPES["forecasting"]["model"],
        "data": {"targets": ["y"], "history": 10, "horizon": 5},
        "train": {"max_steps": 2, "batch_size": 4},
        "eval": {"steps": 0, "examples": 0},
    }
    run = kit.train(recipe, tmp_path / "run", data={"train": rows, "validation": rows[:60]}, quiet=True)
    assert {"error_by_horizon", "forecast"} <= run.plots().keys()
    measured = run.plots()["forecast"].axes[0].lines[0].get_ydata()
    assert measured == pytest.approx([row["y"] for row in rows[:15]])
