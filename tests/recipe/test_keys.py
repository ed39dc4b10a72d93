"""Every key of every task, set on every task: those that a task does not have get one message, as in the schema."""

from functools import cache
from typing import Any

import pytest
import yaml

from kit.errors import RecipeError
from kit.recipe.base import sections_of
from kit.recipe.keys import key_variants, name_tasks
from kit.recipe.schema import recipe_schema
from kit.tasks.registry import load_recipe, recipe_classes

RECIPES = recipe_classes()
REQUIRED: dict[str, dict[str, Any]] = {"forecasting": {"history": 4, "horizon": 2}}
"""Keys of `data` that a task requires, besides `path`."""

KEYS = [(section,) for section in key_variants(RECIPES)]
KEYS += [(section, key) for section, keys in key_variants(RECIPES).items() for key in keys if section != "model"]
"""The path of each section, and of each key that any task has."""


def minimal(task: str) -> dict[str, Any]:
    return {
        "task": task,
        "model": {"pretrained": "someone/something"},
        "data": {"path": "x", **REQUIRED.get(task, {})},
        "train": {"max_steps": 1, "batch_size": 1},
    }


def having(path: tuple[str, ...]) -> set[str]:
    """The tasks that have a section or a key."""
    sections = {task: sections_of(recipe).get(path[0]) for task, recipe in RECIPES.items()}
    return {task for task, model in sections.items() if model and (len(path) == 1 or path[1] in model.model_fields)}


def write(folder, path: tuple[str, ...], task: str) -> str:
    """Write the minimal recipe with one more key to the folder, on line 1; the name of the file."""
    value, (section, *key) = minimal(task), path
    part = value.pop(section, {})
    if key:
        part[key[0]] = part.get(key[0], 7)
    (folder / "r.yaml").write_text(f"{section}: {part}\n{yaml.safe_dump(value)}")
    return str(folder / "r.yaml")


@cache
def allowed(task: str) -> dict[str, set[str]]:
    """The keys that the schema allows in each section of a recipe of a task."""
    schema = recipe_schema(RECIPES)
    then = next(case["then"] for case in schema["allOf"] if case["if"]["properties"]["task"]["const"] == task)
    assert then["additionalProperties"] is False
    keys = {}
    for section in sections_of(RECIPES[task]):
        definition = schema["$defs"][then["properties"][section]["$ref"].rpartition("/")[2]]
        assert definition["additionalProperties"] is (section == "model")
        keys[section] = set(definition["properties"])
    return keys


@pytest.mark.parametrize("task", RECIPES)
def test_a_key_of_another_task_gets_one_message_with_its_line(task, tmp_path):
    lacking = [path for path in KEYS if task not in having(path)]
    assert lacking
    for path in lacking:
        file = write(tmp_path, path, task)
        unknown = path if task in having(path[:1]) else path[:1]
        with pytest.raises(RecipeError) as error:
            load_recipe(file)
        tasks = [other for other in RECIPES if other in having(unknown)]
        expected = f"{'.'.join(unknown)} applies to {name_tasks(tasks, RECIPES)}; "
        expected += f"task: {task} does not support it. Leave it out."
        assert str(error.value) == f"{file}, line 1: {expected}"


@pytest.mark.parametrize("task", RECIPES)
def test_the_schema_allows_the_keys_that_the_parser_accepts(task, tmp_path):
    for path in KEYS:
        in_schema = path[0] in allowed(task) and (len(path) == 1 or path[1] in allowed(task)[path[0]])
        assert in_schema == (task in having(path))
        message = ""
        try:
            load_recipe(write(tmp_path, path, task))
        except RecipeError as error:
            message = str(error)
        assert ("does not support" in message) != in_schema
        assert "is not a key" not in message


def test_tasks_are_named_by_those_that_have_a_key_or_by_the_few_that_lack_it():
    tasks = [*RECIPES]
    assert name_tasks(tasks, RECIPES) == "all tasks"
    assert name_tasks(tasks[:2], RECIPES) == f"{tasks[0]} and {tasks[1]}"
    assert name_tasks(tasks[:-1], RECIPES) == f"all tasks but {tasks[-1]}"
    assert having(("data", "streaming")) == {"translation", "masked_lm", "causal_lm"}
    assert having(("tokenizer",)) == set(tasks) - {"forecasting"}
    assert having(("peft",)).isdisjoint({"masked_lm", "captioning", "dialogue", "forecasting"})


def test_the_command_line_is_named_for_a_key_of_another_task(tmp_path):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(minimal("classification")))
    with pytest.raises(RecipeError) as error:
        load_recipe(tmp_path / "r.yaml", ["data.streaming=true"])
    assert str(error.value) == (
        "on the command line (data.streaming=true): data.streaming applies to translation, masked_lm and causal_lm; "
        "task: classification does not support it. Leave it out."
    )


def test_an_unknown_task_is_the_only_mistake_in_a_recipe_with_keys_of_any_task(tmp_path):
    value = minimal("tagging") | {"task": "taging", "eval": {"num_beams": 2, "top_p": 0.5, "tpo_p": 1}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(value))
    with pytest.raises(RecipeError) as error:
        load_recipe(tmp_path / "r.yaml")
    unknown_key, unknown_task = str(error.value).splitlines()
    assert 'eval.tpo_p is not a key of "eval".' in unknown_key
    assert 'Did you mean "tagging"?' in unknown_task


def test_shared_code_reads_the_value_of_a_key_that_a_task_lacks(tmp_path):
    recipes = {}
    for task in ("translation", "forecasting"):
        (tmp_path / "r.yaml").write_text(yaml.safe_dump(minimal(task)))
        recipes[task] = load_recipe(tmp_path / "r.yaml")
    lacking, streamed = recipes["forecasting"], recipes["translation"].with_values("data", streaming=True)
    assert (lacking.data.streaming, lacking.data.languages, lacking.train.freeze) == (False, None, None)
    assert (lacking.tokenizer.pretrained, lacking.peft.method) == (None, None)
    assert streamed.data.streaming
    written = yaml.safe_load(lacking.to_yaml())
    assert set(lacking.flat()).isdisjoint({"data.streaming", "data.languages", "train.freeze"})
    assert written.keys().isdisjoint({"tokenizer", "peft"})
