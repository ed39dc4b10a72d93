"""JSON that kit writes is valid, whatever the values are; and what it reads ends its lines where they end."""

import ast
import datetime
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch

from kit.errors import first_line
from kit.system.files import read_json
from kit.system.json_files import to_json, write_json

NAN, INF = float("nan"), float("inf")
WRITERS = ("write_text", "write", "writelines", "print")
STANDALONE = ("kit/models/", "kit/pipelines/", "kit/sharing/standalone.py", "kit/system/json_files.py")
"""What is uploaded or runs without kit has no other part of it; and the module that the others use."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": NAN, "b": [INF, -INF, 1.5], 3: (np.float32(NAN), np.float64(2.0))}, {"a": None, "b": [None, None, 1.5]}),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (torch.tensor([1.0, NAN]), [1.0, None]),
        (np.bool_(True), True),
        (datetime.date(2026, 5, 1), "2026-05-01"),
        (datetime.datetime(2026, 5, 1, 12, 30), "2026-05-01T12:30:00"),
        (datetime.timedelta(days=1, hours=2), "1 day, 2:00:00"),
        (Decimal("1.50"), "1.50"),
        (b"\x00\xff", "AP8="),
        ({datetime.date(2026, 5, 1): {NAN: 1}}, {"2026-05-01": {"nan": 1}}),
        ("a\u2028b\x85\x1c", "a\u2028b\x85\x1c"),
        ("half a pair: \ud800", "half a pair: \ud800"),
    ],
)
def test_every_value_is_json(value: object, expected: object, tmp_path: Path) -> None:
    read = json.loads(to_json(value), parse_constant=pytest.fail)
    if isinstance(expected, dict) and "a" in expected:
        assert read.pop("3") == [None, 2.0]
    assert read == expected
    assert "\n" not in to_json(value)
    write_json(tmp_path / "a.json", {"value": value})
    assert read_json(tmp_path / "a.json", "a value").keys() == {"value"}


def test_an_exception_is_one_line() -> None:
    assert first_line(ValueError("one\u2028two\r\nthree")) == "one\u2028two"
    assert first_line(KeyError()) == "KeyError"
    assert first_line(OSError(" \n")) == "OSError"


def test_no_module_splits_lines_or_writes_json_by_itself() -> None:
    """`str.splitlines` also splits at U+2028 and others, which are characters of a text; `json.dumps` writes NaN."""
    root = Path(__file__).parents[2]
    for path in root.glob("kit/**/*.py"):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{name}:{getattr(node, 'lineno', 0)}"
            assert getattr(node, "attr", None) != "splitlines", f'{where}: use split("\\n") or first_line'
            called = node.func if isinstance(node, ast.Call) else None
            writes = getattr(called, "attr", getattr(called, "id", None)) in WRITERS
            if writes and not name.startswith(STANDALONE):
                inner = [part for part in ast.walk(node) if ast.unparse(part) in ("json.dumps", "json.dump")]
                assert not inner, f"{where}: use to_json or write_json"
