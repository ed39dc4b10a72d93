"""A task defined outside kit, "reverse", runs through every command with its own data set."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import RunKit

from kit import RecipeError, Translator, evaluate, load_recipe, train
from kit.data.builtin import DATASETS, register_dataset
from kit.tasks.registry import TASKS, register_task

RECIPE = Path(__file__).parents[1] / "support" / "reverse_task" / "reverse.yaml"


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    register_task("reverse", "support.reverse_task:Reverse")
    register_dataset("words", "support.reverse_task.words:generate")
    yield
    del TASKS["reverse"], DATASETS["words"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(load_recipe(RECIPE), tmp_path_factory.mktemp("reverse") / "run").folder


def test_run_learns_and_is_evaluated_again(run: Path) -> None:
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert results["test"]["exact_match"] > 0.5
    assert evaluate(run).figures == pytest.approx(results["test"])
    rows = [json.loads(line) for line in (run / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(row["target"] == row["source"][::-1] for row in rows)
    ((output,),) = Translator(run).translate([rows[0]["source"]])
    assert output.text == rows[0]["prediction"]


@pytest.mark.parametrize(
    ("command", "expected"), [("eval", "Exact match"), ("verify", "beam search"), ("plot", "attention.png")]
)
def test_commands_accept_the_run(run: Path, kit_here: RunKit, command: str, expected: str) -> None:
    done = kit_here(command, run)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout + done.stderr


def test_lines_are_generated_as_predicted(run: Path, kit_here: RunKit, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (run / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    (tmp_path / "in.txt").write_text("".join(f"{row['source']}\n" for row in rows), encoding="utf-8")
    done = kit_here("generate", run, "in.txt", "--output", "out.txt")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == [row["prediction"] for row in rows]


def test_the_card_describes_the_task(run: Path) -> None:
    card = (run / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: text2text-generation" in card
    assert "A text2text-generation model of type `rnn_seq2seq`" in card
    assert (run / "plots" / "attention.png").is_file()


def test_keys_are_explained_and_mistakes_are_reported(kit_here: RunKit) -> None:
    explained = kit_here("explain", "data.source")
    assert "Column of the texts to reverse." in explained.stdout
    with pytest.raises(RecipeError, match=r"data\.target"):
        load_recipe(RECIPE, ["data.target=text"])


def test_a_name_is_registered_once() -> None:
    register_task("reverse", "support.reverse_task:Reverse")
    with pytest.raises(ValueError, match="already registered"):
        register_task("reverse", "elsewhere:Reverse")
    with pytest.raises(ValueError, match="already registered"):
        register_dataset("words", "elsewhere:generate")
