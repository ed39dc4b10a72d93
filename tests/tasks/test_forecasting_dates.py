"""Dates of series: reading them, their steps and how they continue, their calendar, and where they are wrong."""

import json
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RunKit
from support.recipes import make_recipe

from kit import load_recipe
from kit.errors import DataError, RecipeError
from kit.recipe.base import Recipe
from kit.tasks.forecasting.dates import Step, calendar, complete_cycles, date_texts, read_dates
from kit.tasks.registry import create_task

HOURS = [datetime(2024, 2, 28) + timedelta(hours=hour) for hour in range(60)]


def dated(folder: Path, dates: list[Any], form: str = "csv", whole: bool = False, **data: Any) -> Recipe:
    """A recipe on one series with these dates, in a file of some form; `whole` has it in one row."""
    folder.mkdir(parents=True, exist_ok=True)
    values = np.sin(np.arange(len(dates))).tolist()
    path = folder / f"series.{form}"
    columns = {"when": [dates], "x": [values]} if whole else {"when": dates, "x": values}
    if form == "parquet":
        pq.write_table(pa.table(columns), path)
    elif form == "csv":
        path.write_text("\n".join(["when,x", *(f"{when},{x}" for when, x in zip(dates, values, strict=True))]) + "\n")
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out = {"validation_steps": 8, "test_steps": 8}
    section = {"path": str(path), "targets": ["x"], "date": "when", "history": 4, "horizon": 2, **held_out, **data}
    return make_recipe(folder, "forecasting", section)


def first_dates(recipe: Recipe) -> list[str] | None:
    """The dates that the first window of validation predicts."""
    task = create_task(recipe)
    splits = task.load_splits()
    state = task.fit(splits, task.build_tokenizers(splits))
    examples: Any = task.encode(splits.datasets["validation"], state, "validation").examples
    return examples.dates(0)


@pytest.mark.parametrize(
    ("form", "whole", "cells"),
    [
        ("csv", False, [str(hour) for hour in HOURS]),
        ("jsonl", False, [hour.isoformat() for hour in HOURS]),
        ("jsonl", True, [hour.isoformat(timespec="minutes") for hour in HOURS]),
        ("parquet", False, HOURS),
        ("parquet", True, HOURS),
    ],
)
def test_dates_are_equal_in_every_file_format(form: str, whole: bool, cells: list[Any], tmp_path: Path) -> None:
    expected = [hour.isoformat() for hour in HOURS[44:46]]
    assert first_dates(dated(tmp_path, cells, form, whole)) == expected


def test_times_with_an_offset_are_in_utc(tmp_path: Path) -> None:
    east = timezone(timedelta(hours=2))
    cells = [hour.replace(tzinfo=east).isoformat() for hour in HOURS]
    assert first_dates(dated(tmp_path, cells)) == ["2024-02-29T18:00:00Z", "2024-02-29T19:00:00Z"]
    assert first_dates(dated(tmp_path / "days", [date(2024, 1, 1) + timedelta(days=d) for d in range(30)])) == [
        "2024-01-15", "2024-01-16",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "cell", "message"),
    [
        (3, "", "step 4: the date is missing"),
        (3, "12/31/2024", "step 4 is not a date: '12/31/2024'. Use 2024-12-31 or 2024-12-31T18:00"),
        (3, str(HOURS[2]), "step 4: the date 2024-02-28 02:00:00 is not after 2024-02-28 02:00:00"),
        (3, str(HOURS[1]), "Sort the rows of each series by date"),
        (3, "2024-02-28T03:00+00:00", "step 4: the date 2024-02-28T03:00+00:00 has a UTC offset, unlike"),
    ],
)
def test_invalid_date_is_reported_with_its_row(row: int, cell: str, message: str, tmp_path: Path) -> None:
    cells = [str(hour) for hour in HOURS]
    cells[row] = cell
    with pytest.raises(DataError) as error:
        create_task(dated(tmp_path, cells)).load_splits()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("dates", "name", "following"),
    [
        (["2024-01-01T00", "2024-01-01T01"], "1 hour", ["2024-01-01T02:00:00", "2024-01-01T03:00:00"]),
        (["2024-01-01T00:00", "2024-01-01T00:15"], "15 minutes", ["2024-01-01T00:30:00", "2024-01-01T00:45:00"]),
        (["2024-01-01", "2024-01-08"], "7 days", ["2024-01-15", "2024-01-22"]),
        (["2023-10-31", "2023-11-30", "2023-12-31"], "1 month", ["2024-01-31", "2024-02-29"]),
        (["2024-01-01", "2024-02-01", "2024-03-01"], "1 month", ["2024-04-01", "2024-05-01"]),
        (["2021-03-15", "2022-03-15", "2023-03-15", "2024-03-15"], "1 year", ["2025-03-15", "2026-03-15"]),
        (["2024-01-01T00:00:00.0", "2024-01-01T00:00:00.1"], "0.1 seconds",
         ["2024-01-01T00:00:00.200000", "2024-01-01T00:00:00.300000"]),
    ],
)  # fmt: skip
def test_frequencies_are_named_and_continued(dates: list[str], name: str, following: list[str]) -> None:
    moments = np.array(dates, dtype="datetime64[us]")
    step = Step.of(moments)
    assert step is not None
    assert (str(step), step.irregular) == (name, 0)
    assert date_texts(step.after(moments, 2), utc=False) == following


def test_calendar_features_are_points_on_circles() -> None:
    dates, utc = read_dates(["2024-01-01T06:00", "2024-04-03T18:00"], "here")  # a Monday and a Wednesday
    assert not utc
    wednesday = 2 * np.pi * 2 / 7
    expected = [[1, 0, 0, 1, 0, 1], [-1, 0, np.sin(wednesday), np.cos(wednesday), 1, 0]]
    np.testing.assert_allclose(calendar(dates, ["hour", "weekday", "month"]), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("start", "step", "count", "features"),
    [
        ("2024-01-01T00", "1h", 20, []),
        ("2024-01-01T00", "1h", 24 * 6, ["hour"]),
        ("2024-01-01T00", "1h", 24 * 7, ["hour", "weekday"]),
        ("2024-01-01T00", "1D", 200, ["weekday"]),
        ("2024-01-01T00", "1D", 400, ["weekday", "month"]),
        ("2024-01-01T00", "7D", 60, ["month"]),
    ],
)
def test_the_calendar_has_what_the_data_covers(start: str, step: str, count: int, features: list[str]) -> None:
    distance = np.timedelta64(int(step[:-1]), step[-1])  # type: ignore[call-overload]  # the units of this table
    dates = (np.datetime64(start) + np.arange(count) * distance).astype("datetime64[us]")
    assert complete_cycles([dates]) == features


def test_irregular_dates_are_noted_and_an_empty_calendar_reads_none(tmp_path: Path, kit_here: RunKit) -> None:
    hours = HOURS[:20] + HOURS[23:]
    recipe = dated(tmp_path, hours, calendar=[])
    shown = kit_here("train", tmp_path / "forecasting.yaml", "--output", "run")
    assert shown.returncode == 0, shown.stderr
    assert "1 of 56 steps between dates are not 1 hour" in shown.stderr
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["context_size"] == 0
    assert config["forecasting"]["step"] == "1 hour"
    done = kit_here("predict", "run", recipe.data.path, "--horizon", "3")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["dates"] == [(HOURS[-1] + timedelta(hours=h)).isoformat() for h in (1, 2, 3)]
    assert "1 steps between dates differ from the others" in done.stderr


def test_dates_of_future_context_come_from_the_file(tmp_path: Path, kit_here: RunKit) -> None:
    rows = ["when,x,c", *(f"{hour},{np.sin(n)},{n % 3}" for n, hour in enumerate(HOURS))]
    (tmp_path / "train.csv").write_text("\n".join(rows) + "\n")
    data = {"path": str(tmp_path / "train.csv"), "targets": ["x"], "context": ["c"], "date": "when", "history": 4,
            "horizon": 2, "validation_steps": 8, "calendar": ["hour"]}  # fmt: skip
    make_recipe(tmp_path, "forecasting", data)
    assert kit_here("train", "forecasting.yaml", "--output", "run").returncode == 0
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["context_size"] == 3
    future = [f"{HOURS[-1] + timedelta(hours=hour)},,1" for hour in (1, 2, 3)]
    (tmp_path / "now.csv").write_text("\n".join(rows + future) + "\n")
    done = kit_here("predict", "run", "now.csv")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["dates"] == [(HOURS[-1] + timedelta(hours=h)).isoformat() for h in (1, 2, 3)]
    refused = kit_here("predict", "run", "train.csv")
    assert refused.returncode == 2
    assert "its context is known for 0 steps after the last value" in refused.stderr


def test_the_calendar_needs_dates(tmp_path: Path) -> None:
    dated(tmp_path, HOURS)
    with pytest.raises(RecipeError, match=r"has no effect without data\.date"):
        load_recipe(tmp_path / "forecasting.yaml", ["data.date=null", "data.calendar=[hour]"])
    with pytest.raises(RecipeError, match='"hour" occurs twice'):
        load_recipe(tmp_path / "forecasting.yaml", ["data.calendar=[hour, hour]"])
