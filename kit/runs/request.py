"""Resolve what a user asks to train: a recipe by name or file, the recipe of a run, or one from the Hub."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import RunError
from kit.hub.names import parse_repo_id
from kit.recipe.base import Recipe
from kit.recipe.catalog import recipe_exists
from kit.recipe.parse import Overrides, RecipeSource, as_arguments, is_loaded
from kit.runs.revisions import open_recipe, recipe_of
from kit.tasks.registry import load_recipe


@dataclass(frozen=True)
class Request:
    """A recipe to train."""

    recipe: Recipe
    output: Path | None
    """The default run folder; None for a recipe that is not a file."""


def find_request(
    source: RecipeSource,
    overrides: Overrides = (),
    rows: Mapping[str, Any] | None = None,
    report: Callable[[str], object] = lambda line: None,
) -> Request:
    """The recipe that `source` refers to, changed by `overrides`, and its run folder.

    `source` is a recipe file, the name of a shipped recipe, a run folder, a run on the Hub (OWNER/NAME[@REVISION]), the
    sections of a recipe, or a loaded one. With `rows`, the datasets of its splits, it names no other data. `report` is
    called with a note if the name is ambiguous. Raises KitError if there is no such recipe, or if it has mistakes.
    """
    if not isinstance(source, str | Path):
        if is_loaded(source) and not overrides and rows is None:
            return Request(source, None)
        return Request(load_recipe(source, overrides, rows=rows), None)
    folder, name = Path(source), str(source)
    if (folder / "recipe.yaml").is_file():
        if recipe_exists(name):
            report(f"{name}: using the run folder of this name, not the shipped recipe")
        return Request(open_recipe(folder / "recipe.yaml", overrides, rows), folder)
    is_local = folder.is_file() or recipe_exists(name) or name.endswith((".yaml", ".yml"))
    on_hub = None if is_local else parse_repo_id(name)
    if on_hub is not None and "/" in on_hub.repo:
        recipe = recipe_of(on_hub, as_arguments(overrides))
        recipe = recipe if rows is None else load_recipe(recipe, rows=rows)
        return Request(recipe, Path("runs") / on_hub.repo.rpartition("/")[2])
    return Request(open_recipe(source, overrides, rows), Path("runs") / folder.stem)


def output_of(request: Request, output: str | Path | None) -> Path:
    """The run folder: the one that the user names, or the one of the recipe. Raises RunError if there is neither."""
    if output is not None:
        return Path(output)
    if request.output is None:
        raise RunError('output: a recipe that is not a file needs a run folder, such as output="runs/mine"')
    return request.output
