"""The recipe: everything that decides the outcome of a run. Each task has a kind of its own.

`load_recipe` reads YAML and `key=value` overrides into a `Recipe`, or says in one message what is wrong where.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kit.errors import RecipeError, did_you_mean
from kit.recipe import model_settings as recipe_model
from kit.recipe.base import Recipe
from kit.recipe.catalog import find_recipe
from kit.recipe.document import parse_override, printable, read_text, read_yaml
from kit.recipe.inputs import DataSection, ModelSection, TokenizerSection
from kit.recipe.model_settings import Problem, field_problems, show
from kit.recipe.section import Section
from kit.recipe.training import EvalSection, HubSection, PeftSection, TrainSection
from kit.tasks.captioning.recipe import CaptioningRecipe
from kit.tasks.dialogue.recipe import DialogueRecipe
from kit.tasks.families.labeling.recipe import ClassificationRecipe, QuestionAnsweringRecipe, TaggingRecipe
from kit.tasks.families.language_modeling.recipe import CausalLMRecipe, MaskedLMRecipe
from kit.tasks.forecasting.recipe import ForecastingRecipe
from kit.tasks.instruction_tuning.recipe import InstructionTuningRecipe
from kit.tasks.translation.recipe import TranslationRecipe

RECIPES: dict[str, type[Recipe]] = {
    "translation": TranslationRecipe,
    "masked_lm": MaskedLMRecipe,
    "causal_lm": CausalLMRecipe,
    "instruction_tuning": InstructionTuningRecipe,
    "classification": ClassificationRecipe,
    "tagging": TaggingRecipe,
    "question_answering": QuestionAnsweringRecipe,
    "captioning": CaptioningRecipe,
    "dialogue": DialogueRecipe,
    "forecasting": ForecastingRecipe,
}
"""The kind of recipe that each task has."""


def sections_of(kind: type[Recipe]) -> dict[str, type[Section]]:
    """The sections of a kind of recipe."""
    annotations = {name: field.annotation for name, field in kind.model_fields.items()}
    return {name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, Section)}


SECTIONS = sections_of(Recipe)
"""The sections that every recipe has; those of a task have more keys."""


def load_recipe(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file of the user's own or of kit's, with `key=value` overrides, which win.

    One RecipeError names all mistakes, a line for each. Checking the model's settings imports transformers.
    """
    path = find_recipe(path_or_name)
    document = read_yaml(read_text(path), printable(path))
    if document.value is None:
        raise RecipeError(f"{document.filename} is empty. `kit copy` makes a shipped recipe yours to start from.")
    if not isinstance(document.value, dict):
        raise RecipeError(
            f"{document.filename}: a recipe is made of sections (task:, model:, …), not a list or a text."
        )
    for argument in overrides:
        document.override(argument)
    # a section of which every line is commented out reads as null
    value = {name: {} if part is None and name in SECTIONS else part for name, part in document.value.items()}

    kind, problems = _kind_of_recipe(value)
    recipe = None
    try:
        recipe = kind.model_validate(value)
    except ValidationError as error:
        problems += [problem for problem in field_problems(error, kind, value) if problem[0] != ("task",)]
    settings, more = _model_settings(value["model"], kind) if isinstance(value.get("model"), dict) else ({}, [])
    problems += more
    if recipe is not None and recipe.model.type is not None and not problems:
        config = recipe_model.config_class(recipe.model.type, kind.own_types, kind.mapping)
        complaint = recipe_model.combination_problem(config, settings, recipe.tokenizer.one_vocabulary)
        problems = [(("model",), f"model: {complaint}")] if complaint else []
    if recipe is None or problems:
        problems.sort(key=lambda problem: document.order(problem[0]))
        raise RecipeError("\n".join(f"{document.where(path)}: {message}" for path, message in problems))
    model = ModelSection.model_validate({**recipe.model.model_dump(), **settings})
    return recipe.model_copy(update={"model": model})


def check_sections(overrides: Sequence[str], *sections: str, example: str) -> None:
    """Refuse overrides of other sections of a finished run's recipe, as they would have no effect."""
    for argument in overrides:
        key, _ = parse_override(argument)
        if key.partition(".")[0] not in sections:
            raise RecipeError(
                f"on the command line: {key} has no effect on a finished run. Only {' and '.join(sections)} can be "
                f"changed here, such as {example}."
            )


def _kind_of_recipe(value: dict[str, Any]) -> tuple[type[Recipe], list[Problem]]:
    """The kind of recipe that `task` asks for, and what is wrong with `task`; then the rest is checked as one of the
    first kind."""
    task = value.get("task")
    if isinstance(task, str) and task in RECIPES:
        return RECIPES[task], []
    expected = f"expected one of {', '.join(RECIPES)}" if len(RECIPES) > 1 else f"expected {next(iter(RECIPES))}"
    if "task" not in value:
        problem = f"task is missing: {expected}."
    else:
        problem = f"task: {expected}, got {show(task)}.{did_you_mean(str(task), RECIPES)}"
    return next(iter(RECIPES.values())), [(("task",), problem)]


def _model_settings(section: dict[str, Any], kind: type[Recipe]) -> tuple[dict[str, Any], list[Problem]]:
    """The settings of a `model` section in the types of its config class, and what is wrong with them.

    The class of a pretrained model on the Hub is known only once it is loaded: whoever loads it checks then.
    """
    model_type, pretrained = section.get("type"), section.get("pretrained")
    settings = {key: value for key, value in section.items() if key not in ModelSection.model_fields}
    if isinstance(pretrained, str) and model_type is None:
        model_type = recipe_model.pretrained_type(pretrained)
    if not isinstance(model_type, str):
        return settings, []
    try:
        config = recipe_model.config_class(model_type, kind.own_types, kind.mapping)
    except RecipeError as error:
        return settings, [(("model", "type"), str(error))]
    return recipe_model.check_settings(config, settings)


__all__ = [
    "RECIPES",
    "SECTIONS",
    "DataSection",
    "EvalSection",
    "HubSection",
    "ModelSection",
    "PeftSection",
    "Recipe",
    "Section",
    "TokenizerSection",
    "TrainSection",
    "load_recipe",
    "sections_of",
]
