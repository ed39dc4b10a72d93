"""Guarded reads of JSON: one message with path, line and reason for any damage to a file."""

from pathlib import Path

import pytest

from kit.errors import RunError
from kit.system.files import read_json, read_json_lines


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": ', "Expecting value"),
        (b'"\xff"', "utf-8"),
        (b"[1, 2]", "expected a JSON object, got '\\[1, 2\\]'"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_whatever_is_no_json_object_is_one_message(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(RunError, match=rf"a\.json cannot be read as the results: .*{reason}"):
        read_json(path, "the results")
    path.write_bytes(b'{"a": 1}\n' + content + b'\n{"a": 2}')
    with pytest.raises(RunError, match=rf"a\.json, line 2 cannot be read as a log: .*{reason}"):
        list(read_json_lines(path, "a log", growing=True))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"none\.json \(the results\) does not exist"):
        read_json(tmp_path / "none.json", "the results")


def test_only_newlines_separate_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one\u2028two\x85three"}\n{"text": "four"}\n', encoding="utf-8")
    assert list(read_json_lines(path, "rows")) == [(1, {"text": "one\u2028two\x85three"}), (2, {"text": "four"})]


def test_a_growing_file_may_end_in_a_partial_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"step": 1}\n{"text": "é'.encode()[:-1])
    assert list(read_json_lines(path, "a log", growing=True)) == [(1, {"step": 1})]
    with pytest.raises(RunError, match="line 2"):
        list(read_json_lines(path, "a log"))
