"""The commands for recipes and for this machine: recipes, copy, explain, doctor."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli.arguments import JsonOption, Overrides, recipe_names
from kit.errors import KitError, did_you_mean

if TYPE_CHECKING:
    from kit.diagnostics.doctor import Finding
    from kit.recipe.catalog import RecipeRow


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Recipe to show with all its results.", autocompletion=recipe_names),
    ] = None,
    task: Annotated[str | None, typer.Option(help="List the recipes of this task.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="List the recipes that need no download.")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="List the recipes whose measured run took at most this many minutes.")
    ] = None,
    as_json: JsonOption = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON schema of recipes, for validation and completion in editors."),
    ] = False,
) -> None:
    """List the shipped recipes, or show everything about one of them."""
    from kit.recipe.catalog import list_recipes, recipe_row
    from kit.recipe.schema import recipe_schema
    from kit.system.json_files import to_json
    from kit.tasks.registry import TASKS, recipe_classes

    filtered = task is not None or offline or minutes is not None
    if (schema and (name or filtered or as_json)) or (name and filtered):
        raise KitError("A name, --schema and the filters --task, --offline and --minutes exclude each other: use one")
    if schema:
        print(to_json(recipe_schema(recipe_classes()), indent=1))
        return
    if task is not None and task not in TASKS:
        raise KitError(f'--task "{task}": expected one of {", ".join(TASKS)}.{did_you_mean(task, TASKS)}')
    rows = [
        row
        for row in ([recipe_row(name)] if name else list_recipes())
        if task in (None, row.task)
        and not (offline and row.needs_download)
        and (minutes is None or (row.minutes is not None and row.minutes <= minutes))
    ]
    if as_json:
        print(to_json([row.as_json() for row in rows], indent=1))
    elif name:
        print(rows[0].details())
    else:
        print("\n".join(_list_recipes(rows, shutil.get_terminal_size().columns)))


def _list_recipes(rows: "list[RecipeRow]", width: int) -> Iterator[str]:
    """A line for each recipe, truncated to the width of the terminal."""
    lines = [("recipe", "min", "result", "what")]
    for row in rows:
        minutes = "" if row.minutes is None else f"{max(1, round(row.minutes))}"
        lines.append((row.short_name, minutes, row.headline(), row.title))
    name, result = (max(len(line[column]) for line in lines) for column in (0, 2))
    for line in lines:
        text = f"{line[0]:<{name}}  {line[1]:>3}  {line[2]:<{result}}  {line[3]}"
        yield text if len(text) <= width else text[: width - 1].rpartition(" ")[0].rstrip(" ,:(") + " …"
    yield "kit recipes NAME shows everything about a recipe, kit train NAME runs it"


def copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a shipped recipe.", autocompletion=recipe_names)],
    destination: Annotated[Path, typer.Argument(metavar="FILE", help="File or folder to copy the recipe to.")] = Path(),
    overrides: Overrides = None,
) -> None:
    """Copy a shipped recipe to make it yours.

    The copy has your values, and nothing that belongs to the data and the runs of the original.
    """
    from kit.recipe.copying import copy_recipe
    from kit.tasks.registry import recipe_classes

    print(copy_recipe(name, destination, overrides or [], recipe_classes()))


def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Recipe key, such as train.warmup_steps, or section.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Explain a recipe key or section."""
    from kit.recipe.explain import explain as explain_key
    from kit.recipe.explain import explanations
    from kit.system.json_files import to_json
    from kit.tasks.registry import recipe_classes

    if as_json:
        print(to_json([vars(entry) for entry in explanations(key, recipe_classes())], indent=1))
    else:
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
    as_json: JsonOption = False,
) -> None:
    """Check versions, devices and packages, and that training works."""
    from rich.console import Console

    from kit.diagnostics.doctor import Check, any_problem, diagnose, render
    from kit.system.json_files import to_json

    if processes is not None and not train:
        raise KitError("--processes has no effect without --train")
    more: dict[str, Check] = {}
    if self_check:
        more["self-check"] = _self_check
    if train:
        more["train"] = lambda: _train_check(processes)
    findings = diagnose(hub, more)
    if as_json:
        print(to_json([vars(finding) for finding in findings], indent=1))
    else:
        Console().print(render(findings))
    if any_problem(findings):
        raise typer.Exit(1)


def _self_check() -> "Iterable[Finding]":
    from kit.diagnostics.self_check import self_check_findings

    return self_check_findings()


def _train_check(processes: int | None) -> "Iterable[Finding]":
    from kit.diagnostics.train_check import train_findings

    return train_findings(processes)
