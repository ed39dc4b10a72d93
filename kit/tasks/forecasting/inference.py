"""Forecast the series of a file."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import AutoModelForTimeSeriesPrediction

from kit.data.columns import plain_text
from kit.data.formats.layout import Layout
from kit.data.formats.reader import read_table
from kit.data.rows import to_dataset
from kit.errors import DataError, KitError, RunError
from kit.prediction.engine import Encoded
from kit.prediction.options import reject_unsupported
from kit.prediction.rows import PredictOptions, RowPredictor
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import load_for_inference
from kit.tasks.forecasting.dates import Step
from kit.tasks.forecasting.evaluation import as_lists
from kit.tasks.forecasting.recipe import ForecastingData
from kit.tasks.forecasting.series import Array, Series, read_series

SETTINGS = "forecasting"
"""Field of the model's configuration with the columns and the history of its series."""

BATCH_SIZE = 256
"""Series in a batch of `kit predict`."""


def settings_of(value: Any) -> dict[str, Any]:
    """The `SETTINGS` of a trained forecaster. Raises RunError if they are missing or damaged."""
    if not isinstance(value, dict):
        raise RunError(
            f"config.json of the model has {value!r} as {SETTINGS!r}, expected the columns and the history of its "
            "series. Copy the folder again"
        )
    return value


@dataclass(frozen=True)
class Forecast:
    """The next values of a series."""

    values: Array  # (horizon, value_size)
    scales: Array | None  # the same: standard deviations, of a model that has them
    dates: list[str] | None = None  # (horizon,), of a series that has them


class Forecaster(RowPredictor[Series, tuple[Series, int], Forecast]):
    """A forecasting model. A unit is a series with the number of steps to predict."""

    noun: ClassVar[str] = "series"
    action: ClassVar[str] = "forecast"
    portion_size = BATCH_SIZE

    def __init__(self, name_or_path: str | Path | ModelFolder, options: PredictOptions, device: str | None = None):
        """`name_or_path` is a run folder, a model folder or a Hub id; the default device is that of training."""
        folder = ModelFolder.open(name_or_path)
        self.settings: dict[str, Any] | None = getattr(folder.config, SETTINGS, None)
        if self.settings is None:
            raise RunError(f"{folder.name} was not trained by a recipe with task: forecasting")
        if options.overrides:
            raise KitError(
                f"{options.overrides[0]} has no effect: forecasts use the columns that {folder.name} was trained on, "
                "and no key can be changed here. Leave it out"
            )
        reject_unsupported(options, {"file", "overrides", "horizon"}, f"{folder.name}, a forecasting model")
        self.options = options
        self.model: Any = load_for_inference(folder, AutoModelForTimeSeriesPrediction, device)
        self.history: int = self.settings["history"]
        self.names = value_names(self.settings["values"], folder.config.value_size)
        self.irregular = 0
        self.empty = Forecast(np.empty((0, folder.config.value_size)), None)

    def read(self) -> list[Series]:
        assert self.settings is not None
        keys = ("context", "series", "date", "history", "missing")
        file = str(self.options.file)
        data = ForecastingData(
            path=file,
            targets=self.settings["values"],
            horizon=self.model.config.horizon,
            season=None,
            **{key: self.settings[key] for key in keys if key in self.settings},
        )
        rows = to_dataset(plain_text(read_table(self.options.file, Layout()).table))
        return [self.with_future(series) for series in read_series(rows, data, file, complete=False)]

    def with_future(self, series: Series) -> Series:
        """Add the calendar of a series, and dates for the steps to predict that the file does not have. Raises
        DataError if the step between dates differs from that of the training data."""
        assert self.settings is not None
        if series.dates is None:
            return series
        step = Step.of(series.dates)
        if step is None:
            raise DataError(f'series "{series.name}" has a single date: the step between dates is unknown.')
        expected = self.settings.get("step")
        if expected is not None and str(step) != expected:
            raise DataError(
                f'series "{series.name}": its dates are {step} apart, but the model was trained on steps of {expected}.'
            )
        self.irregular += step.irregular
        known, wanted = len(series.dates) - len(series), self.options.horizon or self.model.config.horizon
        if known < wanted and not self.settings["context"]:
            dates = np.concatenate([series.dates, step.after(series.dates, wanted - known)])
            series = replace(series, dates=dates, context=np.zeros((len(dates), 0)))
        return series.with_calendar(self.settings.get("calendar", []))

    def encode(self, items: list[Series]) -> list[Encoded[tuple[Series, int]]]:
        return [Encoded([(series, self.steps_of(series))]) for series in items]

    def steps_of(self, series: Series) -> int:
        """The number of steps to predict. Raises DataError if the known context does not reach so far."""
        config, horizon = self.model.config, self.options.horizon
        if (series.values.shape[1], series.context.shape[1]) != (config.value_size, config.context_size):
            raise DataError(
                f'series "{series.name}" has {series.values.shape[1]} values and {series.context.shape[1]} known '
                f"numbers at each step, but the model takes {config.value_size} and {config.context_size}."
            )
        if not series.present[-self.history :].any():
            raise DataError(f'series "{series.name}" has no value in its last {self.history} steps to forecast from.')
        known = len(series.context) - len(series)
        if config.context_size == 0:
            return horizon or (config.horizon if series.dates is None else known)
        if known == 0 or (horizon or 0) > known:
            wanted = f"{horizon} steps" if horizon else "the steps to predict"
            raise DataError(
                f'series "{series.name}": its context is known for {known} steps after the last value, but the model '
                f"needs it for {wanted}. Add it, with the values left empty."
            )
        return horizon or known

    def batches(self, units: list[tuple[Series, int]]) -> list[np.ndarray]:
        """Batches of series with the same number of steps to predict. A portion is small enough for a batch."""
        steps = np.array([count for _, count in units])
        return [np.flatnonzero(steps == count) for count in dict.fromkeys(steps.tolist())]

    def predict(self, units: list[tuple[Series, int]]) -> list[Forecast]:
        """Forecast a batch, whose units all have the same number of steps to predict."""
        steps = units[0][1]
        sizes = self.model.config.value_size, self.model.config.context_size
        values, context = (np.zeros((len(units), self.history, size)) for size in sizes)
        mask = np.zeros(values.shape[:2], dtype=bool)
        for row, (series, _) in enumerate(units):  # shorter histories are at the end
            length = min(self.history, len(series))
            start = len(series) - length
            values[row, self.history - length :] = np.nan_to_num(series.values[start:])
            context[row, self.history - length :] = series.context[start : len(series)]
            mask[row, self.history - length :] = series.present[start:]
        inputs = {"past_values": torch.from_numpy(values).float(), "past_mask": torch.from_numpy(mask)}
        if sizes[1]:
            future = np.stack([series.context[len(series) : len(series) + steps] for series, _ in units])
            inputs["past_context"] = torch.from_numpy(context).float()
            inputs["future_context"] = torch.from_numpy(future).float()
        inputs = {name: tensor.to(self.model.device) for name, tensor in inputs.items()}
        output = self.model.predict(**inputs, horizon=steps)
        predictions = output.predictions.cpu().double().numpy()
        scales = [None] * len(units) if output.scales is None else list(output.scales.cpu().double().numpy())
        dates = [series.date_texts(len(series), len(series) + steps) for series, _ in units]
        return [Forecast(*parts) for parts in zip(predictions, scales, dates, strict=True)]

    def columns(self) -> list[str]:
        scales = [f"{name} scale" for name in self.names] if self.model.config.loss == "gaussian" else []
        assert self.settings is not None
        dates = ["date"] if self.settings.get("date") is not None else []
        return ["series", "step", *dates, *self.names, *scales]

    def json_row(self, item: Series, output: Forecast) -> dict[str, Any]:
        row: dict[str, Any] = {"series": item.name}
        row |= {} if output.dates is None else {"dates": output.dates}
        row["values"] = as_lists(output.values)
        return row if output.scales is None else row | {"scales": as_lists(output.scales)}

    def csv_rows(self, item: Series, output: Forecast) -> Iterable[dict[str, Any]]:
        """A row for each predicted step, counted from 1 after the end of the series."""
        numbers = output.values if output.scales is None else np.hstack([output.values, output.scales])
        for step, row in enumerate(numbers, start=1):
            date = [] if output.dates is None else [output.dates[step - 1]]
            texts = [f"{number:.7g}" for number in row]
            yield dict(zip(self.columns(), [item.name, step, *date, *texts], strict=True))

    def notes(self) -> list[str]:
        if not self.irregular:
            return []
        return [f"{self.irregular:,} steps between dates differ from the others: forecasts go on in equal steps"]


def value_names(columns: list[str], size: int) -> list[str]:
    """A name for each number of a step."""
    return list(columns) if len(columns) == size else [f"{columns[0]} {number}" for number in range(1, size + 1)]
