"""Files and folders that are there as a whole or not at all, whenever the process is killed or the disk is full."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"
"""Begins the names of what is not finished yet."""


def fsync(path: Path) -> None:
    """Have the operating system put a file, or the entries of a folder, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A place to write a file to, which takes the name `path` when the block ends well.

    A reader, or a crash, sees the old file or the new one, never a part of it; the file keeps its permissions.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    try:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        fsync(temporary)
        os.replace(temporary, path)
        fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, line ends as they are."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def replace_folder(temporary: Path, final: Path) -> None:
    """Put a folder that was written aside in its place, flushed; one that is there already gives way to it."""
    for file in temporary.rglob("*"):
        fsync(file)
    fsync(temporary)
    old = final.with_name(f"{TEMPORARY_PREFIX}old-{final.name}")
    shutil.rmtree(old, ignore_errors=True)  # left by a process that was killed here
    if final.exists():
        os.rename(final, old)
    os.rename(temporary, final)
    shutil.rmtree(old, ignore_errors=True)
    fsync(final.parent)
