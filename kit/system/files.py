"""Folders that are replaced as a whole, and guarded reads of files from elsewhere.

A folder is written under a temporary name, flushed to disk, and renamed. Renaming within a file system is atomic, so
readers and crashes see the old content or the new, never a part of it.
"""

import errno
import hashlib
import io
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.errors import RunError

TEMPORARY_PREFIX = ".tmp-"
"""Starts the names of unfinished files and folders."""

REPLACED_PREFIX = f"{TEMPORARY_PREFIX}old-"
"""Starts the names of folders that are being replaced."""


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Flush a folder and everything in it to disk."""
    for file in folder.rglob("*"):
        fsync(file)
    fsync(folder)


def check_regular(path: Path) -> None:
    """Raise OSError for a named pipe, whose other end may never open, for a device, which may never end, and for a name
    with a null byte, where Python raises ValueError."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "the name contains a null byte", str(path))
    if not stat.S_ISDIR(mode := path.stat().st_mode) and not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", str(path))


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading, if `check_regular` raises no OSError."""
    check_regular(path)
    return path.open("rb")


def read_bytes(path: Path) -> bytes:
    """The content of a file, opened by `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_folder(temporary: Path, final: Path) -> None:
    """Flush the folder `temporary` and rename it to `final`, replacing a folder that exists there."""
    fsync_folder(temporary)
    old = final.with_name(f"{REPLACED_PREFIX}{final.name}")
    shutil.rmtree(old, ignore_errors=True)  # left over if an earlier process was killed between the two renames
    if final.exists():
        os.rename(final, old)  # no system call replaces a folder that has files in it
    os.rename(temporary, final)
    shutil.rmtree(old, ignore_errors=True)
    fsync(final.parent)


def recover_replaced(parent: Path) -> None:
    """Rename folders back that a process was about to replace when it was killed, between the two renames."""
    for old in parent.glob(f"{REPLACED_PREFIX}*"):
        final = parent / old.name.removeprefix(REPLACED_PREFIX)
        if not final.exists():
            os.rename(old, final)


def outside_link(folder: Path) -> Path | None:
    """The first symbolic link in a folder, at any depth, that leads out of it. The folder itself may be one."""
    home = folder.resolve()
    # realpath() rather than resolve(), which raises for a link to itself
    return next(
        (p for p in _entries(folder) if p.is_symlink() and not Path(os.path.realpath(p)).is_relative_to(home)), None
    )


def irregular_entry(folder: Path) -> str | None:
    """A description of the first entry of a folder, at any depth, that is neither a file nor a folder, such as a named
    pipe or a link to nothing; None if there is none."""
    for path in _entries(folder):
        try:
            mode = path.stat().st_mode
        except OSError as error:
            reason = "is a link to nothing" if path.is_symlink() else f"cannot be read: {error.strerror}"
            return f"{path} {reason}"
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return f"{path} is neither a file nor a folder"
    return None


def _entries(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in sorted([*folders, *files]))


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file. Raises RunError if the file cannot be read or holds anything else.

    `what` describes the file in the message, such as "the results of a run".
    """
    try:
        return _json_object(read_bytes(path))
    except FileNotFoundError:
        raise RunError(f"{path} ({what}) does not exist") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read as {what}: {error}") from None


def read_json_lines(path: Path, what: str, *, growing: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """The line number and the JSON object of each line. Raises RunError, with the line, for anything else.

    A `growing` file may end in a partial line, because its writer is still running or was killed; it is skipped.
    """
    try:
        content = read_bytes(path)
    except OSError as error:
        raise RunError(f"{path} cannot be read as {what}: {error}") from None
    # Not splitlines(): strings may contain other line separators, such as U+2028, which JSON does not escape.
    lines = content.rstrip().split(b"\n") if content.strip() else []
    for number, line in enumerate(lines, start=1):
        try:
            entry = _json_object(line)
        except ValueError as error:
            if growing and number == len(lines):
                return
            raise RunError(f"{path}, line {number} cannot be read as {what}: {error}") from None
        yield number, entry


def _json_object(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`. Raises ValueError for bytes that are not UTF-8, not JSON, or not a JSON object."""
    try:
        value = json.loads(content.decode("utf-8"))
    except RecursionError as error:  # brackets nested thousands deep
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {str(value)[:40]!r}")
    return value
