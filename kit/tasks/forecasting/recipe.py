"""The recipe of time series forecasting."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import MinLen
from pydantic import PositiveInt

from kit.recipe.base import Recipe
from kit.recipe.inputs import DataSection, TokenizerSection
from kit.recipe.training import EvalSection

Metric = Literal["mse", "mae"]


class NoTokenizer(TokenizerSection):
    """Forecasting has no text and needs no tokenizer: leave this section out."""

    def without_effect(self) -> dict[str, str]:
        return dict.fromkeys(type(self).model_fields, "on forecasting, which needs no tokenizer")


class ForecastingData(DataSection):
    """Location, columns, history and horizon of the time series."""

    targets: Annotated[list[str], MinLen(1)] = ["values"]  # noqa: RUF012 (pydantic copies it)
    """Columns of the values to predict. In a table with one row per step, a column holds one number per step; if a row
    is a whole series, it holds a list of numbers, or of lists of numbers."""

    context: list[str] = []  # noqa: RUF012
    """Columns of covariates that are known for every step, including future ones, such as a control signal or the
    calendar."""

    series: str | None = None
    """Column that names the series of each row. Without it, a table with one row per step is one series."""

    history: PositiveInt
    """Number of past steps that the model reads."""

    horizon: PositiveInt
    """Number of future steps that the model predicts."""

    stride: PositiveInt = 1
    """Number of steps between training windows. Evaluation uses a window every data.horizon steps."""

    missing: Literal["refuse", "mask"] = "refuse"
    """How to treat missing values (empty, null or NaN): refuse stops with an error that names the first one, mask
    excludes these steps from the input and the loss. Context values must not be missing."""

    validation_steps: PositiveInt | None = None
    """Number of steps at the end of every training series, before test_steps, to hold out for validation. The model may
    read the steps before them."""

    test_steps: PositiveInt | None = None
    """Number of steps at the end of every training series to hold out for testing."""

    validation_size: PositiveInt | None = None
    """Number of training series to hold out for validation if the data has no validation split."""

    test_size: PositiveInt | None = None
    """Number of training series to hold out for testing if the data has no test split."""

    drop_duplicates: bool = False
    """Drop training series that already occurred in the training data."""

    max_examples: PositiveInt | None = None
    """Maximum number of training series, for a quick trial or to study the effect of data size."""

    @property
    def text_columns(self) -> dict[str, str]:
        return {}

    @property
    def value_columns(self) -> dict[str, str]:
        known = dict.fromkeys(self.targets, "targets") | dict.fromkeys(self.context, "context")
        return known if self.series is None else {**known, self.series: "series"}

    @property
    def roles(self) -> tuple[str, ...]:
        return ("values", "context")

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        named = [*self.targets, *self.context, *([] if self.series is None else [self.series])]
        for name in dict.fromkeys(named):
            if named.count(name) > 1:
                yield "targets", f'"{name}" occurs twice among targets, context and series.'
        if self.streaming:
            yield "streaming", "series are cut into windows in memory. Leave it out."
        for split in ("validation", "test"):
            if getattr(self, f"{split}_steps") is not None and getattr(self, f"{split}_size") is not None:
                yield f"{split}_steps", f"it cannot be combined with data.{split}_size. Remove one of them."


class ForecastingEval(EvalSection):
    """Frequency and error metrics of evaluation, over the whole horizon."""

    metrics: Annotated[list[Metric], MinLen(1)] = ["mse", "mae"]  # type: ignore[assignment]  # noqa: RUF012
    """Mean squared error and mean absolute error over all steps of the horizon, in the units of the data."""

    select_by: Metric | Literal["loss"] = "mse"
    """Metric that selects the best checkpoint: one of eval.metrics, or the training loss (one-step predictions from
    true values, on standardized data)."""


class ForecastingRecipe(Recipe):
    """Time series forecasting."""

    kit_types: ClassVar[tuple[str, ...]] = ("rnn_forecaster",)
    pipeline_tag: ClassVar[str] = "time-series-forecasting"
    auto_class: ClassVar[str] = "AutoModel"

    task: Literal["forecasting"]
    """Forecast time series, optionally with known covariates."""

    tokenizer: NoTokenizer = NoTokenizer()
    """Forecasting has no text: leave this section out."""

    data: ForecastingData
    """Location, columns, history and horizon of the time series."""

    eval: ForecastingEval = ForecastingEval()
    """Frequency and error metrics of evaluation."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for name in ("label_smoothing_factor", "normalize_by"):
            if getattr(self.train, name) != type(self.train).model_fields[name].default:
                yield f"train.{name}", "it applies only to tasks that generate text. Leave it out."


__all__ = ["ForecastingRecipe"]
