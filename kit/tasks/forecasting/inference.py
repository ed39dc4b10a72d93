"""Forecasts of the series in a file: `kit predict`."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from transformers import AutoModelForTimeSeriesPrediction

from kit.data.columns import plain_text
from kit.data.formats.layout import Layout
from kit.data.formats.reader import read_table
from kit.data.rows import to_dataset
from kit.errors import DataError, KitError, RunError
from kit.prediction.files import writing
from kit.pretrained.loading import load_config, load_model
from kit.system.console import Reporter
from kit.tasks.forecasting.recipe import ForecastingData
from kit.tasks.forecasting.series import Array, Series, read_series
from kit.tasks.forecasting.task import SETTINGS, value_names

SERIES_AT_ONCE = 256


@dataclass(frozen=True)
class Forecast:
    """How a series goes on."""

    series: str
    values: Array  # (horizon, value_size)
    scales: Array | None  # the same: standard deviations, of a model that has them


def is_forecaster(name_or_path: str | Path) -> bool:
    """Whether a run folder, a model folder or a Hub id holds a model that goes on with series."""
    return load_config(name_or_path).model_type == "rnn_forecaster"


class Forecaster:
    """A trained model, ready to go on with series."""

    def __init__(self, name_or_path: str | Path):
        """`name_or_path` is a run folder, a model folder or a Hub id."""
        self.model: Any = load_model(AutoModelForTimeSeriesPrediction, name_or_path).eval()
        settings = getattr(self.model.config, SETTINGS, None)
        if settings is None:
            raise RunError(f"{name_or_path} was not trained by a recipe with task: forecasting")
        self.settings: dict[str, Any] = settings
        self.history: int = settings["history"]
        self.names = value_names(settings["values"], self.model.config.value_size)

    def read(self, file: Path) -> list[Series]:
        """The series of a file, which has the columns that the model was trained on."""
        keys = ("context", "series", "history", "missing")
        data = ForecastingData(
            path=str(file),
            targets=self.settings["values"],
            horizon=self.model.config.horizon,
            **{key: self.settings[key] for key in keys},
        )
        rows = to_dataset(plain_text(read_table(file, Layout()).table))
        return read_series(rows, data, str(file), complete=False)

    def predict(self, series: Sequence[Series], horizon: int | None = None) -> Iterator[Forecast]:
        """The forecasts, in order; series with equally many steps to predict are computed together."""
        asked = [(one, self.steps_of(one, horizon)) for one in series]
        for steps, group in groupby(asked, key=lambda pair: pair[1]):
            while some := [one for one, _ in islice(group, SERIES_AT_ONCE)]:
                yield from self._together(some, steps)

    def steps_of(self, series: Series, horizon: int | None) -> int:
        """How many steps to predict. Raises DataError if what is known about them does not reach so far."""
        config = self.model.config
        if (series.values.shape[1], series.context.shape[1]) != (config.value_size, config.context_size):
            raise DataError(
                f'series "{series.name}" has {series.values.shape[1]} values and {series.context.shape[1]} known '
                f"numbers at each step, but the model takes {config.value_size} and {config.context_size}."
            )
        if not series.there.any():
            raise DataError(f'series "{series.name}" has no value to go on from.')
        if config.context_size == 0:
            return horizon or config.horizon
        known = len(series.context) - len(series)
        if known == 0 or (horizon or 0) > known:
            wanted = f"{horizon} steps" if horizon else "the steps to predict"
            raise DataError(
                f'series "{series.name}": its context is known for {known} steps after the last value, but the model '
                f"needs that of {wanted}. Add it, with the values left empty."
            )
        return horizon or known

    def _together(self, series: list[Series], steps: int) -> Iterator[Forecast]:
        sizes = self.model.config.value_size, self.model.config.context_size
        values, context = (np.zeros((len(series), self.history, size)) for size in sizes)
        mask = np.zeros(values.shape[:2], dtype=bool)
        for row, one in enumerate(series):  # shorter pasts stand at the end
            length = min(self.history, len(one))
            start = len(one) - length
            values[row, self.history - length :] = np.nan_to_num(one.values[start:])
            context[row, self.history - length :] = one.context[start : len(one)]
            mask[row, self.history - length :] = one.there[start:]
            if not mask[row].any():
                raise DataError(f'series "{one.name}" has no value in its last {self.history} steps to go on from.')
        inputs = {"past_values": torch.from_numpy(values).float(), "past_mask": torch.from_numpy(mask)}
        if sizes[1]:
            future = np.stack([one.context[len(one) : len(one) + steps] for one in series])
            inputs["past_context"] = torch.from_numpy(context).float()
            inputs["future_context"] = torch.from_numpy(future).float()
        output = self.model.predict(**inputs, horizon=steps)
        for row, one in enumerate(series):
            scales = None if output.scales is None else output.scales[row].double().numpy()
            yield Forecast(one.name, output.predictions[row].double().numpy(), scales)


def forecast_file(run: str | Path, file: Path, output: Path | None, horizon: int | None, reporter: Reporter) -> None:
    """Write how each series of a file goes on; the output appears when it is complete."""
    writers: dict[str, Callable[[Iterator[Forecast], list[str], TextIO], int]] = {
        ".csv": write_csv,
        ".jsonl": write_json,
    }
    ending = ".jsonl" if output is None else output.suffix
    if ending not in writers:
        raise KitError(f"--output {output}: forecasts are written as .csv or .jsonl")
    forecaster = Forecaster(run)
    series = forecaster.read(file)
    with writing(output) as text:
        count = writers[ending](forecaster.predict(series, horizon), forecaster.names, text)
    reporter.print(f"{count:,} series{'' if output is None else f': {output}'}")


def write_csv(forecasts: Iterator[Forecast], names: list[str], file: TextIO) -> int:
    """A row for each step, counted from 1, after the end of each series."""
    writer, count = csv.writer(file, lineterminator="\n"), 0
    for count, forecast in enumerate(forecasts, start=1):
        scales = forecast.scales
        if count == 1:
            more = [] if scales is None else [f"{name} scale" for name in names]
            writer.writerow(["series", "step", *names, *more])
        for step, values in enumerate(forecast.values):
            numbers = [*values, *([] if scales is None else scales[step])]
            writer.writerow([forecast.series, step + 1, *(f"{number:.7g}" for number in numbers)])
    return count


def write_json(forecasts: Iterator[Forecast], names: list[str], file: TextIO) -> int:
    """An object for each series."""
    count = 0
    for forecast in forecasts:
        count += 1
        row: dict[str, Any] = {"series": forecast.series, "values": _listed(forecast.values)}
        if forecast.scales is not None:
            row["scales"] = _listed(forecast.scales)
        print(json.dumps(row, ensure_ascii=False), file=file)
    return count


def _listed(steps: Array) -> list[list[float]]:
    return [[float(f"{number:.7g}") for number in step] for step in steps]
