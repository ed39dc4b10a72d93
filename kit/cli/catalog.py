"""The commands about recipes and this machine: recipes, copy, explain, doctor."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.errors import KitError

if TYPE_CHECKING:
    from kit.diagnostics.doctor import Finding


def recipes(
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of recipes, for editors.")] = False,
) -> None:
    """List the shipped recipes with the figures of their real runs."""
    from kit.recipe.catalog import list_recipes
    from kit.recipe.schema import recipe_schema
    from kit.tasks.registry import recipe_classes

    if schema:
        print(json.dumps(recipe_schema(recipe_classes()), indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "what", "measured", box=None, pad_edge=False)
    for row in list_recipes():
        table.add_row(row.name, row.title, row.headline() or row.reason)
    Console().print(table)


def copy(
    name: Annotated[str, typer.Argument(help="A shipped recipe.")],
    destination: Annotated[Path, typer.Argument(help="File or folder to copy it to.")] = Path(),
) -> None:
    """Make a shipped recipe yours."""
    from kit.recipe.catalog import copy_recipe

    print(copy_recipe(name, destination))


def explain(key: Annotated[str, typer.Argument(help="A key such as train.warmup_steps, or a section.")] = "") -> None:
    """Explain a key of recipes."""
    from kit.recipe.explain import explain as explain_key
    from kit.tasks.registry import recipe_classes

    print(explain_key(key, recipe_classes()))


def doctor(
    self_check: Annotated[bool, typer.Option(help="Train a tiny model for up to a minute.")] = True,
    hub: Annotated[bool, typer.Option("--hub", help="Try to reach the Hub too.")] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Train in one process, in several and sharded, and compare.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=2, help="Number of them for --train [default: the GPUs, or 2]")
    ] = None,
) -> None:
    """Check versions, devices and what is missing, and that training works here."""
    from rich.console import Console

    from kit.diagnostics.doctor import Check, any_problem, diagnose, render

    if processes is not None and not train:
        raise KitError("--processes has no meaning without --train")
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
