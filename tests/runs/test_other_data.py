"""`kit eval` on other data than that of the run: every row counts, and training rows are not among them."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.labeling_runs import recipe, write_rows
from support.recipes import make_recipe

from kit import evaluate, train
from kit.errors import DataError, KitError, RecipeError
from kit.system.format import FORMAT_STAMP, RUN_FILE

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
    fine_tuning = recipe(
        folder, "classification", data, eval={"metrics": ["accuracy"], "metric_for_best_model": "accuracy"}
    )
    return train(fine_tuning, folder / "run").folder


def test_all_rows_of_a_file_are_evaluated(run: Path) -> None:
    """Nothing is held out of other data, and filters of training data do not apply."""
    lines: list[str] = []
    path = f"data.path={run.parent / 'other.jsonl'}"
    evaluation = evaluate(run, "train", [path], lines.append)
    assert evaluation.figures["examples"] == len(evaluation.rows) == 41
    assert [row["text"] for row in evaluation.rows] == [row["text"] for row in [*OTHERS, OTHERS[0]]]
    assert lines == [f"evaluated: {run.parent / 'other.jsonl'}, train, 41 rows", "train: 1 left out (no label)"]
    assert evaluate(run, overrides=[path]).rows == evaluation.rows
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


def test_splits_of_the_run_are_unchanged(run: Path) -> None:
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    for split, size in (("train", 20), ("validation", 5), ("test", 10)):
        figures = evaluate(run, split, ["data.truncation=longest_first"]).figures
        assert figures["examples"] == size
        if split != "train":
            assert figures["accuracy"] == results[split]["accuracy"]


def test_rows_are_not_held_out_again(run: Path) -> None:
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


def test_metrics_can_be_replaced(run: Path) -> None:
    assert "f1_macro" in evaluate(run, "test", ["eval.metrics=[f1_macro]"]).figures


def test_missing_predictions_are_rejected(trained: Path, kit_here: Any, tmp_path: Path) -> None:
    arguments = ("eval", trained, "eval.metrics=[]", "eval.group_by=[]", "--predictions", "rows.jsonl")
    assert kit_here(*arguments, "eval.examples=1").returncode == 0
    assert len((tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 20
    done = kit_here(*arguments, "eval.examples=0")
    assert done.returncode == 2
    assert "--predictions: this evaluation makes no predictions. Set eval.metrics or eval.examples" in done.stderr
    assert len((tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 20


def test_data_without_a_training_split(run: Path, tmp_path: Path) -> None:
    """One labeled split suffices, whatever names the run's own splits have."""
    write_rows(tmp_path / "own", rows=ROWS, dev=ROWS[:6], tst=ROWS[6:12])
    data = {"path": str(tmp_path / "own"), "train": "rows", "validation": "dev", "test": "tst"}
    named = train(recipe(tmp_path, "classification", data), tmp_path / "named").folder
    assert evaluate(named).figures["examples"] == 6
    file = f"data.path={run.parent / 'other.jsonl'}"
    write_rows(tmp_path / "tst", tst=OTHERS[:9])
    write_rows(tmp_path / "labeled", labeled=OTHERS[:8])
    for overrides, count in (
        ([file], 41),
        ([f"data.path={tmp_path / 'tst'}"], 9),
        ([f"data.path={tmp_path / 'labeled'}", "data.test=labeled"], 8),
    ):
        assert evaluate(named, overrides=overrides).figures["examples"] == count
    with pytest.raises(KitError, match=r'data.test: .*labeled has no split "tst"\. It has labeled'):
        evaluate(named, overrides=[f"data.path={tmp_path / 'labeled'}"])


LINES = {"de": "eins\nzwei\n", "en": "one\ntwo\n"}
TEXTS = "the old house\nnear the river\n\nunder a red bird\n"


@pytest.mark.parametrize("task", ["translation", "causal_lm", "masked_lm", "instruction_tuning", "tagging", "dialogue"])
def test_every_kind_of_labeled_data(task: str, run_of_task: Any, tmp_path: Path) -> None:
    """A folder with only a test split, or a single file, for tasks whose data is not a table of labels."""
    finished, data = run_of_task(task), tmp_path / "data"
    data.mkdir()
    files: dict[str, dict[str, str]] = {
        "translation": {f"test.{name}": text for name, text in LINES.items()},
        "causal_lm": {"book.txt": TEXTS},
        "masked_lm": {"book.txt": TEXTS},
        "instruction_tuning": {"new.csv": "prompt,answer\n3 May,05-03\n"},
        "tagging": {"new.conll": "3\tB-day\nMay\tB-month\n"},
        "dialogue": {"new.jsonl": '{"turns": ["hello", "I am Anna"], "response": "hi"}\n'},
    }
    for name, text in files[task].items():
        (data / name).write_text(text, encoding="utf-8")
    path = data if task == "translation" else data / next(iter(files[task]))
    columns = {"translation": ["data.source=de", "data.target=en"], "dialogue": ["data.turns=turns"]}.get(task, [])
    figures = evaluate(finished, overrides=[f"data.path={path}", *columns]).figures
    assert figures["examples"] >= 1
    assert figures["loss"] > 0


def test_perplexities_of_a_language_model_are_of_tokens_words_and_bytes(run_of_task: Any, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXTS, encoding="utf-8")
    overrides = [f"data.path={tmp_path / 'book.txt'}", "data.documents=file"]
    figures = evaluate(run_of_task("causal_lm"), overrides=overrides).figures
    nats = figures["loss"] * figures["tokens"]
    text = TEXTS.removesuffix("\n")
    sizes = {"word_perplexity": len(text.split()), "byte_perplexity": len(text.encode())}
    for name, count in sizes.items():
        assert math.log(figures[name]) == pytest.approx(nats / count)
    assert math.log(figures["perplexity"]) == pytest.approx(figures["loss"])
    assert figures["bits_per_byte"] == pytest.approx(math.log2(figures["byte_perplexity"]))


def test_absent_data_of_a_shared_run_is_reported_with_the_remedy(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    text = (copy / "recipe.yaml").read_text(encoding="utf-8").replace(str(run.parent / "rows.jsonl"), "absent.jsonl")
    (copy / "recipe.yaml").write_text(text, encoding="utf-8")
    (copy / RUN_FILE).write_text(json.dumps(FORMAT_STAMP), encoding="utf-8")
    absent = (
        r"the data of .*copy is not available here.*absent\.jsonl.* with text and label: kit eval .*copy data\.path="
    )
    with pytest.raises(DataError, match=absent):
        evaluate(copy)
    assert evaluate(copy, overrides=[f"data.path={run.parent / 'other.jsonl'}"]).figures["examples"] == 41
