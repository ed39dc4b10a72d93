"""`kit eval` on other data than that of the run: each row counts, and no row of the training data is among them."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.labeling_runs import recipe, write_rows
from support.recipes import make_recipe

from kit import evaluate, train
from kit.errors import KitError, RecipeError

ROWS = [{"text": f"a b {n}", "label": "xy"[n % 2]} for n in range(40)]
OTHERS = [{"text": f"c {n}", "label": "xy"[n % 2]} for n in range(40)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on one file, of which validation and test are held out."""
    folder = tmp_path_factory.mktemp("held_out")
    write_rows(folder, rows=ROWS, other=[*OTHERS, OTHERS[0], {"text": "d", "label": None}], renamed=[
        {"review": row["text"], "label": row["label"]} for row in OTHERS
    ])  # fmt: skip
    data = {
        "path": str(folder / "rows.jsonl"), "validation_size": 5, "test_size": 10, "drop_duplicates": True,
        "max_examples": 20,
    }  # fmt: skip
    made = recipe(folder, "classification", data, eval={"metrics": ["accuracy"], "metric_for_best_model": "accuracy"})
    return train(made, folder / "run").folder


def test_all_rows_of_a_file_are_evaluated(run: Path) -> None:
    """Nothing is held out of other data, and the filters for training data do not apply to it."""
    told: list[str] = []
    path = f"data.path={run.parent / 'other.jsonl'}"
    evaluation = evaluate(run, "train", [path], told.append)
    assert evaluation.figures["examples"] == len(evaluation.rows) == 41
    assert [row["text"] for row in evaluation.rows] == [row["text"] for row in [*OTHERS, OTHERS[0]]]
    assert told == ["train: 1 left out (no label)"]
    renamed = [f"data.path={run.parent / 'renamed.jsonl'}", "data.text=review"]
    assert evaluate(run, "train", renamed).figures["examples"] == 40
    with pytest.raises(KitError, match=r"the data has no split 'test', only train\. Choose one of them with --split"):
        evaluate(run, "test", [path])


def test_the_size_of_a_held_out_split_cannot_be_changed(run: Path) -> None:
    path = f"data.path={run.parent / 'other.jsonl'}"
    for key in ("data.validation_size=1", "data.test_size=1", "data.max_examples=5", "data.drop_duplicates=false"):
        for more in ([], [path]):
            with pytest.raises(RecipeError, match=f"{key.partition('=')[0]} has no effect on the evaluation"):
                evaluate(run, "test", [*more, key])


def test_the_own_splits_stay_what_they_were(run: Path) -> None:
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    for split, size in (("train", 20), ("validation", 5), ("test", 10)):
        figures = evaluate(run, split, ["data.truncation=longest_first"]).figures
        assert figures["examples"] == size
        if split != "train":
            assert figures["accuracy"] == results[split]["accuracy"]


def test_rows_are_not_held_out_anew(run: Path) -> None:
    """Which rows are held out depends on their texts: other texts would move training rows into the test split."""
    for split in ("train", "validation", "test"):
        with pytest.raises(RecipeError, match=f"data.encoding would change which rows are held out .* split {split}"):
            evaluate(run, split, ["data.encoding=latin-1"])


def test_series_of_another_file_are_evaluated(tmp_path: Path) -> None:
    for name, steps in (("own", 60), ("other", 30)):
        (tmp_path / f"{name}.csv").write_text("x\n" + "".join(f"{step % 7}\n" for step in range(steps)), "utf-8")
    data = {
        "path": str(tmp_path / "own.csv"), "targets": ["x"], "history": 8, "horizon": 4, "season": None,
        "validation_steps": 12, "test_steps": 12,
    }  # fmt: skip
    run = train(make_recipe(tmp_path, "forecasting", data), tmp_path / "run").folder
    assert evaluate(run, "test", ["data.horizon=3", "eval.stride=3"]).figures["examples"] == 4
    evaluation = evaluate(run, "train", [f"data.path={tmp_path / 'other.csv'}", "eval.stride=1"])
    assert evaluation.figures["examples"] == 30 - 8 - 4 + 1
    assert evaluation.figures["mse"] > 0


def test_metrics_can_be_replaced_though_one_of_them_chose_the_checkpoint(run: Path) -> None:
    assert "f1_macro" in evaluate(run, "test", ["eval.metrics=[f1_macro]"]).figures


def test_predictions_that_there_are_none_of_are_refused(trained: Path, kit_here: Any, tmp_path: Path) -> None:
    arguments = ("eval", trained, "eval.metrics=[]", "eval.group_by=[]", "--predictions", "rows.jsonl")
    assert kit_here(*arguments, "eval.examples=1").returncode == 0
    assert len((tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 20
    done = kit_here(*arguments, "eval.examples=0")
    assert done.returncode == 2
    assert "--predictions: this evaluation makes none. Set eval.metrics or eval.examples" in done.stderr
    assert len((tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 20
