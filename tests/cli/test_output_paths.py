"""Output paths: an unwritable one is reported before the work, and leftovers of a kill do not block."""

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from support.runs import weight_bytes

from kit.system.outputs import atomic_write

WRITERS: dict[str, tuple[list[str], str]] = {
    "generate": (["generate", "RUN", "lines.txt", "--output"], "out.txt"),
    "attention": (["generate", "RUN", "lines.txt", "--attention"], "out.png"),
    "predict": (["predict", "RUN", "lines.txt", "--output"], "out.csv"),
    "embed": (["embed", "RUN", "lines.txt", "--output"], "out.npy"),
    "eval": (["eval", "RUN", "--predictions"], "out.jsonl"),
    "plot": (["plot", "RUN", "--sentence", "1 May 2020", "--output"], "out.png"),
    "copy": (["copy", "dates_rnn"], "out.yaml"),
    "average": (["average", "RUN", "--last", "2", "--output"], "out"),
    "merge": (["merge", "RUN", "--output"], "out"),
}


@pytest.fixture
def started_work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The expensive work that was started; must stay empty."""
    from kit.pretrained.folder import ModelFolder
    from kit.runs import average, merge

    work: list[str] = []
    monkeypatch.setattr(ModelFolder, "open", lambda *arguments: work.append("a model is opened"))
    monkeypatch.setattr(average, "prepare", lambda *arguments: work.append("data is loaded"))
    monkeypatch.setattr(merge, "weights_dir", lambda *arguments: work.append("an adapter is opened"))
    return work


@pytest.mark.parametrize("command", WRITERS)
def test_unwritable_path_is_reported_before_the_work(
    command: str, trained: Path, tmp_path: Path, kit_here: RunKit, started_work: list[str]
) -> None:
    arguments, name = WRITERS[command]
    arguments = [str(trained) if argument == "RUN" else argument for argument in arguments]
    (tmp_path / "lines.txt").write_text("1 May 2020\n")
    (tmp_path / "file").touch()
    stem, ending = os.path.splitext(name)
    ways = {f"{stem * 100}{ending}": "too long", f"file/{name}": "kit: cannot "}
    if ending and command not in ("plot", "copy"):  # they create folders, or write into one
        ways |= {f"none/{name}": "there is no folder none"}
        (tmp_path / f"folder{ending}").mkdir()
        ways |= {f"folder{ending}": "is a folder"}
    for path, problem in ways.items():
        refused = kit_here(*arguments, path)
        assert refused.returncode == 2, refused.stderr
        assert problem in refused.stderr
        assert refused.stderr.count("kit: ") == 1
        assert "Traceback" not in refused.stderr
    assert started_work == []
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_figure_does_not_replace_a_file(
    trained: Path, tmp_path: Path, kit_here: RunKit, started_work: list[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    refused = kit_here("plot", trained, "--output", "file")
    assert refused.returncode == 2
    assert "file is a file: name a folder, or a file that ends in .png" in refused.stderr
    assert (tmp_path / "file").read_text() == "mine"
    assert started_work == []


def test_two_writers_of_one_file(trained: Path, tmp_path: Path, kit_here: RunKit) -> None:
    """The second writer is rejected and the first completes; leftovers of a killed writer are replaced."""
    (tmp_path / "lines.txt").write_text("1 May 2020\n2 May 2020\n")
    (tmp_path / ".tmp-out.txt").write_text("what a killed process left, longer than the output will be" * 9)
    output = tmp_path / "out.txt"
    command = ("generate", trained, "lines.txt", "--output", "out.txt")
    with atomic_write(output) as temporary:
        temporary.write_text("first")
        refused = kit_here(*command)
        assert refused.returncode == 2
        assert "another process is writing out.txt: wait for it, or name another output" in refused.stderr
    assert output.read_text() == "first"
    assert kit_here(*command).returncode == 0
    assert output.read_bytes().count(b"\n") == 2
    assert b"killed" not in output.read_bytes()


def test_leftovers_of_a_killed_command_do_not_block(trained: Path, tmp_path: Path, kit_here: RunKit) -> None:
    """`kit average` and `kit copy` replace them; the complete run has no trace of the temporary folder."""
    left = tmp_path / ".tmp-mean" / "mean"
    (left / "model").mkdir(parents=True)
    (left / "recipe.yaml").write_text("task: trans")
    (tmp_path / ".tmp-mine.yaml").write_text("task: trans")
    done = kit_here("average", trained, "--last", 2, "--output", "mean")
    assert done.returncode == 0, done.stderr
    assert "the run is in mean: model/" in done.stderr
    for path in (tmp_path / "mean").rglob("*"):
        assert path.is_dir() or b".tmp-" not in path.read_bytes(), path
    assert (tmp_path / "mean" / "README.md").read_text().count("# mean") == 1
    assert weight_bytes(tmp_path / "mean") != weight_bytes(trained)
    assert kit_here("copy", "dates_rnn", "mine.yaml").returncode == 0
    copied = (tmp_path / "mine.yaml").read_text()
    refused = kit_here("copy", "dates_rnn", "mine.yaml")
    assert refused.returncode == 2
    assert "mine.yaml already exists" in refused.stderr
    assert (tmp_path / "mine.yaml").read_text() == copied
    assert not list(tmp_path.glob(".tmp-*"))


def test_an_average_that_fails_leaves_nothing(
    trained: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kit.runs.finish.curve_figures", fails)
    failed = kit_here("average", trained, "--last", 2, "--output", "mean")
    assert failed.returncode == 2
    assert "No space left on device" in failed.stderr
    assert list(tmp_path.iterdir()) == []
