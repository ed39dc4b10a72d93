"""Standard streams that are closed: one message, no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunKit


@pytest.mark.parametrize(
    ("stream", "arguments", "expected"),
    [
        ("stdin", ["generate", "RUN"], "kit: standard input is closed: name a file"),
        ("stdout", ["generate", "RUN", "in.txt"], "kit: standard output is closed: name a file with --output"),
    ],
)
def test_closed_streams(
    trained: Path,
    tmp_path: Path,
    kit_here: RunKit,
    monkeypatch: pytest.MonkeyPatch,
    stream: str,
    arguments: list[str],
    expected: str,
) -> None:
    """After `<&-` and `>&-`, Python has None for the stream."""
    (tmp_path / "in.txt").write_text("3 maj 1984\n", encoding="utf-8")
    monkeypatch.setattr(sys, stream, None)
    done = kit_here(*(argument.replace("RUN", str(trained)) for argument in arguments))
    assert done.returncode == 2
    assert expected in done.stderr


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_other_commands_do_not_need_streams(kit_here: RunKit, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(sys, stream, None)
    done = kit_here("explain", "train.seed")
    assert (done.returncode, done.stderr) == (0, "")


def test_characters_that_standard_output_lacks_are_escaped(tmp_path: Path) -> None:
    """An undecodable byte of a path is a surrogate in Python, and no encoding has it."""
    command = [sys.executable, "-m", "kit", "copy", "dates_rnn", b"\xc3\xff.yaml"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\\udcc3\\udcff.yaml\n", b"")
