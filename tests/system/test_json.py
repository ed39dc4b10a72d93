"""JSON that kit writes is valid for any values."""

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
