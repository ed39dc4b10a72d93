"""Revisions: a recipe that names data or models on the Hub is saved with the commits that were used, so that a run can
be repeated when they have moved on; and recipes that come from the Hub themselves."""

from pathlib import Path

from kit.data.formats.layout import file_extension
from kit.data.formats.reader import EXTENSIONS
from kit.errors import HubError, KitError
from kit.hub.download import download, resolve_commit
from kit.hub.names import COMMIT, RepoRef, looks_like_hub_id, parse_repo_id
from kit.recipe.base import Recipe
from kit.tasks.registry import load_recipe

NAMED = (("model", "pretrained"), ("tokenizer", "pretrained"))
"""Keys whose values are models on the Hub, or folders."""
PLACES = (*NAMED, ("data", "path"))
"""All keys whose values are places."""


def pinned(recipe: Recipe) -> Recipe:
    """The recipe with the commits of what it names on the Hub: `OWNER/NAME@COMMIT`, and `data.revision`.

    A data set whose commit the Hub does not tell stays as it is: whoever reads it says what is wrong.
    """
    for section, key in NAMED:
        name = parse_repo_id(getattr(getattr(recipe, section), key) or "")
        if name is not None and not name.is_pinned:
            commit = download(name).name
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


def with_pins_of(recipe: Recipe, saved: Recipe) -> Recipe:
    """The recipe with the commits that a run of it was started with, wherever it names the same things as they are now
    (without a revision)."""
    for section, key in NAMED:
        value, before = getattr(getattr(recipe, section), key), getattr(getattr(saved, section), key)
        if value and before and before.partition("@")[0] == value:
            recipe = recipe.with_values(section, **{key: before})
    if recipe.data.revision is None and recipe.data.path == saved.data.path:
        recipe = recipe.with_values("data", revision=saved.data.revision)
    return recipe


def recipe_of(name: RepoRef, overrides: list[str]) -> Recipe:
    """The recipe of a run that was shared on the Hub, changed by `overrides`.

    It may name data and models on the Hub, built-in data, and names in the working folder; a path that leads elsewhere
    on this machine is the user's to give.
    """
    file = download(name) / "recipe.yaml"
    if not file.is_file():
        raise HubError(f"{name} has no recipe.yaml: it was not shared with `kit push`, and cannot be repeated")
    recipe, given = load_recipe(file, overrides), {override.partition("=")[0] for override in overrides}
    for section, key in PLACES:
        value = getattr(getattr(recipe, section), key) or ""
        if {section, f"{section}.{key}"} & given:
            continue
        if Path(value).is_absolute() or value.startswith("~") or ".." in Path(value).parts or "://" in value:
            raise HubError(
                f"the recipe of {name} names a place on this machine, {section}.{key}: {value!r}. A recipe from the "
                f"Hub may not; if you mean it, say so: {section}.{key}={value}"
            )
    return recipe
