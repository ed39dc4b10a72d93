"""Load a recipe: from YAML and `key=value` overrides to a validated `Recipe`, or one error that lists every mistake."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kit.errors import RecipeError, did_you_mean
from kit.recipe import model_settings
from kit.recipe.base import Recipe, sections_of
from kit.recipe.catalog import find_recipe
from kit.recipe.document import parse_override, printable, read_text, read_yaml
from kit.recipe.keys import Recipes, unknown_key
from kit.recipe.messages import Problem, field_problems, show
from kit.recipe.model import ModelSection
from kit.recipe.section import SAVED


def parse_recipe(path_or_name: str | Path, overrides: Sequence[str], recipes: Recipes, saved: bool = False) -> Recipe:
    """Load a recipe file, or a shipped recipe by name, and apply `key=value` overrides, which take precedence.

    `recipes` maps each task to its recipe class. `saved` accepts names that are not registered in this process,
    for the recipe of a run. Raises one RecipeError that lists every mistake, one per line. Checking the settings of a
    model imports transformers.
    """
    path = find_recipe(path_or_name)
    document = read_yaml(read_text(path), printable(path))
    if document.value is None:
        raise RecipeError(f"{document.filename} is empty. Copy a shipped recipe with `kit copy` to start from.")
    if not isinstance(document.value, dict):
        raise RecipeError(
            f"{document.filename}: a recipe consists of sections (task:, model:, …); this is a list or text."
        )
    for argument in overrides:
        document.override(argument)
    task, kind, problems = _recipe_class(document.value, recipes)
    # a section whose lines are all commented out is read as null
    sections = sections_of(kind)
    value = {name: {} if part is None and name in sections else part for name, part in document.value.items()}
    recipe = None
    try:
        recipe = kind.model_validate(value, context=SAVED if saved else None)
    except ValidationError as error:
        wrong = field_problems(error, kind, value, partial(unknown_key, kind, task, recipes))
        problems += [problem for problem in wrong if problem[0] != ("task",)]
    settings: dict[str, Any] = {}
    if isinstance(value.get("model"), dict):
        settings, setting_problems = _model_settings(value["model"], kind)
        problems += setting_problems
    if recipe is not None and recipe.model.type is not None and not problems:
        config = model_settings.config_class(recipe.model.type, kind.kit_types, kind.mapping)
        message = model_settings.combination_problem(config, settings, recipe.tokenizer.shares_vocabulary)
        problems = [(("model",), f"model: {message}")] if message else []
    if recipe is None or problems:
        problems.sort(key=lambda problem: document.order(problem[0]))
        raise RecipeError("\n".join(f"{document.where(path)}: {message}" for path, message in problems))
    model = ModelSection.model_validate({**recipe.model.model_dump(), **settings})
    return recipe.model_copy(update={"model": model})


def check_sections(overrides: Sequence[str], *sections: str, example: str) -> None:
    """Reject overrides of any other section of a finished run's recipe, because they would have no effect."""
    for argument in overrides:
        key, _ = parse_override(argument)
        if key.partition(".")[0] not in sections:
            raise RecipeError(
                f"on the command line: {key} has no effect on a finished run. Only {' and '.join(sections)} can be "
                f"changed here, for example {example}."
            )


def _recipe_class(value: dict[str, Any], recipes: Recipes) -> tuple[str | None, type[Recipe], list[Problem]]:
    """The task, its recipe class, and any mistake in `task`.

    For an unknown task, returns None and the first class, so that the other mistakes are reported too.
    """
    task = value.get("task")
    if isinstance(task, str) and task in recipes:
        return task, recipes[task], []
    expected = f"expected {'one of ' * (len(recipes) > 1)}{', '.join(recipes)}"
    problem = f"task: {expected}, got {show(task)}.{did_you_mean(str(task), recipes)}"
    if "task" not in value:
        problem = f"task is missing: {expected}."
    return None, next(iter(recipes.values())), [(("task",), problem)]


def _model_settings(section: dict[str, Any], kind: type[Recipe]) -> tuple[dict[str, Any], list[Problem]]:
    """The settings of a `model` section, converted to the types of its config class, and the mistakes in them.

    The config class of a pretrained model on the Hub is unknown until it is loaded; its settings are checked then.
    """
    model_type, pretrained = section.get("type"), section.get("pretrained")
    settings = {key: value for key, value in section.items() if key not in ModelSection.model_fields}
    if isinstance(pretrained, str) and model_type is None:
        model_type = model_settings.pretrained_type(pretrained)
    if not isinstance(model_type, str):
        return settings, []
    try:
        config = model_settings.config_class(model_type, kind.kit_types, kind.mapping)
    except RecipeError as error:
        return settings, [(("model", "type"), str(error))]
    return model_settings.check_settings(config, settings)
