"""The task `forecasting`: tables to series to windows, errors beside baselines, and forecasts of files."""

import csv
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.recipes import CHECKPOINTS, make_recipe

from kit import load_recipe, train
from kit.data.builtin import pendulum
from kit.errors import DataError, RecipeError
from kit.evaluation.metrics import compute_metrics
from kit.prediction.rows import PredictOptions
from kit.recipe.base import Recipe
from kit.sharing.folder import missing_metadata
from kit.tasks.forecasting.baselines import LinearAutoregression, best_autoregression, persistence
from kit.tasks.forecasting.examples import windows_of
from kit.tasks.forecasting.inference import Forecaster
from kit.tasks.forecasting.series import Series
from kit.tasks.registry import create_task
from kit.training.objective import SamplingSchedule

BUILTIN: dict[str, Any] = {
    "path": "builtin:pendulum", "context": ["context"], "history": 10, "horizon": 6, "stride": 8,
    "sizes": {"train": 40, "validation": 6, "test": 6},
}  # fmt: skip
MODEL: dict[str, Any] = {"type": "rnn_forecaster", "cell": "gru", "hidden_size": 8, "dropout": 0.1}


def recipe(
    folder: Path, data: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **train: Any
) -> Recipe:
    train = {**CHECKPOINTS, "batch_size": 16, **train}
    sections = {"model": {**MODEL, **(model or {})}, "train": train, "eval": {"steps": 6}}
    return make_recipe(folder, "forecasting", data or BUILTIN, **sections)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short, finished run with a context, a predicted variance and a schedule."""
    folder = tmp_path_factory.mktemp("forecaster")
    model = {"loss": "gaussian", "scheduled_sampling": 0.8, "feedback": "sample", "input_noise": 0.01}
    return train(recipe(folder, model=model, sampling_start=3, sampling_steps=6), folder / "run").folder


# ---- data ------------------------------------------------------------------------------------------------------------

NUMBERS = np.arange(24.0).reshape(2, 6, 2) ** 1.5  # two series of six steps with two values
DRIVE = np.sin(np.arange(12.0)).reshape(2, 6)


def write_series(folder: Path, form: str) -> dict[str, Any]:
    """The same numbers in a file of each format, with the recipe keys that read it."""
    steps = [
        {"who": f"s{n}", "a": NUMBERS[n, t, 0], "b": NUMBERS[n, t, 1], "c": DRIVE[n, t]}
        for t in range(6)
        for n in range(2)
    ]
    rows = [{"who": f"s{n}", "v": NUMBERS[n].tolist(), "c": DRIVE[n].tolist()} for n in range(2)]
    path = folder / f"train.{form.split('-')[-1]}"
    folder.mkdir(parents=True, exist_ok=True)
    if form == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(steps[0]))
            writer.writeheader()
            writer.writerows(steps)
    elif form.endswith("jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in (steps if form == "steps-jsonl" else rows)))
    elif form.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(steps if form == "steps-parquet" else rows), path)
    else:
        np.savez(path, v=NUMBERS, c=DRIVE, who=np.array(["s0", "s1"]))
    whole = form in ("rows-jsonl", "rows-parquet", "npz")
    targets = ["v"] if whole else ["a", "b"]
    shutil.copyfile(path, path.with_name(path.name.replace("train", "validation")))
    return {"path": str(folder), "targets": targets, "context": ["c"], "series": "who", "history": 3, "horizon": 2}


@pytest.mark.parametrize("form", ["csv", "steps-jsonl", "rows-jsonl", "steps-parquet", "rows-parquet", "npz"])
def test_numbers_are_equal_in_every_file_format(form: str, tmp_path: Path) -> None:
    task = create_task(recipe(tmp_path / "r", write_series(tmp_path / "d", form)))
    splits = task.load_splits()
    rows = splits.datasets["train"]
    assert rows["series"][:] == ["s0", "s1"]
    np.testing.assert_allclose(np.array(rows["values"][:]), NUMBERS)
    np.testing.assert_allclose(np.array(rows["context"][:])[..., 0], DRIVE)
    state = task.fit(splits, task.build_tokenizers(splits))
    batch = task.encode(rows, state, "train").examples.batch(np.array([1]))
    np.testing.assert_allclose(batch["past_values"][0].numpy(), NUMBERS[0, 1:4], rtol=1e-6)
    np.testing.assert_allclose(batch["future_values"][0].numpy(), NUMBERS[0, 4:6], rtol=1e-6)
    np.testing.assert_allclose(batch["future_context"][0, :, 0].numpy(), DRIVE[0, 4:6], rtol=1e-6)


def write_rows(folder: Path, *rows: dict[str, Any], **data: Any) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(folder), "targets": ["v"], "history": 2, "horizon": 1, **data}


@pytest.mark.parametrize(
    ("rows", "data", "message"),
    [
        ([{"v": [1, 2, None, 4]}], {}, 'series "1", step 3: the value of "v" is missing. Fill it in, or mask'),
        ([{"v": [1, 2, 3]}, {"v": [1, math.nan, 2]}], {}, 'series "2", step 2: the value of "v" is missing'),
        ([{"v": [1, 2, math.inf]}], {}, 'series "1", step 3: "v" is infinite'),
        ([{"v": [[1, 2], [3, 4], [5]]}], {}, 'step 3 of "v" has 1 numbers, and the first has 2'),
        ([{"v": [1, 2, 3], "c": [1, 2]}], {"context": ["c"]}, "it has values of 3 steps, but context of 2"),
        ([{"v": [1, 2, 3], "c": [1, None, 2]}], {"context": ["c"], "missing": "mask"}, 'the context of "c" is missing'),
        ([{"v": [1, 2]}], {}, "train has no window of data.history + data.horizon = 3 steps"),
        ([{"v": [None, None, 1]}], {"missing": "mask"}, "train has no window"),
        ([{"w": [1, 2, 3]}], {}, "data.targets: "),
        ([{"v": ["a", "b", "c"]}], {}, "step 1: \"v\" is not a number: 'a'"),
        ([{"v": "abc"}], {}, "row 1: \"v\" is not a number: 'abc'"),
    ],
)
def test_malformed_numbers_are_reported_with_their_row(
    rows: list[dict[str, Any]], data: dict[str, Any], message: str, tmp_path: Path
) -> None:
    task = create_task(recipe(tmp_path / "r", write_rows(tmp_path / "d", *rows, **data)))

    def encode() -> None:
        splits = task.load_splits()
        task.encode(splits.datasets["train"], task.fit(splits, task.build_tokenizers(splits)), "train")

    with pytest.raises(DataError) as error:
        encode()
    assert message in str(error.value)


def test_missing_values_are_masked_and_series_may_be_of_any_length(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "d", {"v": [1, 2, None, 4]}, {"v": [5, 6]}, {"v": [7, 8, 9]}, missing="mask")
    task = create_task(recipe(tmp_path / "r", data))
    splits = task.load_splits()
    encoded = task.encode(splits.datasets["train"], task.fit(splits, task.build_tokenizers(splits)), "train")
    train = encoded.examples
    assert encoded.dropped == {"short": 1}
    assert train.positions.tolist() == [[0, 1], [2, 0]]  # the first window has nothing to predict
    batch = train.batch(np.array([0, 1]))
    assert batch["past_mask"].tolist() == [[True, False], [True, True]]
    assert not batch["past_values"].isnan().any()


@settings(deadline=None)
@given(st.lists(st.integers(1, 14), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_windows_are_all_that_fit(lengths: list[int], history: int, horizon: int, stride: int) -> None:
    series = [Series(str(n), np.arange(n, dtype=float)[:, None], np.zeros((n, 0))) for n in lengths]
    windows = windows_of(series, history, horizon, stride)
    whole = history + horizon
    assert len(windows) == sum(max(0, (n - whole) // stride + 1) for n in lengths if n >= whole)
    if len(windows):
        values, _ = windows.arrays(np.arange(len(windows)))
        np.testing.assert_array_equal(np.diff(values[..., 0], axis=1), 1)


def test_the_end_of_each_series_can_be_held_out(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("x\n" + "".join(f"{n}\n" for n in range(50)))
    data = {"path": str(tmp_path / "one.csv"), "targets": ["x"], "history": 4, "horizon": 3}
    splits = create_task(recipe(tmp_path, {**data, "validation_steps": 6, "test_steps": 9})).load_splits()
    ends = {name: [step[0] for step in rows["values"][0]] for name, rows in splits.datasets.items()}
    assert (ends["train"][0], ends["train"][-1]) == (0, 34)
    assert (ends["validation"][0], ends["validation"][-1]) == (31, 40)  # four steps of history, and six held out
    assert (ends["test"][0], ends["test"][-1]) == (37, 49)
    with pytest.raises(DataError, match="no validation split"):
        create_task(recipe(tmp_path, data)).load_training_splits()


def test_keys_without_effect_are_rejected(tmp_path: Path) -> None:
    for changes, message in (
        (
            {"tokenizer": {"train": "char"}},
            "tokenizer applies to all tasks but forecasting; task: forecasting does not",
        ),
        (
            {"train": {"max_steps": 1, "batch_size": 2, "sampling_steps": 5}},
            "no effect without model.scheduled_sampling",
        ),
        ({"model": {**MODEL, "value_size": 2}}, "it is the number of values at each step"),
        ({"data": {**BUILTIN, "targets": ["context"]}}, '"context" occurs twice'),
        (
            {"train": {"max_steps": 1, "batch_size": 2, "label_smoothing_factor": 0.1}},
            "task: forecasting does not support it",
        ),
    ):
        recipe(tmp_path)
        whole = yaml.safe_load((tmp_path / "forecasting.yaml").read_text())
        (tmp_path / "wrong.yaml").write_text(yaml.safe_dump({**whole, **changes}))
        with pytest.raises(RecipeError) as error:
            load_recipe(tmp_path / "wrong.yaml")
        assert message in str(error.value)


# ---- baselines -------------------------------------------------------------------------------------------------------


def test_linear_autoregression_recovers_the_generating_rule() -> None:
    chance = np.random.default_rng(0)
    series = []
    for name in range(5):
        context, values = chance.normal(size=(30, 1)), list(chance.normal(size=(2, 1)))
        for step in range(2, 30):
            values.append(0.5 * values[-1] - 0.3 * values[-2] + 2 * context[step] + 0.7)
        series.append(Series(str(name), np.array(values), context))
    windows = windows_of(series, 8, 6, 6)
    fitted = best_autoregression(series, windows)
    values, context = windows.arrays(np.arange(len(windows)))
    np.testing.assert_allclose(fitted.predict(values[:, :8], context, 6), values[:, 8:], atol=1e-5)
    assert fitted.order >= 2
    worse = LinearAutoregression.fit(series, 1).predict(values[:, :8], context, 6)
    assert np.abs(worse - values[:, 8:]).max() > 0.1


def test_persistence_repeats_the_last_observed_value() -> None:
    past = np.array([[[1.0], [2.0], [np.nan]], [[3.0], [4.0], [5.0]]])
    assert persistence(past, 2)[..., 0].tolist() == [[2, 2], [5, 5]]


@pytest.mark.parametrize(("start", "steps", "expected"), [(2, 4, [0, 0, 0.2, 0.4, 0.6, 0.8, 0.8]), (0, 0, [0.8] * 7)])
def test_the_schedule_of_sampling(start: int, steps: int, expected: list[float]) -> None:
    schedule = SamplingSchedule(0.8, start, steps)
    assert [schedule.at(step) for step in range(7)] == pytest.approx(expected)


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_run_reports_errors_beside_baselines(run: Path) -> None:
    test = json.loads((run / "results.json").read_text(encoding="utf-8"))["test"]
    rows = [json.loads(line) for line in (run / "predictions" / "test.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == test["examples"] == 6 * 11  # windows a horizon apart in 80 steps
    flat = {side: np.array([row[side] for row in rows]).ravel().tolist() for side in ("prediction", "target")}
    for name in ("mse", "mae"):
        by_hand = compute_metrics([name], flat["prediction"], flat["target"])[name]
        assert test[name] == pytest.approx(by_hand, rel=1e-3)
        assert np.mean(test["by_horizon"][name]) == pytest.approx(test[name], rel=1e-3)
        assert np.mean([figures[name] for figures in test["by_value"].values()]) == pytest.approx(test[name], rel=1e-3)
        assert 0 < test[f"linear_{name}"] < test[f"persistence_{name}"]
    assert (run / "plots" / "error_by_horizon.png").is_file()
    assert (run / "plots" / "forecast.png").is_file()
    assert "Mean squared error of repeating the last value" in (run / "README.md").read_text(encoding="utf-8")
    config = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    assert (config["value_size"], config["context_size"], config["horizon"]) == (2, 1, 6)
    assert config["scheduled_sampling"] == 0.8  # the value of the recipe, not of the schedule


def test_resume_is_bit_identical(run: Path, tmp_path: Path, kit_here: Any) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    (broken / "results.json").unlink()
    shutil.rmtree(broken / "model")
    for checkpoint in broken.glob("checkpoints/step-*"):
        if int(checkpoint.name[5:]) > 6:  # in the middle of the schedule
            shutil.rmtree(checkpoint)
    done = kit_here("train", broken, "--resume")
    assert done.returncode == 0, done.stderr
    assert re.search("resuming at step [46]\n", done.stderr)
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (broken, run))
    assert all(ours[name].equal(theirs[name]) for name in theirs)


def test_normalization_is_that_of_the_training_series(run: Path) -> None:
    weights = load_file(run / "model" / "model.safetensors")
    table = pendulum.generate(BUILTIN["sizes"])["train"]
    values = np.array(table["values"].to_pylist()).reshape(-1, 2)
    np.testing.assert_allclose(weights["normalization.mean"].numpy(), values.mean(0), atol=1e-5)
    np.testing.assert_allclose(weights["normalization.scale"].numpy(), values.std(0), rtol=1e-5)


def test_eval_data_and_verify_commands(run: Path, kit_here: Any) -> None:
    again = kit_here("eval", run, "--json")
    assert again.returncode == 0, again.stderr
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert json.loads(again.stdout)["mse"] == pytest.approx(results["test"]["mse"], rel=1e-6)
    assert json.loads(again.stdout)["linear_mse"] == results["test"]["linear_mse"]
    proven = kit_here("verify", run)
    assert proven.returncode == 0, proven.stdout
    assert "rollout" in proven.stdout
    report = kit_here("data", run / "recipe.yaml")
    assert report.returncode == 0, report.stderr
    assert "40 series of 80 steps" in report.stdout
    shown = kit_here("eval", run)
    assert "Season, in steps" in shown.stdout or "Order of the linear autoregression" in shown.stdout
    plotted = kit_here("plot", run)
    assert "reads numbers, and has no attention" in plotted.stdout + plotted.stderr
    assert not [note for note in missing_metadata(load_recipe(run / "recipe.yaml")) if "language" in note]
    assert "Unknown tokens" not in report.stdout


# ---- forecasts -------------------------------------------------------------------------------------------------------


def test_predict_continues_the_series_of_a_file(run: Path, tmp_path: Path, kit_here: Any) -> None:
    table = pendulum.generate({"train": 1, "validation": 1, "test": 3})["test"].to_pylist()
    rows = [
        {"values": row["values"][:30], "context": row["context"][: 30 + more]}
        for row, more in zip(table, (4, 4, 5), strict=True)
    ]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = kit_here("predict", run, "new.jsonl", "--output", "out.csv")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [(row["series"], row["step"]) for row in written] == [
        (str(n), str(step)) for n, steps in ((1, 4), (2, 4), (3, 5)) for step in range(1, steps + 1)
    ]
    forecaster = Forecaster(run, PredictOptions(tmp_path / "new.jsonl", horizon=2))
    series = forecaster.read()
    for single, forecast in zip(series, forecaster.stream(series), strict=True):
        alone = next(forecaster.stream([single]))
        np.testing.assert_allclose(forecast.values, alone.values, rtol=1e-5)
        rows_of = [
            [float(row[f"values {column}"]) for column in (1, 2)] for row in written if row["series"] == single.name
        ]
        np.testing.assert_allclose(forecast.values, rows_of[:2], rtol=1e-4, atol=1e-6)
        assert (forecast.scales > 0).all()
    as_json = kit_here("predict", run, "new.jsonl", "--horizon", "3")
    assert [len(json.loads(line)["values"]) for line in as_json.stdout.splitlines()] == [3, 3, 3]
    for arguments, message in (
        (("new.jsonl", "--horizon", "6"), "its context is known for 4 steps after the last value"),
        (("missing.csv",), "missing.csv does not exist"),
        (("new.jsonl", "--output", "out.xlsx"), "predictions are written as .csv or .jsonl"),
        (("new.jsonl", "data.history=3"), "data.history=3 has no effect: forecasts use the columns"),
    ):
        refused = kit_here("predict", run, *arguments)
        assert refused.returncode == 2
        assert message in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix) == ["new.jsonl", "out.csv"]


def test_a_table_of_steps_is_forecast_without_context(tmp_path: Path, kit_here: Any) -> None:
    lines = [f"{name},{np.sin(step / 3 + len(name)):.5f}" for step in range(40) for name in ("a", "bb")]
    (tmp_path / "waves.csv").write_text("\n".join(["who,x", *lines]) + "\n")
    data = {"path": str(tmp_path / "waves.csv"), "targets": ["x"], "series": "who", "history": 8, "horizon": 4}
    forecasting = recipe(tmp_path, {**data, "validation_steps": 8, "test_steps": 8}, max_steps=2)
    folder = train(forecasting, tmp_path / "run").folder
    done = kit_here("predict", folder, "waves.csv", "--output", "next.jsonl")
    assert done.returncode == 0, done.stderr
    forecasts = [json.loads(line) for line in (tmp_path / "next.jsonl").read_text().splitlines()]
    assert [(row["series"], np.shape(row["values"])) for row in forecasts] == [("a", (4, 1)), ("bb", (4, 1))]
