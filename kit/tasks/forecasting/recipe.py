"""The recipe of time series forecasting."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, MinLen

from kit.recipe.base import Recipe
from kit.recipe.data import DataSection
from kit.recipe.section import MAX_COUNT, PositiveInt, at_most_one
from kit.recipe.suggestion import DataSample, Suggestion
from kit.recipe.training import EvalSection, ScheduledSamplingKeys, TrainSection

ErrorMetric = Literal["mse", "mae"]
Feature = Literal["hour", "weekday", "month"]
"""A feature of the calendar."""


class ForecastingData(DataSection):
    """Location, columns, history and horizon of the time series."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("targets", "context", "date", "series", "history", "missing")
    encoding_keys: ClassVar[tuple[str, ...]] = ("horizon", "season")
    own_data_keys: ClassVar[tuple[str, ...]] = ("validation_steps", "test_steps")

    targets: Annotated[list[str], MinLen(1)] = ["values"]  # noqa: RUF012 (pydantic copies it)
    """Columns of the values to predict. In a table with one row per step, a column holds one number per step; if a row
    is a whole series, it holds a list of numbers, or of lists of numbers."""

    context: list[str] = []  # noqa: RUF012
    """Columns of covariates that are known for every step, including future ones, such as a control signal or
    holidays."""

    date: str | None = None
    """Column of the date or time of each step: dates, timestamps or ISO 8601 text (2024-12-31T18:00); times with a UTC
    offset are converted to UTC. The model reads its calendar features, and forecasts carry dates."""

    calendar: list[Feature] | None = None
    """Calendar features of data.date that the model reads, for the past and for the steps to predict, each as sine and
    cosine. By default, those that vary and whose cycle the training data covers: month needs a year. An empty list
    gives forecasts dates only."""

    series: str | None = None
    """Column that names the series of each row. Without it, a table with one row per step is one series."""

    history: PositiveInt
    """Number of past steps that the model reads."""

    horizon: PositiveInt
    """Number of future steps that the model predicts."""

    stride: PositiveInt = 1
    """Number of steps between training windows."""

    season: Annotated[int, Ge(2), Le(MAX_COUNT)] | Literal["auto"] | None = "auto"
    """Number of steps in a season, such as 24 for hourly values with a daily pattern: the seasonal naive baseline
    repeats the last season. auto looks in the training data for the season whose repetition forecasts better than the
    last value; null means none. It does not affect training."""

    missing: Literal["refuse", "mask"] = "refuse"
    """How to treat missing values (empty, null or NaN): refuse stops with an error that names the first one, mask
    excludes these steps from the input and the loss. Context values must not be missing."""

    validation_steps: PositiveInt | None = None
    """Number of steps at the end of every training series, before test_steps, to hold out for validation. The model may
    read the steps before them."""

    test_steps: PositiveInt | None = None
    """Number of steps at the end of every training series to hold out for testing."""

    @property
    def value_columns(self) -> dict[str, str]:
        known = dict.fromkeys(self.targets, "targets") | dict.fromkeys(self.context, "context")
        return known | {column: key for key, column in (("date", self.date), ("series", self.series)) if column}

    @property
    def roles(self) -> tuple[str, ...]:
        return ("values", "context")

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        return ineffective if self.date is not None else {**ineffective, "calendar": "without data.date"}

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        named = [*self.targets, *self.context, *(name for name in (self.date, self.series) if name is not None)]
        for name in dict.fromkeys(named):
            if named.count(name) > 1:
                yield "targets", f'"{name}" occurs twice among targets, context, date and series.'
        for feature in dict.fromkeys(self.calendar or ()):
            if self.calendar is not None and self.calendar.count(feature) > 1:
                yield "calendar", f'"{feature}" occurs twice.'
        if isinstance(self.season, int) and self.season > self.history:
            yield (
                "season",
                f"the seasonal naive forecast repeats the last {self.season} steps, but data.history is "
                f"{self.history}. Raise data.history, or set data.season: null.",
            )
        for split in ("validation", "test"):
            yield from at_most_one(self, "data", f"{split}_size", f"{split}_steps")


class ForecastingTrain(ScheduledSamplingKeys, TrainSection):
    """Duration, batch size, optimizer and learning rate of training."""


class ForecastingEval(EvalSection[ErrorMetric]):
    """Frequency, windows and error metrics of evaluation, over the whole horizon."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("stride",)

    stride: PositiveInt | None = None
    """Number of steps between evaluated windows. By default the largest number up to data.horizon without a common
    divisor with the season, so that forecasts start at every time of the season: with a horizon and a season of 24
    steps, 23."""

    metrics: Annotated[list[ErrorMetric], MinLen(1)] = ["mse", "mae"]  # noqa: RUF012
    """Mean squared error and mean absolute error over all steps of the horizon, in the units of the data."""

    metric_for_best_model: ErrorMetric | Literal["loss"] = "mse"
    """Metric that selects the best checkpoint: one of eval.metrics, or the training loss (one-step predictions from
    true values, on standardized data)."""


# the last is the oil temperature of the ETT data sets
TARGET_NAMES = ("value", "values", "target", "y", "sales", "close", "ot")  # codespell:ignore ot
"""Usual names of a column to forecast, in lower case."""
MAX_TARGETS = 4
"""Columns of numbers up to which `kit data` suggests to forecast all."""


class ForecastingRecipe(Recipe):
    """Time series forecasting."""

    kit_types: ClassVar[tuple[str, ...]] = ("rnn_forecaster",)
    pipeline_tag: ClassVar[str] = "time-series-forecasting"
    auto_class: ClassVar[str] = "AutoModel"

    task: Literal["forecasting"]
    """Forecast time series, optionally with known covariates."""

    data: ForecastingData
    """Location, columns, history and horizon of the time series."""

    train: ForecastingTrain
    """Duration, batch size, optimizer and learning rate of training."""

    eval: ForecastingEval = ForecastingEval()
    """Frequency, windows and error metrics of evaluation."""

    @classmethod
    def suggest(cls, sample: DataSample) -> Suggestion | None:
        """Suggest forecasting for numbers, in a row for each step or in lists for each series."""
        series = next((column for column in sample.columns if column.lists_numbers and column.is_series), None)
        if series is not None:
            data = {"targets": [series.name], **sample.held_out(), **windows(min(map(len, series.values)))}
            return Suggestion(0.9, "past → future values of each series", "pendulum", data)
        date = next((column for column in sample.columns if column.is_date), None)
        named = [column for column in sample.columns if column.is_text and column.is_label and not column.is_date]
        numbers = [column for column in sample.columns if column.is_number and not column.is_id and column not in named]
        if not numbers or sample.prose or (date is None and named):
            return None
        named_target = sample.find(*TARGET_NAMES, among=numbers)
        # of a few columns without such a name, none can be preferred, and one model can learn all
        targets = [named_target or numbers[0]] if named_target or len(numbers) > MAX_TARGETS else numbers
        steps = sample.splits.get("train", 0) // (named[0].distinct if named else 1)
        data = {"targets": [target.name for target in targets], **windows(steps), "date": date.name if date else None}
        data |= {"series": named[0].name} if named else {}
        held_out = max(data["horizon"], steps // 10)
        data |= {f"{split}_steps": held_out for split in ("validation", "test") if split not in sample.splits}
        what = " and ".join(filter(None, (", ".join(data["targets"][:-1]), data["targets"][-1])))
        return Suggestion(0.9 if date else 0.6, f"past → future of {what}", "pendulum", data)


def windows(steps: int) -> dict[str, Any]:
    """The history and horizon to suggest for series of so many steps."""
    horizon = max(1, min(24, steps // 20))
    return {"history": 2 * horizon, "horizon": horizon, "stride": 1}
