"""Forecasts beside baselines: a seasonal look-alike, the season, the regression, strides and coverage."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunKit
from support.recipes import make_recipe
from support.seasonal import START, write_seasonal_csv

from kit import load_recipe, train
from kit.errors import RecipeError
from kit.tasks.forecasting.evaluation import coverage
from kit.tasks.forecasting.examples import windows_of
from kit.tasks.forecasting.regression import best_regression
from kit.tasks.forecasting.season import find_season, seasonal_naive, stride_across
from kit.tasks.forecasting.series import Series
from kit.tasks.registry import create_task

BASELINES = ("persistence", "seasonal", "linear", "regression")
HOUR = np.timedelta64(1, "h")


def seasonal_data(folder: Path, **data: Any) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    path = write_seasonal_csv(folder / "load.csv")
    return {
        "path": str(path), "targets": ["load"], "date": "date", "history": 24, "horizon": 8,
        "validation_steps": 14 * 24, "test_steps": 21 * 24, **data,
    }  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the seasonal look-alike: a few seconds of training."""
    folder = tmp_path_factory.mktemp("seasonal")
    sections = {
        "model": {"type": "rnn_forecaster", "cell": "gru", "hidden_size": 24, "scheduled_sampling": 1.0},
        "train": {
            "max_steps": 160, "batch_size": 32, "learning_rate": 1e-2, "lr_scheduler_type": "cosine",
            "warmup_steps": 10, "save_steps": 1000,
        },
        "eval": {"steps": 0, "examples": 2},
    }  # fmt: skip
    return train(make_recipe(folder, "forecasting", seasonal_data(folder), **sections), folder / "run").folder


def test_the_recipe_beats_the_seasonal_naive_forecast_which_beats_the_weaker_baselines(run: Path) -> None:
    test = json.loads((run / "results.json").read_text(encoding="utf-8"))["test"]
    assert test["season"] == 24
    assert test["seasonal_mse"] < 0.9 * test["linear_mse"] < test["persistence_mse"]
    assert test["mse"] < 0.6 * test["seasonal_mse"]
    assert test["regression_mse"] < test["linear_mse"]
    assert set(test["by_horizon"]) == {f"{kind}{error}" for kind in ("", *(f"{name}_" for name in BASELINES))
                                       for error in ("mse", "mae")}  # fmt: skip


def test_card_shows_all_baselines_and_the_detected_season(run: Path) -> None:
    card = (run / "README.md").read_text(encoding="utf-8")
    for title in ("repeating the last value", "the seasonal naive forecast", "a linear autoregression",
                  "a linear regression for each step ahead"):  # fmt: skip
        assert f"Mean squared error of {title} (lower is better)" in card
    assert "repeats the last 24 steps" in card
    assert "the season is 24 steps, found in the training data" in card
    assert "calendar features: hour, weekday" in card
    assert "test: 71 windows, 7 steps apart" in card


def test_evaluated_forecasts_carry_their_dates_and_start_at_every_hour(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "predictions" / "test.jsonl").read_text("utf-8").splitlines()]
    starts = np.array([np.datetime64(row["dates"][0], "h") for row in rows])
    assert set((starts - START).astype(int) % 24) == set(range(24))
    with (run.parent / "load.csv").open() as file:
        load = {row["date"]: float(row["load"]) for row in csv.DictReader(file)}
    for row in rows[:5]:
        hours = [date.removesuffix(":00:00") for date in row["dates"]]
        np.testing.assert_allclose(np.ravel(row["target"]), [load[hour] for hour in hours], rtol=1e-6)


def test_predict_continues_the_dates_of_a_file(run: Path, tmp_path: Path, kit_here: RunKit) -> None:
    lines = (run.parent / "load.csv").read_text().splitlines()
    (tmp_path / "now.csv").write_text("\n".join(lines[:61]) + "\n")  # 60 hours
    done = kit_here("predict", run, "now.csv", "--output", "next.csv", "--horizon", "10")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "next.csv").open() as file:
        written = list(csv.DictReader(file))
    expected = [f"{START + 60 + hour}:00:00" for hour in range(10)]
    assert [row["date"] for row in written] == expected
    truth = [float(line.split(",")[1]) for line in lines[61:71]]
    yesterday = [float(line.split(",")[1]) for line in lines[61 - 24 : 71 - 24]]
    errors = [np.square(np.subtract(side, truth)).mean() for side in ([float(r["load"]) for r in written], yesterday)]
    assert errors[0] < 4 * errors[1] + 0.5  # the calendar of the future was read, at the right place

    as_json = kit_here("predict", run, "now.csv")
    row = json.loads(as_json.stdout)
    assert (row["dates"], len(row["values"])) == (expected[:8], 8)

    daily = ["date,load", *(f"2024-03-{day:02},{day}" for day in range(1, 29))]
    (tmp_path / "daily.csv").write_text("\n".join(daily) + "\n")
    refused = kit_here("predict", run, "daily.csv")
    assert refused.returncode == 2
    assert "its dates are 1 day apart, but the model was trained on steps of 1 hour" in refused.stderr


def test_eval_accepts_another_stride_and_season(run: Path, kit_here: RunKit) -> None:
    done = kit_here("eval", run, "eval.stride=24", "data.season=12", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["season"], figures["examples"]) == (12, 21)
    assert figures["seasonal_mse"] > 1
    refused = kit_here("eval", run, "data.calendar=[hour]")
    assert refused.returncode == 2
    assert "data.calendar has no effect on the evaluation" in refused.stderr


def test_a_stride_that_misses_times_of_the_season_is_noted(tmp_path: Path, kit_here: RunKit) -> None:
    make_recipe(tmp_path, "forecasting", seasonal_data(tmp_path))
    shown = kit_here("data", "forecasting.yaml", "eval.stride=24")
    assert shown.returncode == 0, shown.stderr
    assert "evaluated forecasts start at only 1 of the 24 steps of the season (eval.stride)" in unwrapped(shown.stdout)
    shown = kit_here("data", "forecasting.yaml", "data.history=12", "data.horizon=24")
    assert "the season is longer than data.history (12)" in unwrapped(shown.stdout)
    assert "windows, 23 steps apart" in unwrapped(shown.stdout)


def unwrapped(text: str) -> str:
    return " ".join(text.split())


# ---- the parts -------------------------------------------------------------------------------------------------------


def wave(steps: int, period: int, noise: float, seed: int = 0) -> Series:
    chance = np.random.default_rng(seed)
    values = np.sin(2 * np.pi * np.arange(steps) / period) + noise * chance.normal(size=steps)
    return Series("wave", values[:, None], np.zeros((steps, 0)))


@pytest.mark.parametrize(("period", "noise"), [(7, 0.3), (24, 0.0), (24, 0.3), (5, 0.1)])
def test_the_season_is_the_period(period: int, noise: float) -> None:
    assert find_season([wave(600, period, noise)], 60, 12) == period
    assert find_season([wave(600, period, noise)], period - 1, 12) != period


@pytest.mark.parametrize("seed", range(5))
def test_white_noise_and_random_walks_have_no_season(seed: int) -> None:
    steps = np.random.default_rng(seed).normal(size=(600, 1))
    for values in (steps, steps.cumsum(0), np.ones((600, 1))):
        assert find_season([Series("s", values, np.zeros((600, 0)))], 48, 24) is None


def test_seasons_are_found_over_missing_values_and_short_series() -> None:
    long, short = wave(400, 12, 0.1), wave(9, 12, 0.1)
    long.values[::5] = np.nan
    assert find_season([long, short], 48, 6) == 12


def test_history_beyond_the_data_takes_no_time() -> None:
    """`data.history` has no bound but that of an integer."""
    series = wave(60, 12, 0.0)
    assert find_season([series], 10**9, 6) == find_season([series], 59, 6) == 12


def test_the_seasonal_naive_forecast_repeats_the_last_season() -> None:
    past = np.arange(8.0).reshape(1, 8, 1)
    assert seasonal_naive(past, 5, 3)[0, :, 0].tolist() == [5, 6, 7, 5, 6]
    past[0, 6] = np.nan  # then the same time of the season before
    assert seasonal_naive(past, 5, 3)[0, :, 0].tolist() == [5, 3, 7, 5, 3]
    past[0, 3] = past[0, 0] = np.nan
    np.testing.assert_array_equal(seasonal_naive(past, 5, 3)[0, :, 0], [5, np.nan, 7, 5, np.nan])


@pytest.mark.parametrize(
    ("season", "horizon", "stride"), [(24, 24, 23), (24, 48, 47), (7, 7, 6), (24, 1, 1), (None, 40, 40), (6, 4, 1)]
)
def test_the_stride_meets_every_time_of_the_season(season: int | None, horizon: int, stride: int) -> None:
    assert stride_across(season, horizon) == stride


def test_season_beyond_the_history_is_rejected(tmp_path: Path) -> None:
    make_recipe(tmp_path, "forecasting", seasonal_data(tmp_path))
    with pytest.raises(RecipeError, match=r"repeats the last 48 steps, but data\.history is 24"):
        load_recipe(tmp_path / "forecasting.yaml", ["data.season=48"])


def test_the_regression_predicts_each_step_from_past_and_context() -> None:
    chance = np.random.default_rng(0)
    series = []
    for name in range(3):
        context, values = chance.normal(size=(200, 1)), [np.zeros(1), np.zeros(1)]
        for step in range(2, 200):
            values.append(0.5 * values[-1] - 0.3 * values[-2] + 2 * context[step] + 0.7)
        series.append(Series(str(name), np.array(values) + 100, context))
    windows = windows_of(series, 8, 4, 3)
    fitted = best_regression(series, windows)
    values, context = windows.arrays(np.arange(len(windows)))
    np.testing.assert_allclose(fitted.predict(values[:, :8], context, 4), values[:, 8:], atol=1e-3)
    without = [Series(single.name, single.values, np.zeros((200, 0))) for single in series]
    worse = best_regression(without, windows_of(without, 8, 4, 3)).predict(
        values[:, :8], np.zeros((len(values), 12, 0)), 4
    )
    assert np.abs(worse - values[:, 8:]).mean() > 0.5


def test_calibrated_intervals_have_nominal_coverage() -> None:
    chance = np.random.default_rng(0)
    means, scales = chance.normal(size=(2, 400, 5, 2))
    scales = np.exp(scales)
    values = means + scales * chance.normal(size=means.shape)
    values[0] = np.nan
    inside = coverage(means, scales, values)
    assert np.isnan(inside["coverage_90"][0]).all()
    assert np.nanmean(inside["coverage_50"]) == pytest.approx(0.5, abs=0.03)
    assert np.nanmean(inside["coverage_90"]) == pytest.approx(0.9, abs=0.02)
    assert np.nanmean(coverage(means, 3 * scales, values)["coverage_50"]) > 0.9


def test_season_detection_can_be_disabled(tmp_path: Path) -> None:
    task = create_task(make_recipe(tmp_path, "forecasting", seasonal_data(tmp_path, season=None)))
    splits = task.load_splits()
    state = task.fit(splits, task.build_tokenizers(splits))
    assert any("no season was set" in note for note in task.encode(splits.datasets["train"], state, "train").notes)
    windows = task.encode(splits.datasets["test"], state, "test").examples
    assert np.diff(windows.positions[:, 1]).tolist() == [8] * (len(windows) - 1)
