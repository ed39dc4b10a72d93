"""Arguments shared by several commands."""

from pathlib import Path
from typing import Annotated

import typer


def recipe_names(incomplete: str) -> list[str]:
    """The shipped recipes whose names complete what was typed."""
    from kit.recipe.catalog import shipped_recipes

    names = (name.rpartition("/")[2] for name in shipped_recipes())
    return [name for name in names if name.startswith(incomplete)]


Overrides = Annotated[list[str] | None, typer.Argument(metavar="key=value", help="Recipe keys to override.")]
RecipeArgument = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="Recipe file, or name of a shipped recipe.", autocompletion=recipe_names),
]
RunOrHub = Annotated[
    str, typer.Argument(metavar="RUN", help="Run folder, or Hub repository: OWNER/NAME or OWNER/NAME@REVISION.")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="NAME",
        help="Use a checkpoint of the run, which need not be finished: best, last or step-N.",
    ),
]
