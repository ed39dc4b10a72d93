"""Arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="Changes to the recipe.")]
RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped recipe.")
]
RunOrHub = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or OWNER/NAME[@REVISION] on the Hub.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
