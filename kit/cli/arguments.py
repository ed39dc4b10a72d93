"""Arguments shared by several commands."""

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="Recipe keys to override.")]
RecipeArgument = Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe file, or name of a shipped recipe.")]
RunOrHub = Annotated[
    str, typer.Argument(metavar="RUN", help="Run folder, or Hub repository: OWNER/NAME or OWNER/NAME@REVISION.")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
