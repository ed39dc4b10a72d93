"""The meaning and accepted values of recipe keys, as `kit explain` prints them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pydantic.fields import FieldInfo

from kit.errors import RecipeError, did_you_mean
from kit.models import MODELS
from kit.recipe.keys import Recipes, key_variants, known_as, name_tasks, recipe_fields
from kit.recipe.messages import describe, show
from kit.recipe.model_settings import SET_BY_KIT, model_fields


@dataclass(frozen=True)
class Explanation:
    """A recipe key, in a form that some tasks or models share."""

    key: str
    description: str
    expects: str | None = None
    """The accepted values, in words; None for a section, and for a key that no recipe can set."""
    default: str | None = None
    tasks: tuple[str, ...] | None = None
    """The tasks that have the key in this form; None if all have it."""
    model_type: str | None = None
    """The value of model.type that the key belongs to, if only one has it."""


def explain(key: str, recipes: Recipes) -> str:
    """The meaning and accepted values of a recipe key as text; of a section, its keys; of an empty key, the sections.

    Raises RecipeError for an unknown key.
    """
    explained = explanations(key, recipes)
    if not key:
        return "\n".join(["A recipe has these sections:", *_listing(explained)])
    if key == "task":
        lines = [f"  {task}  {_one_line(kind.model_fields['task'].description)}" for task, kind in recipes.items()]
        return "\n".join(["task", f"  expects: one of {', '.join(recipes)}", *lines])
    if key in key_variants(recipes):
        return _section_text(key, explained, recipes)
    return "\n\n".join(_key_text(entry, recipes) for entry in explained)


def explanations(key: str, recipes: Recipes) -> list[Explanation]:
    """What `explain` prints, for programs: each form of a key; the keys of a section; the sections for an empty key.

    Raises RecipeError for an unknown key.
    """
    if not key:
        return [Explanation(name, _one_line(field.description)) for name, field in recipe_fields(recipes).items()]
    if key in key_variants(recipes):
        return list(_keys_of_section(key, recipes))
    if key in recipe_fields(recipes):
        return [_of_field(key, recipe_fields(recipes)[key])]
    section, _, name = key.partition(".")
    matches = [entry for entry in _keys_of_section(section, recipes) if entry.key == key]
    if section == "model" and name in SET_BY_KIT and not matches:
        matches = [Explanation(key, f"Cannot be set in a recipe: {SET_BY_KIT[name]}.")]
    if not matches:
        raise RecipeError(f"{show(key)} is not a recipe key.{_nearest_key(key, recipes)}")
    return matches


def _keys_of_section(section: str, recipes: Recipes) -> Iterator[Explanation]:
    """The keys of a section: those of all tasks, those of fewer tasks, and in `model` those of each model type."""
    entries = [
        _of_field(f"{section}.{name}", variant.field, None if len(variant.tasks) == len(recipes) else variant.tasks)
        for name, variants in key_variants(recipes).get(section, {}).items()
        for variant in variants
    ]
    groups = dict.fromkeys([None, *(entry.tasks for entry in entries)])
    yield from (entry for tasks in groups for entry in entries if entry.tasks == tasks)
    for model_type in MODELS if section == "model" else ():
        for name, field in model_fields(model_type).items():
            yield _of_field(f"model.{name}", field, None, model_type)


def _of_field(
    key: str, field: FieldInfo, tasks: Sequence[str] | None = None, model_type: str | None = None
) -> Explanation:
    expects = describe(field.annotation, field.metadata)
    some = None if tasks is None else tuple(tasks)
    return Explanation(key, _one_line(field.description), expects, default_of(field), some, model_type)


def _section_text(section: str, explained: Sequence[Explanation], recipes: Recipes) -> str:
    lines = [f"{section}: {_one_line(recipe_fields(recipes)[section].description)}"]
    for (tasks, model_type), entries in groupby(explained, lambda entry: (entry.tasks, entry.model_type)):
        if tasks is not None:
            lines += ["", f"for {name_tasks(tasks, recipes)}:"]
        elif model_type is not None:
            lines += ["", f"with model.type: {model_type}"]
        lines += _listing(list(entries))
    return "\n".join(lines)


def _key_text(entry: Explanation, recipes: Recipes) -> str:
    belongs_to = f" ({name_tasks(entry.tasks, recipes)})" if entry.tasks else ""
    belongs_to += f" (model.type: {entry.model_type})" if entry.model_type else ""
    values = [] if entry.expects is None else [f"  expects: {entry.expects}", f"  default: {entry.default}"]
    return "\n".join([entry.key + belongs_to, *values, f"  {entry.description}"])


def default_of(field: FieldInfo) -> str:
    """The default of a field, in words."""
    if field.is_required():
        return "none (required)"
    default = field.get_default(call_default_factory=True)
    return default if isinstance(default, str) else show(default)


def _listing(entries: Sequence[Explanation]) -> list[str]:
    width = max((len(entry.key) for entry in entries), default=0)
    return [f"  {entry.key:<{width}}  {entry.description}" for entry in entries]


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _nearest_key(key: str, recipes: Recipes) -> str:
    """A sentence that suggests the most similar keys."""
    known = [*recipe_fields(recipes)]
    known += [f"{section}.{name}" for section, keys in key_variants(recipes).items() for name in keys]
    known += dict.fromkeys(f"model.{name}" for model_type in MODELS for name in model_fields(model_type))
    same_name = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    if same_name:
        return f" Did you mean {' or '.join(same_name)}?"
    if other := known_as(key, *recipes.values()):
        return f" kit calls it {other}: `kit explain {other}`."
    return did_you_mean(key, known) or " `kit explain` lists the sections."
