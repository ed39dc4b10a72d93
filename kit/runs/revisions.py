"""Revisions: the recipe of a run pins what it names on the Hub to commits, so that the run can be repeated later; and
recipes that are on the Hub themselves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.data.formats.layout import file_extension
from kit.data.formats.reader import EXTENSIONS
from kit.errors import HubError, KitError
from kit.hub.download import download, is_downloaded, resolve_commit, resolve_folder
from kit.hub.names import COMMIT, RepoRef, looks_like_hub_id, parse_repo_id
from kit.recipe.base import Recipe
from kit.recipe.document import read_text, read_yaml
from kit.recipe.parse import Overrides, as_arguments
from kit.tasks.registry import load_recipe

MODEL_KEYS = (("model", "pretrained"), ("tokenizer", "pretrained"))
"""Keys whose values are models on the Hub, or folders."""
PATH_KEYS = (*MODEL_KEYS, ("data", "path"))
"""All keys whose values can be paths."""


def pin_revisions(recipe: Recipe) -> Recipe:
    """The recipe with each model on the Hub as `OWNER/NAME@COMMIT`, and the commit of its dataset as `data.revision`.

    A dataset whose commit cannot be resolved is not pinned; loading it reports what is wrong.
    """
    for section, key in MODEL_KEYS:
        value = getattr(getattr(recipe, section), key) or ""
        name = parse_repo_id(value)
        if name is not None and not name.is_pinned:
            commit = resolve_folder(value).name
            if COMMIT.fullmatch(commit):
                recipe = recipe.with_values(section, **{key: str(RepoRef(name.repo, commit))})
    data = recipe.data
    path = Path(data.path).expanduser()
    on_hub = looks_like_hub_id(data.path) and file_extension(path) not in EXTENSIONS and not path.exists()
    if on_hub and not COMMIT.fullmatch(data.revision or ""):
        try:
            commit = resolve_commit(RepoRef(data.path, data.revision), f"data.path: {data.path}", "dataset")
        except KitError:
            return recipe
        recipe = recipe.with_values("data", revision=commit)
    return recipe


def reuse_revisions(recipe: Recipe, saved: Recipe) -> Recipe:
    """The recipe with the commits that a saved recipe has for the same models and data, where it names no revision."""
    for section, key in MODEL_KEYS:
        value, before = getattr(getattr(recipe, section), key), getattr(getattr(saved, section), key)
        if value and before and before.partition("@")[0] == value:
            recipe = recipe.with_values(section, **{key: before})
    if recipe.data.revision is None and recipe.data.path == saved.data.path:
        recipe = recipe.with_values("data", revision=saved.data.revision)
    return recipe


def recipe_of(name: RepoRef, overrides: list[str]) -> Recipe:
    """The recipe of a run that was shared on the Hub, changed by `overrides`.

    It may name data and models on the Hub, built-in data, and files in the working folder. Raises HubError for a path
    that leads elsewhere on this machine, unless `overrides` set it.
    """
    file = download(name) / "recipe.yaml"
    if not file.is_file():
        raise HubError(f"{name} has no recipe.yaml: it was not pushed with `kit push`, and cannot be repeated")
    check_foreign_paths(file, str(name), overrides)
    return load_recipe(file, overrides)


def open_recipe(source: str | Path, overrides: Overrides = (), rows: Mapping[str, Any] | None = None) -> Recipe:
    """`load_recipe` for a file or a name. A file that was downloaded from the Hub is treated as by `recipe_of`."""
    check_origin(Path(source), as_arguments(overrides))
    return load_recipe(source, overrides, rows=rows)


def check_origin(file: Path, overrides: Sequence[str] = ()) -> None:
    """`check_foreign_paths` for a recipe file in a folder that was downloaded from the Hub."""
    if file.is_file() and is_downloaded(file.parent):
        check_foreign_paths(file, str(file.parent), overrides)


def check_foreign_paths(file: Path, name: str, overrides: Sequence[str]) -> None:
    """Raise HubError if the recipe of a run on the Hub names a path on this machine, unless `overrides` set it.

    Looks at the text alone: loading the recipe would read the configuration of a model at such a path.
    """
    sections = read_yaml(read_text(file), str(file)).value
    overridden = {override.partition("=")[0] for override in overrides}
    for section, key in PATH_KEYS:
        part = sections.get(section) if isinstance(sections, dict) else None
        value = part.get(key) if isinstance(part, dict) else None
        if not isinstance(value, str) or {section, f"{section}.{key}"} & overridden:
            continue
        if Path(value).is_absolute() or value.startswith("~") or ".." in Path(value).parts or "://" in value:
            raise HubError(
                f"the recipe of {name} names a path on this machine, {section}.{key}: {value!r}. A recipe from the Hub "
                f"may not; to allow it, pass {section}.{key}={value}"
            )
