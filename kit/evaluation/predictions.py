"""The predictions that runs write, as metrics compare them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.errors import RunError
from kit.evaluation.metrics.registry import Kind

Row = dict[str, Any]

REFERENCES: Mapping[Kind, tuple[str, ...]] = {
    "text": ("target", "answer"),
    "variety": ("target", "answer"),
    "labels": ("label",),
    "numbers": ("label", "target"),
    "tags": ("tags",),
    "answers": ("answers",),
}
"""Columns of the reference of a prediction by what a metric compares; the first that a file has counts."""

OUTPUTS = ("prediction", "score", "finished", "null_score", "scale", "scores")
"""Columns that a model computed: they differ between runs on the same examples."""


def read_predictions(file: Path) -> list[Row]:
    """The rows of a predictions file, each with `prediction`.

    Raises RunError, with the line, if the file is missing, empty or malformed.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunError(
            f"{file} does not exist. Is {file.parent.parent} the folder of a finished run, and {file.stem} one of its "
            "splits? `kit train` writes predictions at its end, and `kit eval RUN --predictions FILE` writes others."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{file} cannot be read: {error}") from None
    rows = []
    # Not splitlines(): texts may hold other line separators, such as U+2028, which JSON does not escape.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or "prediction" not in row or not _texts_are_texts(row):
            raise RunError(
                f"{file}, line {number} is not a prediction: expected a JSON object with a prediction and its "
                'reference, such as the texts "source", "target" and "prediction". Write the file again with '
                "`kit eval`."
            )
        rows.append(row)
    if not rows:
        raise RunError(
            f"{file} is empty: the run was evaluated without predictions. Write them with `kit eval "
            f"{file.parent.parent} --split {file.stem} 'eval.metrics=[NAME]' --predictions {file}`"
        )
    return rows


def _texts_are_texts(row: Row) -> bool:
    """Whether a row of generated text, which has a `source`, has nothing but text where text belongs."""
    if "source" not in row:
        return True
    target = row.get("target")
    texts = target if isinstance(target, list) and target else [target]
    return all(isinstance(text, str) for text in (row["source"], row["prediction"], *texts))


def reference_column(rows: Sequence[Row], kind: Kind) -> str | None:
    """The column with the references of a kind; None if the rows have none."""
    return next((name for name in REFERENCES.get(kind, ()) if name in rows[0] and _fits(rows[0], name, kind)), None)


def _fits(row: Row, column: str, kind: Kind) -> bool:
    """Whether the prediction of a row is what metrics of this kind compare."""
    prediction = row["prediction"]
    if kind in ("text", "variety"):
        return isinstance(prediction, str)
    if kind == "numbers":  # or the values (steps, values) of a forecast
        return isinstance(prediction, float | int) or (prediction != [] and isinstance(prediction[0], list))
    return kind != "labels" or not isinstance(row[column], float)


def pairs_of(rows: Sequence[Row], column: str, kind: Kind) -> tuple[list[Any], list[Any]]:
    """The predictions and references of the rows, as metrics of this kind take them."""
    predictions, references = [row["prediction"] for row in rows], [row[column] for row in rows]
    if kind != "answers":
        return predictions, references
    numbered = range(len(rows))
    return (
        [{"id": number, "prediction_text": text} for number, text in zip(numbered, predictions, strict=True)],
        [{"id": number, "answers": {"text": texts}} for number, texts in zip(numbered, references, strict=True)],
    )


def check_same_examples(
    rows: Sequence[Row], others: Sequence[Row], file: Path, other_file: Path, outputs: Collection[str]
) -> None:
    """Raise RunError, with the row, unless two files have rows for the same examples: all columns but `outputs`, which
    a model computed, are equal."""
    for number, (row, other) in enumerate(zip(rows, others, strict=False), start=1):
        for key in row:
            if key not in outputs and key in other and row[key] != other[key]:
                raise RunError(
                    f"The runs do not share their examples: row {number} has the {key} {_short(row[key])} "
                    f"in {file}, but {_short(other[key])} in {other_file}. Evaluate both on the same data."
                )
    if len(rows) != len(others):
        raise RunError(
            f"The runs do not share their examples: {file} has {len(rows)} rows, {other_file} has "
            f"{len(others)}, so row {min(len(rows), len(others)) + 1} is only in one of them. "
            f"Evaluate both on the same data."
        )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"
