"""Outputs that appear whole or not at all, and that two commands cannot write at once.

What is unfinished is written under a temporary name beside its destination, under a lock that the system releases when
the process dies. So the same command, started again after a kill, takes over what was left.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kit.errors import RunError
from kit.system.files import TEMPORARY_PREFIX, fsync, fsync_folder, recover_replaced

NAME_MAX = 255
"""Longest file name in bytes, on nearly all file systems."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextmanager
def atomic_write(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; it becomes `path` when the block ends without an exception.

    An existing file is replaced, keeping its permissions; without `overwrite`, FileExistsError is raised instead. After
    an exception the temporary file is removed and `path` is unchanged. What can be known before the block raises
    RunError at once: that `path` cannot be written, or that another process is writing it.
    """
    check_file(path)
    temporary = _temporary_path(path)
    with _claimed(temporary, path):
        replaced = False
        try:
            yield temporary
            if path.exists():
                shutil.copymode(path, temporary)
            fsync(temporary)
            if overwrite or not _link(temporary, path):
                os.replace(temporary, path)
                replaced = True
            fsync(path.parent)  # the rename itself is durable only once the folder is flushed
        except OSError as error:
            if error.filename in (None, str(temporary)) and error.errno in DISK_ERRORS:
                error.filename = str(path)
            raise
        finally:
            if not replaced:  # the name could be that of another process already
                temporary.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> bool:
    """Give a file a second name, which fails if there is a file, unlike a renaming; False where there are no links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        return False
    return True


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically, without translating line endings."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def check_file(path: Path) -> None:
    """Raise RunError if no file can be written to this path.

    Its folder may be missing, its name too long, or there is something else: a folder, or a device or a pipe, which a
    renaming would replace by a file.
    """
    parent = path.parent
    if os.path.isdir(path):
        raise RunError(f"cannot write {path}: it is a folder. Name a file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise RunError(f"cannot write {path}: it is a pipe or a device. Name a file")
    try:
        path.lstat()
    except FileNotFoundError:
        if not parent.is_dir():
            raise RunError(f"cannot write {path}: there is no folder {parent}. Create it, or name another") from None
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def new_folder(path: Path, option: str = "--output") -> Iterator[Path]:
    """Yield an empty folder of the same name to fill; it becomes `path` when the block ends without an exception.

    Raises RunError at once if `path` is anything but an empty folder, cannot be created, or is being created by another
    process; the message names the `option` by which the user chose it. Missing parents are created. What a killed
    process left is removed.
    """
    path = Path(os.path.abspath(path))
    _check_new(path, option)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create {path}: {error.strerror}") from None
    outer = _temporary_path(path)
    with _claimed(outer / ".lock", path):
        folder = outer / path.name
        try:
            _check_new(path, option)  # another process may have created it in the meantime
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            yield folder
            fsync_folder(folder)
            _move_folder(folder, path, option)
        finally:
            shutil.rmtree(outer, ignore_errors=True)


def _check_new(path: Path, option: str) -> None:
    """Raise RunError unless a folder can be created at `path`, or is there and empty."""
    try:
        entries = os.listdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        problem = "it is a file" if error.errno == errno.ENOTDIR and path.is_file() else error.strerror
        raise RunError(f"cannot create {path}: {problem}. Name a new folder with {option}") from None
    if entries:
        raise RunError(f"{path} is not empty: nothing was touched. Name a new folder with {option}")


def _move_folder(folder: Path, path: Path, option: str) -> None:
    """Rename a folder to a path where there is none, or an empty one."""
    try:
        os.rename(folder, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            _check_new(path, option)  # another process created it in the meantime
        if error.errno not in (errno.EXDEV, errno.EBUSY):
            raise
        for entry in folder.iterdir():  # an empty folder that is a mount point cannot be replaced
            shutil.move(entry, path / entry.name)
    fsync(path.parent)


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Yield an empty folder in the temporary directory, which is removed after the block.

    What killed processes left under the same prefix is removed first: a folder without a living owner.
    """
    _remove_abandoned(prefix)
    descriptor, lock = tempfile.mkstemp(".lock", prefix)
    folder = Path(lock).with_suffix("")
    try:
        _lock(descriptor)
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path(lock).unlink(missing_ok=True)
        os.close(descriptor)


def _remove_abandoned(prefix: str) -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*.lock"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # of another user, or gone
            continue
        try:
            if _lock(descriptor):
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left anywhere in a folder that only this process may change as a whole, and rename
    folders back that they were about to replace. Files that another process is writing stay."""
    for root, folders, files in os.walk(folder):
        recover_replaced(Path(root))
        for name in [name for name in folders if name.startswith(TEMPORARY_PREFIX)]:
            folders.remove(name)
            shutil.rmtree(Path(root, name), ignore_errors=True)
        for name in files:
            if name.startswith(TEMPORARY_PREFIX):
                _remove_unowned(Path(root, name))


def _remove_unowned(file: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if _lock(descriptor):
                file.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


# ---- temporary names and locks ---------------------------------------------------------------------------------------


def _temporary_path(path: Path) -> Path:
    """The path of the unfinished file or folder, always the same, so that what a kill leaves is found again."""
    name = f"{TEMPORARY_PREFIX}{path.name}"
    if len(os.fsencode(name)) > NAME_MAX:
        name = f"{TEMPORARY_PREFIX}{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]}"
    return path.with_name(name)


@contextmanager
def _claimed(lock: Path, path: Path) -> Iterator[None]:
    """Lock a file that belongs to the output `path`. Raises RunError if another process has it, or it cannot be made.

    The lock is on the file that is written or, for a folder, on one inside the temporary folder, and vanishes with it.
    """
    descriptor = None
    while descriptor is None:
        try:
            if lock.name == ".lock":
                lock.parent.mkdir(exist_ok=True)
            opened = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # a folder that its owner removes at this moment
            continue
        except OSError as error:
            error.filename = str(path)
            raise
        if not _lock(opened):
            os.close(opened)
            raise RunError(f"another process is writing {path}: wait for it, or name another output")
        # its former owner may have renamed or removed the file after it was opened here
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(opened), os.stat(lock)):
                descriptor = opened
        if descriptor is None:
            os.close(opened)
    try:
        os.ftruncate(descriptor, 0)  # what a killed process left is not part of the output
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise  # otherwise a file system without locks
    return True
