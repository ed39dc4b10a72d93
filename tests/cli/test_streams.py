"""Standard streams that are closed: one message, no traceback."""

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
