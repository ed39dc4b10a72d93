"""Lines from a pipe are predicted in order whenever it pauses."""

import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kit.prediction.engine import Encoded, Predictor
from kit.prediction.issues import LineIssues
from kit.prediction.lines import MAX_LINE_BYTES, read_lines


class Shouter(Predictor[str, str, str]):
    """Predicts the text in capitals, and records the sizes of batches."""

    empty = ""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def encode(self, items: list[str]) -> list[Encoded[str]]:
        return [Encoded([item]) for item in items]

    def lengths(self, units: list[str]) -> np.ndarray:
        return np.ones(len(units), dtype=np.int64)

    def predict(self, units: list[str]) -> list[str]:
        self.sizes.append(len(units))
        return [unit.upper() for unit in units]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input is a pipe; the end to write to."""
    read, write = os.pipe()
    with os.fdopen(read, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield write


def test_lines_are_predicted_when_the_input_pauses(pipe: int) -> None:
    shouter, issues = Shouter(), LineIssues()
    with read_lines(None, issues) as lines:
        outputs = shouter.stream(lines, issues)
        os.write(pipe, b"a\nb\nhalf a ")
        assert [next(outputs), next(outputs)] == ["A", "B"]  # would wait for ever without a pause
        assert shouter.sizes == [2]
        os.write(pipe, "line\n\n\u00e9".encode()[:-1])
        assert [next(outputs), next(outputs)] == ["HALF A LINE", ""]
        os.write(pipe, "\u00e9".encode()[1:])
        os.close(pipe)
        assert list(outputs) == ["\u00c9"]
    assert shouter.sizes == [2, 2, 1]
    assert issues.messages() == []


def test_available_lines_form_one_portion(pipe: int) -> None:
    os.write(pipe, b"".join(b"line %d\n" % number for number in range(2000)))
    os.close(pipe)
    shouter, issues = Shouter(), LineIssues()
    with read_lines(None, issues) as lines:
        assert list(shouter.stream(lines, issues)) == [f"LINE {number}" for number in range(2000)]
    assert shouter.sizes == [1024, 976]


def test_other_input_has_no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n" + b"x" * (MAX_LINE_BYTES + 5) + b"\nb\n")))
    issues: Any = LineIssues()
    with read_lines(None, issues) as lines:
        assert [len(str(line)) for line in lines] == [1, MAX_LINE_BYTES, 1]
    assert len(issues.messages()) == 1
