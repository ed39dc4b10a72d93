"""The command that lists runs."""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kit.cli.arguments import JsonOption


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with run folders.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """List runs with their state, headline metric and age.

    The most recently changed run comes first. A run is running, finished, failed (with the reason) or unfinished:
    stopped, and ready to continue with --resume.
    """
    from kit.runs.listing import lines, list_runs
    from kit.system.json_files import to_json

    listed = list_runs(folder)
    if as_json:
        print(to_json([run.as_json() for run in listed], indent=1))
    elif listed:
        print("\n".join(lines(listed, datetime.now(UTC), shutil.get_terminal_size().columns)))
    else:
        print(f"there is no run in {folder}")
