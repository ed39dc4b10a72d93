"""Recipes to look at: the list of shipped ones, copies, explanations, and the schema for editors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from kit.errors import RecipeError, did_you_mean
from kit.recipe import model_settings as recipe_model
from kit.recipe.catalog import find_recipe, shipped_recipes
from kit.recipe.document import printable, read_text, read_yaml
from kit.recipe.model_settings import describe, model_fields, show
from kit.runs.measured import Figure
from kit.tasks.registry import RECIPES, SECTIONS, Recipe, Section, sections_of


@dataclass(frozen=True)
class RecipeRow:
    """A shipped recipe as `kit recipes` lists it."""

    name: str
    path: Path
    title: str
    task: str
    measured: dict[str, Figure]
    """Figures of a real run; empty if there are none."""
    reason: str
    """Why there are no figures; empty if there are some."""

    def headline(self) -> str:
        """The figures that one looks for first: metrics of the test split, and how long it took on what."""
        told = [
            f"{name} {value}"
            for name, value in self.measured.items()
            if name.startswith("test_") and name.removeprefix("test_") not in ("loss", "perplexity", "examples")
        ]
        if "minutes" in self.measured:
            told.append(f"{self.measured['minutes']} minutes")
        return ", ".join([*told, *(str(self.measured[key]) for key in ("hardware",) if key in self.measured)])


def list_recipes() -> list[RecipeRow]:
    """The shipped recipes, by name."""
    rows = []
    for name, path in shipped_recipes().items():
        text = read_text(path)
        value = read_yaml(text, str(path)).value
        recipe = value if isinstance(value, dict) else {}
        comments = (line.strip("# \t") for line in text.splitlines() if line.startswith("#"))
        measured = recipe.get("measured") or {"none": "not measured yet"}
        rows.append(
            RecipeRow(
                name=name,
                path=path,
                title=next((comment for comment in comments if comment), ""),
                task=str(recipe.get("task", "")),
                measured={} if "none" in measured else measured,
                reason=str(measured.get("none", "")),
            )
        )
    return rows


def copy_recipe(name: str, destination: str | Path) -> Path:
    """Copy a recipe to a file, or into a folder under its own name; what exists is never overwritten."""
    source = find_recipe(name)
    target = Path(destination)
    if target.is_dir():
        target = target / source.name
    try:
        with open(target, "xb") as file:
            file.write(source.read_bytes())
    except FileExistsError:
        raise RecipeError(f"{printable(target)} exists already: give another name, or remove it first.") from None
    except (OSError, ValueError) as error:
        raise RecipeError(f"{printable(target)} cannot be written: {error}") from None
    return target


def explain(key: str = "") -> str:
    """What a recipe key means and accepts; for a section, its keys; for nothing, the sections."""
    if not key:
        return "\n".join(["A recipe has these sections:", *_listing("", Recipe.model_fields)])
    if key == "task":
        lines = [f"  {task}  {_one_line(kind.model_fields['task'].description)}" for task, kind in RECIPES.items()]
        return "\n".join(["task", f"  expects: one of {', '.join(RECIPES)}", *lines])
    if key in Recipe.model_fields and key not in SECTIONS:
        return _explanation(key, Recipe.model_fields[key])
    if key in SECTIONS:
        lines = [f"{key}: {_one_line(SECTIONS[key].__doc__)}", *_listing(f"{key}.", SECTIONS[key].model_fields)]
        for tasks, own in _fields_of_tasks(key):
            lines += ["", f"with task: {' or '.join(tasks)}", *_listing(f"{key}.", own)]
        for model_type in recipe_model.CONFIG_CLASSES if key == "model" else ():
            lines += ["", f"with model.type: {model_type}", *_listing("model.", model_fields(model_type))]
        return "\n".join(lines)

    section, _, name = key.partition(".")
    if section in SECTIONS:
        told = [
            _explanation(f"{key} (task: {' or '.join(tasks)})", fields[name])
            for tasks, fields in _fields_of_tasks(section)
            if name in fields
        ]
        shared = SECTIONS[section].model_fields.get(name)
        if shared is not None:
            kinds = (sections_of(kind)[section].model_fields[name] for kind in RECIPES.values())
            if not all(_differs(field, shared) for field in kinds):
                told.insert(0, _explanation(key, shared))
        if told:
            return "\n\n".join(told)
    if section == "model":
        fields = {kind: model_fields(kind) for kind in recipe_model.CONFIG_CLASSES}
        found = [_explanation(f"{key} (model.type: {kind})", own[name]) for kind, own in fields.items() if name in own]
        if found:
            return "\n\n".join(found)
        if name in recipe_model.SET_BY_KIT:
            return f"{key}\n  Not given in a recipe: {recipe_model.SET_BY_KIT[name]}."
    raise RecipeError(f"{show(key)} is not a recipe key.{_nearest_key(key)}")


def _fields_of_tasks(section: str) -> list[tuple[list[str], dict[str, FieldInfo]]]:
    """The fields of a section that only some tasks have, or have in their own way, with the tasks that have them."""
    shared = SECTIONS[section].model_fields
    found: dict[type[Section], list[str]] = {}
    for task, kind in RECIPES.items():
        found.setdefault(sections_of(kind)[section], []).append(task)
    return [
        (tasks, fields)
        for own, tasks in found.items()
        if (fields := {name: field for name, field in own.model_fields.items() if _differs(field, shared.get(name))})
    ]


def _differs(field: FieldInfo, shared: FieldInfo | None) -> bool:
    if shared is None:
        return True
    return any(getattr(field, part) != getattr(shared, part) for part in ("annotation", "default", "description"))


def recipe_schema() -> dict[str, Any]:
    """The JSON schema of a recipe, with the settings of kit's model types, for editors to check and complete."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kit recipe",
        "type": "object",
        "properties": {"task": {"enum": [*RECIPES], "description": Recipe.model_fields["task"].description}},
        "required": ["task"],
        "allOf": [],
        "$defs": {},
    }
    for task, kind in RECIPES.items():
        own = kind.model_json_schema()
        schema["$defs"] |= own.pop("$defs")
        schema["allOf"].append({"if": {"properties": {"task": {"const": task}}, "required": ["task"]}, "then": own})
    model = schema["$defs"]["ModelSection"]
    model["properties"]["type"] = {**model["properties"]["type"], "examples": [*recipe_model.CONFIG_CLASSES]}
    model["allOf"] = []
    for model_type in recipe_model.CONFIG_CLASSES:
        settings = recipe_model.settings_model(recipe_model.config_class(model_type)).model_json_schema()
        schema["$defs"] |= settings.pop("$defs", {})
        model["allOf"].append(
            {
                "if": {"properties": {"type": {"const": model_type}}, "required": ["type"]},
                "then": {
                    "properties": {"type": {}, "pretrained": {}, **settings["properties"]},
                    "additionalProperties": False,
                },
            }
        )
    return schema


def _explanation(key: str, field: FieldInfo) -> str:
    default = "none, it must be given" if field.is_required() else _default(field)
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


def _nearest_key(key: str) -> str:
    """The keys that may have been meant, as a sentence."""
    known = [*Recipe.model_fields]
    known += [
        f"{section}.{name}"
        for kind in RECIPES.values()
        for section, model in sections_of(kind).items()
        for name in model.model_fields
    ]
    known = list(dict.fromkeys(known))
    known += [f"model.{name}" for kind in recipe_model.CONFIG_CLASSES for name in model_fields(kind)]
    same = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    if same:
        return f" Did you mean {' or '.join(dict.fromkeys(same))}?"
    return did_you_mean(key, known) or " `kit explain` lists the sections."
