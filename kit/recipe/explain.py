"""The meaning and accepted values of recipe keys, as `kit explain` prints them."""

from collections.abc import Mapping

from pydantic.fields import FieldInfo

from kit.errors import RecipeError, did_you_mean
from kit.models import MODELS
from kit.recipe.keys import Recipes, key_variants, known_as, name_tasks, recipe_fields
from kit.recipe.messages import describe, show
from kit.recipe.model_settings import SET_BY_KIT, model_fields


def explain(key: str, recipes: Recipes) -> str:
    """The meaning and accepted values of a recipe key; for a section, its keys; for an empty key, the sections.

    Raises RecipeError for an unknown key.
    """
    if not key:
        return "\n".join(["A recipe has these sections:", *_listing("", recipe_fields(recipes))])
    if key == "task":
        lines = [f"  {task}  {_one_line(kind.model_fields['task'].description)}" for task, kind in recipes.items()]
        return "\n".join(["task", f"  expects: one of {', '.join(recipes)}", *lines])
    if key in key_variants(recipes):
        return _explain_section(key, recipes)
    if key in recipe_fields(recipes):
        return _explanation(key, recipe_fields(recipes)[key])
    section, _, name = key.partition(".")
    explanations = [
        _explanation(
            key if set(variant.tasks) == set(recipes) else f"{key} ({name_tasks(variant.tasks, recipes)})",
            variant.field,
        )
        for variant in key_variants(recipes).get(section, {}).get(name, [])
    ]
    if section == "model" and not explanations:
        by_type = {model_type: model_fields(model_type) for model_type in MODELS}
        explanations = [
            _explanation(f"{key} (model.type: {model_type})", fields[name])
            for model_type, fields in by_type.items()
            if name in fields
        ]
        if name in SET_BY_KIT and not explanations:
            explanations = [f"{key}\n  Cannot be set in a recipe: {SET_BY_KIT[name]}."]
    if not explanations:
        raise RecipeError(f"{show(key)} is not a recipe key.{_nearest_key(key, recipes)}")
    return "\n\n".join(explanations)


def _explain_section(section: str, recipes: Recipes) -> str:
    """The keys of a section: those of all tasks, those of fewer tasks, and in `model` those of each model type."""
    groups: dict[tuple[str, ...], dict[str, FieldInfo]] = {tuple(recipes): {}}
    for name, variants in key_variants(recipes)[section].items():
        for variant in variants:
            groups.setdefault(tuple(variant.tasks), {})[name] = variant.field
    lines = [f"{section}: {_one_line(recipe_fields(recipes)[section].description)}"]
    for tasks, fields in groups.items():
        heading = [] if len(tasks) == len(recipes) else ["", f"for {name_tasks(tasks, recipes)}:"]
        lines += [*heading, *_listing(f"{section}.", fields)]
    for model_type in MODELS if section == "model" else ():
        lines += ["", f"with model.type: {model_type}", *_listing("model.", model_fields(model_type))]
    return "\n".join(lines)


def _explanation(key: str, field: FieldInfo) -> str:
    lines = [
        key,
        f"  expects: {describe(field.annotation, field.metadata)}",
        f"  default: {default_of(field)}",
        f"  {_one_line(field.description)}",
    ]
    return "\n".join(lines)


def default_of(field: FieldInfo) -> str:
    """The default of a field, in words."""
    if field.is_required():
        return "none (required)"
    default = field.get_default(call_default_factory=True)
    return default if isinstance(default, str) else show(default)


def _listing(prefix: str, fields: Mapping[str, FieldInfo]) -> list[str]:
    width = max((len(prefix) + len(name) for name in fields), default=0)
    return [f"  {prefix + name:<{width}}  {_one_line(field.description)}" for name, field in fields.items()]


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
