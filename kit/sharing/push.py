"""`kit push`: build the folder, prove that it works without kit, upload it."""

from collections.abc import Sequence
from pathlib import Path

from kit.errors import HubError
from kit.hub.upload import Destination, Published, Report, upload
from kit.sharing import proof
from kit.sharing.dataset import build_data_folder
from kit.sharing.folder import build_folder, find_source, list_files
from kit.system.outputs import keep_scratch, scratch_folder

PREFIX = "kit-push-"
"""Starts the names of folders to publish, in the temporary directory."""


def push(
    path: Path,
    to: Destination,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    report: Report = print,
) -> Published | Path:
    """Publish a finished run, an adapter, or (as a dataset) a folder of data files.

    With `dry_run`, nothing is uploaded: the folder is kept for inspection, and returned.
    """
    to.check_name()
    name = to.repo.partition("/")[2]
    with scratch_folder(PREFIX) as temporary:
        folder = temporary / name
        folder.mkdir()
        for note in build_and_check(path, folder, to, overrides):
            report(note)
        return keep_scratch(folder, PREFIX) if dry_run else upload(folder, to, f"{name}, by kit push", report)


def build_and_check(path: Path, folder: Path, to: Destination, overrides: Sequence[str]) -> list[str]:
    """Fill the folder and check it in a process without kit; returns notes for the user."""
    if to.kind == "dataset":
        if overrides:
            raise HubError(
                f"{overrides[0]} has no effect with --data, as data has no recipe: write it into a README.md"
            )
        return build_data_folder(path, folder, to.repo)
    source = find_source(path, overrides)
    notes = build_folder(source, folder, to.repo)
    return [*notes, proof.check_run(folder, source.path, source.model)]


def format_listing(folder: Path) -> list[str]:
    """The files of a folder as lines, with their sizes in bytes."""
    files = list_files(folder)
    width = max(len(f"{size:,}") for _, size in files)
    return [f"{size:>{width},}  {name}" for name, size in files]
