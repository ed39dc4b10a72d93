"""Load a recipe: from YAML and `key=value` overrides to a validated `Recipe`, or one error that lists every mistake."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeGuard

from pydantic import ValidationError

from kit.errors import RecipeError, did_you_mean
from kit.recipe import model_settings
from kit.recipe.base import Recipe, sections_of
from kit.recipe.catalog import find_recipe, shipped_recipes
from kit.recipe.data import IN_MEMORY
from kit.recipe.document import Document, parse_override, printable, read_text, read_yaml, write_override
from kit.recipe.keys import Recipes, unknown_key
from kit.recipe.messages import Problem, field_problems, show
from kit.recipe.model import ModelSection
from kit.recipe.section import SAVED

RecipeSource = str | Path | Mapping[str, Any] | Recipe
"""A recipe file or the name of a shipped recipe; the sections of a recipe; or a loaded recipe."""

Overrides = Sequence[str] | Mapping[str, Any]
"""Values that take precedence: `key=value` arguments, or a mapping from dotted keys to values."""

Key = tuple[str, str]
"""Section and name of a key."""

PYTHON = "recipe"
"""Where messages locate the mistakes of a recipe that is not a file."""

HOLDOUT_UNITS = ("size", "share", "steps")
GROUPS = ("eval", "group_by")
"""The key with columns of the data by which results are grouped."""

ALTERNATIVES: tuple[tuple[Key, Key], ...] = (
    (("train", "max_steps"), ("train", "num_train_epochs")),
    (("train", "tokens_per_batch"), ("train", "batch_size")),
    (("model", "type"), ("model", "pretrained")),
    (("tokenizer", "train"), ("tokenizer", "pretrained")),
)
"""Pairs of keys of which a recipe sets one: the one on the command line wins over the one in the file."""

DESCRIBED: dict[Key, tuple[str, ...]] = {
    ("data", "path"): ("license", "language", "tags", "datasets"),
    ("model", "pretrained"): ("license", "base_model"),
}
"""Keys of the section `hub` that describe the data, or the pretrained model: of others, a card must not claim them."""


def parse_recipe(
    source: RecipeSource,
    overrides: Overrides,
    recipes: Recipes,
    saved: bool = False,
    rows: Mapping[str, Any] | None = None,
) -> Recipe:
    """Load a recipe file, or a shipped recipe by name, and apply overrides, which take precedence.

    `source` can also be a mapping of sections, or a loaded recipe. Overrides are `key=value` arguments, or a mapping
    from dotted keys to values. `recipes` maps each task to its recipe class. `saved` accepts names that are not
    registered in this process, for the recipe of a run. With `rows`, the datasets of the splits, the recipe loses what
    describes other data. A key of the file that an override replaces, that describes what it replaces, or, in a shipped
    recipe, that it makes meaningless, is dropped. Raises one RecipeError that lists every mistake, one per line.
    Checking the settings of a model imports transformers.
    """
    document, is_shipped = _open(source)
    original = copy.deepcopy(document.value)
    replaced = {} if rows is None else _use_rows(document, recipes, rows, is_shipped)
    for argument in as_arguments(overrides):
        document.override(argument)
    replaced |= _drop_alternatives(document) | _drop_described(document, original)
    recipe, problems = _validate(document, recipes, saved)
    if problems and (overrides or rows is not None) and is_shipped:
        recipe, problems = _drop_meaningless(document, recipes, saved, problems, replaced)
    if recipe is None or problems:
        problems.sort(key=lambda problem: document.order(problem[0]))
        raise RecipeError("\n".join(f"{document.where(path)}: {message}" for path, message in problems))
    recipe = recipe.with_dropped({".".join(key): reason for key, reason in replaced.items()})
    if rows is None:
        return recipe
    if recipe.data.path != IN_MEMORY:
        raise RecipeError("data.path: it has no effect on rows passed from Python. Leave it out.")
    return recipe.with_rows(rows)


def as_arguments(overrides: Overrides) -> list[str]:
    """Overrides as `key=value` arguments."""
    if isinstance(overrides, str):
        raise RecipeError(f'overrides: expected a list such as ["{printable(overrides)}"], or a mapping; got text.')
    if isinstance(overrides, Mapping):
        return [write_override(str(key), plain_value(value)) for key, value in overrides.items()]
    return list(overrides)


def plain_value(value: Any) -> Any:
    """A value of a Python program as a recipe file has it: tuples are lists, and paths are text."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(part) for part in value]
    return str(value) if isinstance(value, PurePath) else value


def is_loaded(source: RecipeSource) -> TypeGuard[Recipe]:
    """Whether a recipe is already loaded, for any task."""
    return hasattr(source, "to_yaml")


def _open(source: RecipeSource) -> tuple[Document, bool]:
    """The document of a recipe, and whether it is a shipped one. Raises RecipeError if it does not have sections."""
    if is_loaded(source):
        # as in the recipe of a run, keys without effect are left out
        return Document(read_yaml(source.to_yaml(), PYTHON).value, PYTHON), False
    if isinstance(source, Mapping):
        return Document(plain_value(source), PYTHON), False
    if not isinstance(source, str | Path):
        raise RecipeError(
            f"recipe: expected a file, the name of a shipped recipe, a mapping or a loaded recipe, got {show(source)}."
        )
    path = find_recipe(source)
    document = read_yaml(read_text(path), printable(path))
    if document.value is None:
        raise RecipeError(f"{document.filename} is empty. Copy a shipped recipe with `kit copy` to start from.")
    if not isinstance(document.value, dict):
        raise RecipeError(
            f"{document.filename}: a recipe consists of sections (task:, model:, …); this is a list or text."
        )
    return document, path.resolve() in shipped_recipes().values()


def _use_rows(document: Document, recipes: Recipes, rows: Mapping[str, Any], is_shipped: bool) -> dict[Key, str]:
    """Adapt the document to rows passed from Python; returns why keys were dropped, by key.

    Keys about the source of other data are dropped, as are sizes of splits that are among the rows. A shipped recipe
    also loses its figures and its groups of results.
    """
    kind = sections_of(_recipe_class(document.value, recipes)[1])["data"]
    sizes = [f"{split}_{unit}" for split in rows for unit in HOLDOUT_UNITS]
    keys = [("data", name) for name in (*kind.keys_of("source_keys"), *sizes)]
    if is_shipped:
        keys.append(GROUPS)
        document.value.pop("measured", None)
    dropped = {key: "the rows are passed from Python" for key in keys if document.has(key)}
    for key in dropped:
        document.drop(key)
    document.override(write_override("data.path", IN_MEMORY))
    return dropped


def _drop_alternatives(document: Document) -> dict[Key, str]:
    """Drop each key of the file that is an alternative to a key of the command line; returns why, by key."""
    dropped = {}
    for first, second in ALTERNATIVES:
        for key, other in ((first, second), (second, first)):
            if document.is_overridden(key) and document.has(other) and not document.is_overridden(other):
                document.drop(other)
                dropped[other] = f"{'.'.join(key)} replaces it"
    return dropped


def _drop_described(document: Document, original: Mapping[str, Any]) -> dict[Key, str]:
    """Drop what describes the data or the pretrained model of the `original` sections, if an override names another
    one; returns why, by key. The user's overrides stay."""
    dropped: dict[Key, str] = {}
    given = "hub" in document.arguments
    for (section, name), described in DESCRIBED.items():
        before, now = (_value_of(sections, section, name) for sections in (original, document.value))
        if now in (None, before) or (before is None and section == "data"):
            continue
        for key in (("hub", of_model) for of_model in described):
            if document.has(key) and not given and not document.is_overridden(key):
                document.drop(key)
                dropped[key] = f"it describes the {section} that {section}.{name} replaces"
    return dropped


def _value_of(sections: Mapping[str, Any], section: str, name: str) -> Any:
    """The value of a key, None if it is not set or the section is malformed."""
    value = sections.get(section)
    return value.get(name) if isinstance(value, Mapping) else None


def _drop_meaningless(
    document: Document, recipes: Recipes, saved: bool, problems: list[Problem], dropped: dict[Key, str]
) -> tuple[Recipe | None, list[Problem]]:
    """Validate again without the keys of a shipped recipe that overrides make meaningless, and add them to `dropped`.

    The user did not set these keys. Their mistakes remain if dropping the keys does not leave a valid recipe.
    """
    trial, reasons, remaining = copy.deepcopy(document), {}, problems
    recipe = None
    while remaining and all(len(path) >= 2 and not trial.is_overridden(path[:2]) for path, _ in remaining):
        for path, message in remaining:
            key = (str(path[0]), str(path[1]))
            if not trial.has(key):
                return None, problems
            trial.drop(key)
            reasons[key] = message.removeprefix(f"{'.'.join(key)}: ").removesuffix(" Leave it out.")
        recipe, remaining = _validate(trial, recipes, saved)
    if remaining or recipe is None:
        return None, remaining
    document.value = trial.value
    dropped |= reasons
    return recipe, []


def _validate(document: Document, recipes: Recipes, saved: bool) -> tuple[Recipe | None, list[Problem]]:
    """The recipe of a document, or all mistakes in it."""
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
        return None, problems
    model = ModelSection.model_validate({**recipe.model.model_dump(), **settings})
    return recipe.model_copy(update={"model": model}), []


def check_overrides(overrides: Sequence[str], recipe: Recipe, accepted: Sequence[str], use: str) -> set[str]:
    """The keys that `overrides` change. Raises RecipeError for one that is not `accepted`, because it would have no
    effect on `use`, such as "the evaluation of runs/first".

    A key that the recipe does not have is left to `load_recipe`, which knows similar ones.
    """
    sections = sections_of(type(recipe))
    changed = set()
    for argument in overrides:
        key = ".".join(parse_override(argument)[0].split(".")[:2])
        section, _, name = key.partition(".")
        has_keys_here = any(other.startswith(f"{section}.") for other in accepted)
        is_unknown = has_keys_here and bool(name) and name not in sections[section].model_fields
        if key not in accepted and not is_unknown:
            raise RecipeError(
                f"on the command line: {key} has no effect on {use}. Keys that can be changed here: "
                f"{', '.join(accepted)}."
            )
        changed.add(key)
    return changed


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
