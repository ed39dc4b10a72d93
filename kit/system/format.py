"""The format number of everything that kit writes and reads again: run folders, checkpoints and models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.errors import RunError
from kit.system.files import read_json
from kit.system.version import __version__

FORMAT = 3
"""Increase it with every change that older code cannot read. Version 0.1 wrote checkpoints of format 1."""

FORMAT_STAMP: Mapping[str, Any] = {"kit_format": FORMAT, "kit_version": __version__}
"""Stored in run.json of a run, in state.json of a checkpoint, and in the config of a model."""

RUN_FILE = "run.json"


def check_format(path: Path | str, stored: Mapping[str, Any]) -> None:
    """Raise RunError unless the stored values have the format number that this version reads."""
    number, version = stored.get("kit_format"), stored.get("kit_version", "another version")
    if number != FORMAT:
        raise RunError(
            f"{path} was written by kit {version} in format {number}; kit {__version__} reads format {FORMAT}. Nothing "
            f"was touched: use kit {version}, or train into a new folder"
        )


def read_run_format(folder: Path) -> Mapping[str, Any]:
    """The values that a run folder stores in run.json or, in the layout on the Hub, in its model's config; empty if it
    has neither file."""
    files = (folder / name for name in (RUN_FILE, "config.json", "model_config.json"))
    return next((read_json(file, "the format of a run") for file in files if file.is_file()), {})
