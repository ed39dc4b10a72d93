"""The meaning and accepted values of recipe keys, as `kit explain` prints them."""

from collections.abc import Mapping

from pydantic.fields import FieldInfo

from kit.errors import RecipeError, did_you_mean
from kit.models import MODELS
from kit.recipe import model_settings
from kit.recipe.base import SECTIONS, Recipe, sections_of
from kit.recipe.model_settings import describe, model_fields, show
from kit.recipe.section import Section


def explain(key: str, recipes: Mapping[str, type[Recipe]]) -> str:
    """The meaning and accepted values of a recipe key; for a section, its keys; for an empty key, the sections.

    Raises RecipeError for an unknown key.
    """
    if not key:
        return "\n".join(["A recipe has these sections:", *_listing("", Recipe.model_fields)])
    if key == "task":
        lines = [f"  {task}  {_one_line(kind.model_fields['task'].description)}" for task, kind in recipes.items()]
        return "\n".join(["task", f"  expects: one of {', '.join(recipes)}", *lines])
    if key in Recipe.model_fields and key not in SECTIONS:
        return _explanation(key, Recipe.model_fields[key])
    if key in SECTIONS:
        lines = [f"{key}: {_one_line(SECTIONS[key].__doc__)}", *_listing(f"{key}.", SECTIONS[key].model_fields)]
        for tasks, fields in _task_fields(key, recipes):
            lines += ["", f"with task: {' or '.join(tasks)}", *_listing(f"{key}.", fields)]
        for model_type in MODELS if key == "model" else ():
            lines += ["", f"with model.type: {model_type}", *_listing("model.", model_fields(model_type))]
        return "\n".join(lines)

    section, _, name = key.partition(".")
    if section in SECTIONS:
        explanations = [
            _explanation(f"{key} (task: {' or '.join(tasks)})", fields[name])
            for tasks, fields in _task_fields(section, recipes)
            if name in fields
        ]
        shared = SECTIONS[section].model_fields.get(name)
        if shared is not None:
            kinds = (sections_of(kind)[section].model_fields[name] for kind in recipes.values())
            if not all(_differs(field, shared) for field in kinds):
                explanations.insert(0, _explanation(key, shared))
        if explanations:
            return "\n\n".join(explanations)
    if section == "model":
        by_type = {model_type: model_fields(model_type) for model_type in MODELS}
        explanations = [
            _explanation(f"{key} (model.type: {model_type})", fields[name])
            for model_type, fields in by_type.items()
            if name in fields
        ]
        if explanations:
            return "\n\n".join(explanations)
        if name in model_settings.SET_BY_KIT:
            return f"{key}\n  Cannot be set in a recipe: {model_settings.SET_BY_KIT[name]}."
    raise RecipeError(f"{show(key)} is not a recipe key.{_nearest_key(key, recipes)}")


def _task_fields(section: str, recipes: Mapping[str, type[Recipe]]) -> list[tuple[list[str], dict[str, FieldInfo]]]:
    """The fields of a section that only some tasks have, or define differently, with the names of these tasks."""
    shared = SECTIONS[section].model_fields
    tasks_of: dict[type[Section], list[str]] = {}
    for task, kind in recipes.items():
        tasks_of.setdefault(sections_of(kind)[section], []).append(task)
    return [
        (tasks, fields)
        for section_class, tasks in tasks_of.items()
        if (
            fields := {
                name: field for name, field in section_class.model_fields.items() if _differs(field, shared.get(name))
            }
        )
    ]


def _differs(field: FieldInfo, shared: FieldInfo | None) -> bool:
    if shared is None:
        return True
    return any(getattr(field, name) != getattr(shared, name) for name in ("annotation", "default", "description"))


def _explanation(key: str, field: FieldInfo) -> str:
    default = "none (required)" if field.is_required() else _default(field)
    lines = [
        key,
        f"  expects: {describe(field.annotation, field.metadata)}",
        f"  default: {default}",
        f"  {_one_line(field.description)}",
    ]
    return "\n".join(lines)


def _listing(prefix: str, fields: dict[str, FieldInfo]) -> list[str]:
    width = max(len(prefix) + len(name) for name in fields)
    return [f"  {prefix + name:<{width}}  {_one_line(field.description)}" for name, field in fields.items()]


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    return default if isinstance(default, str) else show(default)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _nearest_key(key: str, recipes: Mapping[str, type[Recipe]]) -> str:
    """A sentence that suggests the most similar keys."""
    known = [*Recipe.model_fields]
    known += [
        f"{section}.{name}"
        for kind in recipes.values()
        for section, model in sections_of(kind).items()
        for name in model.model_fields
    ]
    known = list(dict.fromkeys(known))
    known += [f"model.{name}" for kind in MODELS for name in model_fields(kind)]
    same_name = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    if same_name:
        return f" Did you mean {' or '.join(dict.fromkeys(same_name))}?"
    return did_you_mean(key, known) or " `kit explain` lists the sections."
