"""Every command that lists something has `--json`: one value on standard output, with what the text shows."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit

from kit.recipe.catalog import list_recipes
from kit.tasks.registry import TASKS


def test_every_listing_is_available_as_json(trained: Path, kit_here: RunKit) -> None:
    def listed(*arguments: object) -> Any:
        done = kit_here(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert [entry["name"] for entry in listed("recipes")] == [recipe.name for recipe in list_recipes()]
    (recipe,) = listed("recipes", "dates_rnn")
    assert recipe["task"] == "translation"
    assert recipe["measured"]["minutes"] > 0
    assert [run["folder"] for run in listed("runs", trained)] == [str(trained)]
    assert {"train", "validation", "test"} <= listed("data", trained)["splits"].keys()
    assert {check["passed"] for check in listed("verify", trained)} == {True}
    assert {finding["status"] for finding in listed("doctor", "--no-self-check")} <= {"ok", "warning"}
    assert "exact_match" in listed("eval", trained)
    assert listed("compare", trained, trained, "--samples", 10)["metrics"] == ["exact_match"]


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("", ["task", "model", "tokenizer", "data", "train", "eval"]),
        ("train", ["train.max_steps", "train.learning_rate"]),
        ("train.learning_rate", ["train.learning_rate"]),
        ("model", ["model.pretrained", "model.cell"]),
        ("task", ["task"]),
    ],
)
def test_explanations_are_available_as_json(key: str, keys: list[str], kit_here: RunKit) -> None:
    done = kit_here("explain", *([key] if key else []), "--json")
    explained = json.loads(done.stdout)
    assert set(keys) <= {entry["key"] for entry in explained}
    text = kit_here("explain", *([key] if key else [])).stdout
    for entry in explained:
        assert entry["description"] in text or key == "task"
        assert entry["tasks"] is None or set(entry["tasks"]) < set(TASKS)
        if len(explained) == 1 and entry["expects"]:
            assert entry["expects"] in text


def test_a_key_of_several_tasks_has_an_explanation_for_each_form(kit_here: RunKit) -> None:
    explained = json.loads(kit_here("explain", "eval.metrics", "--json").stdout)
    assert len(explained) > 1
    tasks = [task for entry in explained for task in entry["tasks"]]
    assert len(tasks) == len(set(tasks))
    assert "Did you mean" in kit_here("explain", "train.max_step", "--json").stderr
