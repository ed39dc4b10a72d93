"""The commands for recipes and for this machine: recipes, copy, explain, doctor."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.errors import KitError

if TYPE_CHECKING:
    from kit.diagnostics.doctor import Finding


def recipes(
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON schema of recipes, for validation and completion in editors."),
    ] = False,
) -> None:
    """List the shipped recipes with their measured results."""
    from kit.recipe.catalog import list_recipes
    from kit.recipe.schema import recipe_schema
    from kit.tasks.registry import recipe_classes

    if schema:
        print(json.dumps(recipe_schema(recipe_classes()), indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "description", "results", box=None, pad_edge=False)
    for row in list_recipes():
        table.add_row(row.name, row.title, row.headline() or row.reason)
    Console().print(table)


def copy(
    name: Annotated[str, typer.Argument(help="Name of a shipped recipe.")],
    destination: Annotated[Path, typer.Argument(help="File or folder to copy the recipe to.")] = Path(),
) -> None:
    """Copy a shipped recipe, to edit it."""
    from kit.recipe.catalog import copy_recipe

    print(copy_recipe(name, destination))


def explain(
    key: Annotated[str, typer.Argument(help="Recipe key, such as train.warmup_steps, or section.")] = "",
) -> None:
    """Explain a recipe key or section."""
    from kit.recipe.explain import explain as explain_key
    from kit.tasks.registry import recipe_classes

    print(explain_key(key, recipe_classes()))


def doctor(
    self_check: Annotated[bool, typer.Option(help="Train a tiny model, for up to a minute.")] = True,
    hub: Annotated[bool, typer.Option("--hub", help="Also check the connection to the Hub.")] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Train in one process, in several processes and sharded, and compare.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=2, help="Number of processes for --train (default: number of GPUs, or 2).")
    ] = None,
) -> None:
    """Check versions, devices and missing packages, and that training works on this machine."""
    from rich.console import Console

    from kit.diagnostics.doctor import Check, any_problem, diagnose, render

    if processes is not None and not train:
        raise KitError("--processes has no effect without --train")
    more: dict[str, Check] = {}
    if self_check:
        more["self-check"] = _self_check
    if train:
        more["train"] = lambda: _train_check(processes)
    findings = diagnose(hub, more)
    Console().print(render(findings))
    if any_problem(findings):
        raise typer.Exit(1)


def _self_check() -> "Iterable[Finding]":
    from kit.diagnostics.self_check import self_check_findings

    return self_check_findings()


def _train_check(processes: int | None) -> "Iterable[Finding]":
    from kit.diagnostics.train_check import train_findings

    return train_findings(processes)
