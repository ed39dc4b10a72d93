"""`kit push`: build the folder, prove that it works without kit, upload it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kit.errors import HubError
from kit.hub.upload import Destination, Published, Report, upload
from kit.sharing import proof
from kit.sharing.dataset import build_data_folder
from kit.sharing.folder import build_folder, find_source, list_files
from kit.system.outputs import new_folder, scratch_folder


def push(path: Path, to: Destination, overrides: Sequence[str] = (), report: Report = print) -> Published:
    """Publish a finished run, an adapter, or (as a dataset) a folder of data files.

    `overrides` change the metadata of the card, and `report` is called with notes for the user. Raises KitError; then
    the repository has not changed.
    """
    to.check_name()
    with empty_folder() as folder:
        build_and_check(path, folder, to, overrides, report)
        return upload(folder, to, f"{to.repo.partition('/')[2]}, by kit push", report)


def preview(
    path: Path, to: Destination, overrides: Sequence[str] = (), keep: Path | None = None, report: Report = print
) -> list[tuple[str, int]]:
    """Build and check what `push` would send, and send nothing; returns the files with their sizes, sorted by name.

    With `keep`, the files stay in this new folder. Otherwise nothing is left behind.
    """
    to.check_name()
    with empty_folder(keep) as folder:
        build_and_check(path, folder, to, overrides, report)
        return list_files(folder)


@contextmanager
def empty_folder(keep: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill, which becomes `keep` after the block, and is removed without it."""
    if keep is not None:
        with new_folder(keep, option="--keep") as folder:
            yield folder
        return
    with scratch_folder("kit-push-") as temporary:
        folder = temporary / "ready"  # not the scratch folder itself: files of the build lie beside it
        folder.mkdir()
        yield folder


def build_and_check(path: Path, folder: Path, to: Destination, overrides: Sequence[str], report: Report) -> None:
    """Fill an empty folder with what is to be published, and check it in a process without kit."""
    if to.kind == "dataset":
        if overrides:
            raise HubError(
                f"{overrides[0]} has no effect with --data, as data has no recipe: write it into a README.md"
            )
        notes = build_data_folder(path, folder, to.repo)
    else:
        source = find_source(path, overrides)
        notes = build_folder(source, folder, to.repo)
        notes.append(proof.check_run(folder, source.path, source.model))
    for note in notes:
        report(note)
