"""Outputs are complete or absent, also after a kill, and never mix two writers."""

import errno
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kit.errors import RunError
from kit.prediction.writing import open_output
from kit.system.outputs import atomic_write, new_folder, scratch_folder


def killed_inside(manager: Callable[[], AbstractContextManager[Path]], write: Callable[[Path], object]) -> None:
    """Run a process that is killed after it has written something within the block."""
    child = os.fork()
    if child == 0:
        with manager() as path:
            write(path)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def fill(folder: Path) -> None:
    (folder / "half.txt").write_text("half")


# ---- files -----------------------------------------------------------------------------------------------------------


def test_file_is_unchanged_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("before")
    path.chmod(0o640)
    killed_inside(lambda: atomic_write(path), lambda temporary: temporary.write_text("much longer than what follows"))
    assert path.read_text() == "before"
    assert (tmp_path / ".tmp-out.txt").stat().st_size
    with pytest.raises(ZeroDivisionError), atomic_write(path) as temporary:
        temporary.write_text(str(1 / 0))
    assert path.read_text() == "before"
    (tmp_path / ".tmp-out.txt").write_text("what another killed process left")
    with atomic_write(path) as temporary:
        assert temporary.read_text() == ""
        temporary.write_text("after")
    assert path.read_text() == "after"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with (
        pytest.raises(RunError, match=r"cannot write .*pipe: it is a pipe or a device. Name a file"),
        atomic_write(path),
    ):
        pytest.fail("it could be replaced")
    assert path.is_fifo()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with atomic_write(path) as temporary:
        temporary.write_text("first")
        with pytest.raises(RunError, match=r"another process is writing .*out\.txt: wait for it"), atomic_write(path):
            pytest.fail("two writers")
        assert temporary.read_text() == "first"
    assert path.read_text() == "first"


def test_writers_that_take_turns_never_mix(tmp_path: Path) -> None:
    """A rejected writer leaves the other's file alone, also at the moment of its rename."""
    path, done, refused = tmp_path / "out.txt", [], []

    def write(content: str) -> None:
        for _ in range(40):
            try:
                with atomic_write(path) as temporary:
                    temporary.write_text(content * 1000)
                done.append(content)
            except RunError:
                refused.append(content)
            assert len(set(path.read_text() if path.exists() else "")) <= 1

    errors: list[threading.ExceptHookArgs] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", errors.append)
        threads = [threading.Thread(target=write, args=(letter,)) for letter in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors
    assert done
    assert path.read_text() == path.read_text()[0] * 1000
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_may_have_the_longest_name(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127 + "x")
    with atomic_write(path) as temporary:
        temporary.write_text("content")
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_outputs_are_detected_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, problem in (
        (tmp_path, "it is a folder. Name a file"),
        (tmp_path / "none" / "out.txt", f"there is no folder {tmp_path / 'none'}. Create it, or name another"),
        (tmp_path / "file" / "out.txt", "Not a directory"),
        (tmp_path / ("x" * 256), "File name too long"),
    ):
        with pytest.raises(RunError, match="cannot write") as raised, atomic_write(path):
            pytest.fail("the work has begun")
        assert problem in str(raised.value)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_or_read_only_disk_is_reported_with_the_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The message names the user's path and not the temporary one, at the start and during the write."""
    path = tmp_path / "out.txt"

    def fails(*arguments: object) -> None:
        raise OSError(number, os.strerror(number), *map(str, arguments[:1]))

    with pytest.raises(OSError, match=os.strerror(number)) as raised, atomic_write(path):
        fails()
    assert raised.value.filename == str(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        for manager in (atomic_write(path), new_folder(path)):
            with pytest.raises(OSError, match=os.strerror(number)) as raised, manager:
                pytest.fail("the work has begun")
            assert raised.value.filename == str(path)
    assert not [entry for entry in tmp_path.rglob("*") if entry.is_file()]


def test_a_file_that_must_not_be_overwritten_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.txt"
    with pytest.raises(FileExistsError), atomic_write(path, overwrite=False):
        path.write_text("of somebody else")
    with monkeypatch.context() as patch:  # a file system without links
        patch.setattr(os, "link", failing_link)
        with pytest.raises(FileExistsError), atomic_write(path, overwrite=False):
            pass
        with atomic_write(tmp_path / "new.txt", overwrite=False) as temporary:
            temporary.write_text("new")
    assert path.read_text() == "of somebody else"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["new.txt", "out.txt"]


def failing_link(*arguments: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    with open_output(path) as file:
        file.write("text")
    reader.join()
    assert read == ["text"]
    assert path.is_fifo()


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("existing", [False, True])
def test_a_folder_appears_when_it_is_complete(tmp_path: Path, existing: bool) -> None:
    path = tmp_path / "parent" / "run"
    if existing:
        path.mkdir(parents=True)
    killed_inside(lambda: new_folder(path), fill)
    assert not path.exists() or not list(path.iterdir())
    with pytest.raises(ZeroDivisionError), new_folder(path) as folder:
        raise ZeroDivisionError
    with new_folder(path) as folder:
        assert folder.name == "run"  # cards have the name of the folder
        assert not list(folder.iterdir())
        (folder / "whole.txt").touch()
        with pytest.raises(RunError, match="another process is writing"), new_folder(path):
            pytest.fail("two writers")
    assert [file.name for file in path.iterdir()] == ["whole.txt"]
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_in_use_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (tmp_path / "file").touch()
    for path, problem in (
        (tmp_path / "full", "is not empty: nothing was touched"),
        (tmp_path / "file", "it is a file"),
        (tmp_path / "file" / "run", "Not a directory"),
        (tmp_path / ("x" * 256), "File name too long"),
    ):
        with pytest.raises(RunError, match=problem), new_folder(path):
            pytest.fail("the work has begun")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "full"]


def test_folder_filled_meanwhile_is_preserved(tmp_path: Path) -> None:
    path = tmp_path / "run"
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "mine.txt").touch()
    with pytest.raises(RunError, match="is not empty: nothing was touched"), new_folder(path):
        (tmp_path / "theirs").rename(path)
    assert [file.name for file in path.iterdir()] == ["mine.txt"]
    assert list(tmp_path.iterdir()) == [path]


# ---- scratch folders -------------------------------------------------------------------------------------------------


def test_scratch_folders_of_dead_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed_inside(lambda: scratch_folder("kit-push-"), fill)
    assert list(tmp_path.glob("kit-push-*/half.txt"))
    with scratch_folder("kit-other-"):
        assert list(tmp_path.glob("kit-push-*/half.txt"))
    with scratch_folder("kit-push-") as folder:
        fill(folder)
        with scratch_folder("kit-push-"):
            assert (folder / "half.txt").is_file()  # its owner lives
    assert not list(tmp_path.iterdir())
