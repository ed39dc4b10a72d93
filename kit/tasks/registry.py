"""The tasks: one line for each, and `register_task` for a task that is defined elsewhere.

The only module that knows which tasks there are. A task is a package with a `recipe` module, which imports no torch,
and a `task` module; their classes are `NAMERecipe` and `NAME`.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kit.errors import RecipeError, RunError
from kit.recipe.base import Recipe
from kit.recipe.parse import Overrides, RecipeSource, parse_recipe
from kit.recipe.suggestion import DataSample, Suggestion

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from kit.tasks.base import Task  # imports torch, which reading a recipe does not need

TASKS = {
    "translation": "kit.tasks.translation:Translation",
    "masked_lm": "kit.tasks.masked_lm:MaskedLM",
    "causal_lm": "kit.tasks.causal_lm:CausalLM",
    "instruction_tuning": "kit.tasks.instruction_tuning:InstructionTuning",
    "classification": "kit.tasks.classification:Classification",
    "tagging": "kit.tasks.tagging:Tagging",
    "question_answering": "kit.tasks.question_answering:QuestionAnswering",
    "captioning": "kit.tasks.captioning:Captioning",
    "dialogue": "kit.tasks.dialogue:Dialogue",
    "forecasting": "kit.tasks.forecasting:Forecasting",
}
"""Package and class of each task."""


def register_task(name: str, location: str) -> None:
    """Add a task to this process: `register_task("reversal", "my_package.reversal:Reversal")`.

    `my_package.reversal.recipe` has the class `ReversalRecipe`, `my_package.reversal.task` the class `Reversal`. With
    several processes, register it in each of them.
    """
    if TASKS.get(name, location) != location:
        raise ValueError(f"task {name!r} is already registered, as {TASKS[name]}")
    TASKS[name] = location


def recipe_classes() -> dict[str, type[Recipe]]:
    """The recipe class of each task."""
    return {name: _load(location, "recipe", "Recipe") for name, location in TASKS.items()}


def task_class(name: str) -> "type[Task[Any, Any]]":
    """The class of a task, imported only now, since each task imports libraries that others do not need."""
    return _load(TASKS[name], "task", "")


def create_task(recipe: Recipe) -> "Task[Any, Any]":
    """Create the task of a recipe."""
    return task_class(recipe.task)(recipe)


def find_task(config: "PreTrainedConfig") -> "type[Task[Any, Any]]":
    """Find the first registered task whose models have such a configuration. Raises RunError if there is none."""
    for name in TASKS:
        if (task := task_class(name)).accepts(config):
            return task
    saved_by = (getattr(config, "architectures", None) or ["unknown"])[0]
    raise RunError(f"no task of kit uses a {config.model_type} that was saved as {saved_by}")


def load_recipe(
    recipe: RecipeSource, overrides: Overrides = (), *, saved: bool = False, rows: Mapping[str, Any] | None = None
) -> Recipe:
    """Load a recipe: from a file, by the name of a shipped recipe, or from a mapping of sections as in a file.

    `overrides` take precedence: a list of `key=value` arguments, or a mapping such as `{"train.max_steps": 500}`. They
    also change a recipe that is loaded already. `saved` accepts metrics that are not registered in this process, for
    the recipe of a run. `rows` are the datasets of train, validation and test, instead of the data that the recipe
    names. Raises one RecipeError that lists every mistake, one per line.
    """
    return parse_recipe(recipe, overrides, recipe_classes(), saved=saved, rows=rows)


def suggest(sample: DataSample) -> list[Suggestion]:
    """Suggest recipes for a sample of data, the most likely task first."""
    answers = (recipe.suggest(sample) for recipe in recipe_classes().values())
    return sorted((answer for answer in answers if answer is not None), key=lambda answer: -answer.score)


def _load(location: str, module: str, suffix: str) -> Any:
    """Import the class of a task from one of its modules. Raises RecipeError if the module does not have it."""
    package, _, name = location.partition(":")
    try:
        return getattr(importlib.import_module(f"{package}.{module}"), f"{name}{suffix}")
    except AttributeError:
        raise RecipeError(f"{package}.{module} has no class {name}{suffix}, which the registered task needs") from None
