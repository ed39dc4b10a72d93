"""Copies of recipes: the same lines and comments, with the user's values, and without what belongs to the original."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from kit.errors import RecipeError, RunError
from kit.recipe.catalog import find_recipe
from kit.recipe.document import parse_override, printable, read_text, read_yaml, write_yaml
from kit.recipe.keys import Recipes
from kit.recipe.parse import DESCRIBED, GROUPS, parse_recipe
from kit.system.outputs import atomic_write

FIGURES = "measured"
"""The section with the results of the original."""

OF_THE_ORIGINAL = (".".join(GROUPS), *(f"hub.{name}" for name in DESCRIBED["data", "path"]))
"""Keys about the data and the model of the original: its groups of results, its license, languages and tags."""

OF_THE_DATA = ("data.languages", "data.sizes", "data.name", "data.revision")
"""Keys about the data of the original, which other data does not have."""

KEY = re.compile(r"  (?P<name>\w+):.*")


def copy_recipe(name: str, destination: str | Path, overrides: Sequence[str], recipes: Recipes) -> Path:
    """Write a recipe as the user's own to a file, or into a folder under its file name; never overwrites a file.

    With overrides, the copy has their values, and loses what other data does not have. Raises RecipeError if it would
    not be a valid recipe; nothing is written then.
    """
    source = find_recipe(name)
    target = Path(destination)
    if target.is_dir():
        target = target / source.name
    recipe = parse_recipe(source, overrides, recipes)
    text = "".join(f"{line}\n" for line in _copied(source, target, overrides, set(recipe.dropped)))
    try:
        with atomic_write(target, overwrite=False) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
    except RunError as error:
        raise RecipeError(str(error)) from None
    except FileExistsError:
        raise RecipeError(f"{printable(target)} already exists: choose another name, or remove it first.") from None
    except (OSError, ValueError) as error:
        raise RecipeError(f"{printable(target)} cannot be written: {error}") from None
    return target


def _copied(source: Path, target: Path, overrides: Sequence[str], dropped: Set[str]) -> Iterator[str]:
    """The lines of the copy."""
    text = read_text(source)
    original = read_yaml(text, printable(source)).value
    values = _values(overrides)
    removed = {*OF_THE_ORIGINAL, *dropped, *(OF_THE_DATA if "path" in values.get("data", {}) else ())}
    yield f"# A copy of the recipe {source.stem}."
    yield f"#   kit train {printable(target)}"
    for section, heading, lines in _sections(text):
        changes = values.pop(section, {})
        if section == FIGURES:
            yield from _section(section, changes) if changes else []
        elif not changes and not any(key.startswith(f"{section}.") for key in removed):
            yield from [heading, *lines]
        elif "" in changes or not all(map(KEY.fullmatch, lines)) or not re.fullmatch(r"\w+:( +#.*)?", heading):
            remaining = {
                name: value
                for name, value in (original.get(section) or {}).items()
                if f"{section}.{name}" not in removed
            }
            if changes or remaining:
                yield from _section(section, changes if "" in changes else remaining | changes)
        else:
            edited = list(_edited(section, lines, changes, removed))
            yield from [heading, *edited] if edited else []
    for section, changes in values.items():
        yield from _section(section, changes)


def _values(overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The values of `key=value` arguments by section and name; the name of a whole section is empty."""
    values: dict[str, dict[str, Any]] = {}
    for argument in overrides:
        key, value = parse_override(argument)
        section, _, name = key.partition(".")
        if "." in name:
            raise RecipeError(f"{key}: a copy takes the value of {section}.{name.partition('.')[0]} as a whole.")
        values.setdefault(section, {})[name] = value
    return values


def _edited(section: str, lines: Sequence[str], changes: dict[str, Any], removed: Set[str]) -> Iterator[str]:
    """The lines of a section with the user's values in their places, and additional values below."""
    changes = dict(changes)
    for line in lines:
        match = KEY.fullmatch(line)
        assert match is not None
        name = match["name"]
        if name in changes:
            # without the comment, which gives the reason for the original value
            yield f"  {name}: {_inline(changes.pop(name))}"
        elif f"{section}.{name}" not in removed:
            yield line
    yield from (f"  {name}: {_inline(value)}" for name, value in changes.items())


def _section(name: str, values: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a section with these values; a value without a name is that of the whole section."""
    if "" in values:
        yield f"{name}: {_inline(values[''])}"
        return
    yield f"{name}:"
    yield from (f"  {key}: {_inline(value)}" for key, value in values.items())


def _sections(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """The sections of a recipe: name, first line, and the lines below it. The comment at the top is left out."""
    name, heading, lines = "", "", list[str]()
    for line in text.rstrip("\n").split("\n"):
        if match := re.match(r"(\w+):", line):
            if name:
                yield name, heading, lines
            name, heading, lines = match[1], line, []
        elif name:
            lines.append(line)
    yield name, heading, lines


def _inline(value: object) -> str:
    """A value on one line. JSON is YAML, too."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return write_yaml({"": value}).partition(":")[2].strip()
