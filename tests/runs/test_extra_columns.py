"""Data with additional columns of any type, and any character in its text."""

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RunKit
from support.recipes import make_recipe

from kit import train

SEPARATORS = "\u2028 \u2029 \x85 \x0b \x0c \x1c \x1d \x1e"
"""What `str.splitlines` takes for the end of a line, and a file does not."""

MOMENT = datetime.datetime(2026, 5, 1, 12, 30, tzinfo=datetime.UTC)
EXTRA: dict[str, pa.Array] = {
    "when": pa.array([MOMENT] * 8, pa.timestamp("us", tz="UTC")),
    "nanoseconds": pa.array([1_000_000_001] * 8, pa.timestamp("ns")),
    "day": pa.array([MOMENT.date()] * 8, pa.date32()),
    "clock": pa.array([MOMENT.time()] * 8, pa.time64("us")),
    "span": pa.array([datetime.timedelta(days=1)] * 8, pa.duration("us")),
    "price": pa.array([Decimal("1.50")] * 8, pa.decimal128(6, 2)),
    "raw": pa.array([b"\x00\xff\x80"] * 8, pa.binary()),
    "several": pa.array([[MOMENT, None]] * 8, pa.list_(pa.timestamp("us", tz="UTC"))),
    "nested": pa.array([{"day": MOMENT.date(), "raw": b"\xff"}] * 8),
    "odd": pa.array([float("nan"), float("inf"), None, 1.5] * 2, pa.float32()),
    "note": pa.array([SEPARATORS] * 8, pa.string()),
}
WORDS = ["eins", "zwei", f"drei {SEPARATORS} vier", "fünf", "sechs", "sieben", "acht", "neun"]

ROWS: dict[str, tuple[dict[str, list[Any]], dict[str, Any]]] = {
    "translation": ({"de": WORDS, "en": WORDS}, {"source": "de", "target": "en"}),
    "causal_lm": ({"text": WORDS}, {"block_size": 8}),
    "masked_lm": ({"text": WORDS}, {"block_size": 8}),
    "instruction_tuning": ({"prompt": WORDS, "answer": WORDS}, {"template": "{prompt}\n"}),
    "classification": ({"text": WORDS, "label": ["a", "b"] * 4}, {}),
    "tagging": ({"tokens": [[word, "x"] for word in WORDS], "tags": [["O", "B-x"]] * 8}, {}),
    "question_answering": (
        {
            "id": [str(number) for number in range(8)], "question": WORDS, "context": WORDS,
            "answers": [{"text": [word[:4]], "answer_start": [0]} for word in WORDS],
        },
        {"max_length": 64, "max_question_length": 30, "doc_stride": 8},
    ),
    "dialogue": ({"turns": [[word, "ja", word] for word in WORDS]}, {}),
    "forecasting": ({"values": [[float(n) for n in range(24)]] * 8}, {"history": 6, "horizon": 4}),
}  # fmt: skip


def strictly(text: str) -> Any:
    """The value of JSON as the standard has it, without NaN and Infinity."""

    def rejected(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=rejected)


ALWAYS = ("translation", "classification", "forecasting")
"""One of each kind: texts, labels, series. `make soak` tries the same with the other tasks."""


@pytest.mark.parametrize(
    "task", [task if task in ALWAYS else pytest.param(task, marks=pytest.mark.soak) for task in ROWS]
)
def test_a_run_finishes_with_columns_of_any_type(task: str, tmp_path: Path, kit_here: RunKit) -> None:
    columns, section = ROWS[task]
    table = pa.table({name: pa.array(values) for name, values in columns.items()} | EXTRA)
    for split in ("train", "validation", "test"):
        pq.write_table(table, tmp_path / f"{split}.parquet")
    overrides = ["train.max_steps=1", "eval.steps=0", "eval.examples=2"]
    if task == "translation":
        overrides += ["eval.group_by=[when, nested]"]
    recipe = make_recipe(tmp_path, task, {"path": str(tmp_path), **section}, overrides)
    run = train(recipe, tmp_path / "run").folder
    for file in run.rglob("*.json*"):
        for line in [file.read_text()] if file.suffix == ".json" else file.read_text().split("\n")[:-1]:
            strictly(line)
    if (run / "predictions" / "test.jsonl").stat().st_size:
        done = kit_here("eval", run, "--predictions", "again.jsonl")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "again.jsonl").read_bytes() == (run / "predictions" / "test.jsonl").read_bytes()
    if task in ("classification", "tagging", "question_answering"):
        for output in ("out.jsonl", "out.csv"):
            done = kit_here("predict", run, tmp_path / "test.parquet", "--output", output)
            assert done.returncode == 0, done.stderr
        rows = [strictly(line) for line in (tmp_path / "out.jsonl").read_text().split("\n")[:-1]]
        assert len(rows) == 8
