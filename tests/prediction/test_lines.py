"""Lines of text files: read as they were written, truncated between characters, numbered in reports."""

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.prediction.issues import UNREADABLE_LINE, LineIssues
from kit.prediction.lines import MAX_LINE_BYTES, read_lines
from kit.prediction.text import Output, write_texts

SEPARATORS = "\u2028 \u2029 \x85 \x0b \x0c \x1c \x1d \x1e"
"""Characters at which `str.splitlines` splits and a file does not."""


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=12), max_size=9))
@settings(max_examples=60, deadline=None)
def test_lines_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "in.txt"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    issues = LineIssues()
    with read_lines(path, issues) as read_back:
        assert list(read_back) == [
            line.removeprefix("\ufeff") if not index else line for index, line in enumerate(lines)
        ]
    assert issues.messages() == []


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_truncation_never_splits_a_character(tmp_path_factory: pytest.TempPathFactory, text: str, shift: int) -> None:
    text = text.replace("\n", "-").replace("\r", "-")
    line = "a" * (MAX_LINE_BYTES - len(text.encode()) + shift - 1) + text + "bcdef"
    path = tmp_path_factory.mktemp("cut") / "in.txt"
    path.write_bytes(line.encode() + b"\nnext")
    issues = LineIssues()
    with read_lines(path, issues) as read_back:
        truncated, after = read_back
    assert after == "next"
    assert line.startswith(truncated)
    assert MAX_LINE_BYTES - 4 < len(truncated.encode()) <= MAX_LINE_BYTES
    assert len(issues.messages()) == (len(line.encode()) > MAX_LINE_BYTES)


def test_a_line_ends_only_at_a_newline(tmp_path: Path) -> None:
    """Of input and of output: the n-th line of one belongs to the n-th of the other."""
    lines = [f"a {SEPARATORS} b", "", SEPARATORS, "c"]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with read_lines(tmp_path / "lines.txt", LineIssues()) as read:
        assert list(read) == lines
    file = io.StringIO()
    outputs = [[Output(text, 0.0, True)] for text in (*lines, "d\r\ne\nf\rg\n")]
    assert write_texts(iter(outputs), file, details=False, as_json=False) == 5
    assert file.getvalue() == "".join(f"{line}\n" for line in (*lines, "d e f g"))


def test_only_the_first_few_issues_are_named() -> None:
    issues = LineIssues()
    for line in range(1000, 1012):
        issues.add(UNREADABLE_LINE, line)
    assert issues.messages()[0].startswith("12 lines held nothing")
    assert issues.messages()[0].endswith(": lines 1,000, 1,001, 1,002, 1,003, 1,004, …")
