"""`kit push`: build the folder, prove that it works without kit, send it."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from kit.hub.upload import Destination, Published, upload
from kit.sharing.dataset import build_data_folder
from kit.sharing.folder import build_folder, find_source, listing


def push(
    path: Path,
    to: Destination,
    overrides: Sequence[str] = (),
    dry_run: bool = False,
    tell: Callable[[str], None] = print,
) -> Published | Path:
    """Share a finished run, an adapter, or (as a dataset) a folder of data files.

    With `dry_run` nothing is sent: the folder that would be is left for the user to look into, and returned.
    """
    to.check_name()
    name = to.repo.partition("/")[2]
    place = Path(tempfile.mkdtemp(prefix="kit-push-"))
    folder = place / name
    folder.mkdir()
    try:
        for line in build_and_check(path, folder, to, overrides):
            tell(line)
        if dry_run:
            return folder
        done = upload(folder, to, f"{name}, by kit push", tell)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    shutil.rmtree(place, ignore_errors=True)
    return done


def build_and_check(path: Path, folder: Path, to: Destination, overrides: Sequence[str]) -> list[str]:
    """Fill the folder, and have a process without kit load it; returns what to tell about it."""
    if to.kind == "dataset":
        return build_data_folder(path, folder, to.repo)
    source = find_source(path, overrides)
    notes = build_folder(source, folder, to.repo)
    from kit.sharing.proof import check_run

    return [*notes, check_run(folder, source.path, source.model)]


def table(folder: Path) -> list[str]:
    """The files of a folder as lines, with their sizes in bytes."""
    files = listing(folder)
    width = max(len(f"{size:,}") for _, size in files)
    return [f"{size:>{width},}  {name}" for name, size in files]
