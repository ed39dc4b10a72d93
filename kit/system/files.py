"""Atomic writes, which survive a kill or a full disk at any moment, and guarded reads of JSON.

A file or folder is written under a temporary name, flushed to disk, and renamed. Renaming within a file system is
atomic, so readers and crashes see the old content or the new, never a part of it.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` when the block ends without an exception.

    An existing file keeps its permissions. After an exception the temporary file is removed and `path` is unchanged.
    """
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    try:
        yield temporary
        if path.exists():
            shutil.copymode(path, temporary)
        fsync(temporary)
        os.replace(temporary, path)
        fsync(path.parent)  # the rename itself is durable only once the folder is flushed
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically, without translating line endings."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def replace_folder(temporary: Path, final: Path) -> None:
    """Flush the folder `temporary` and rename it to `final`, replacing a folder that exists there."""
    for file in temporary.rglob("*"):
        fsync(file)
    fsync(temporary)
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
    for root, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            path = Path(root, name)
            if path.is_symlink() and not path.resolve().is_relative_to(home):
                return path
    return None


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file. Raises RunError if the file cannot be read or holds anything else.

    `what` describes the file in the message, such as "the results of a run".
    """
    try:
        return _json_object(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path} ({what}) does not exist") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read as {what}: {error}") from None


def read_json_lines(path: Path, what: str, *, growing: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """The line number and the JSON object of each line. Raises RunError, with the line, for anything else.

    A `growing` file may end in a partial line, because its writer is still running or was killed; it is skipped.
    """
    try:
        content = path.read_bytes()
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
