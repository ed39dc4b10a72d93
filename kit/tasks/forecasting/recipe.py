"""The keys of a recipe whose task is to tell how sequences of numbers go on."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import MinLen
from pydantic import PositiveInt

from kit.recipe.base import Recipe
from kit.recipe.inputs import DataSection, TokenizerSection
from kit.recipe.training import EvalSection

Metric = Literal["mse", "mae"]


class NoTokenizer(TokenizerSection):
    """There is no text, and so there is no tokenizer: leave this section out."""

    def without_effect(self) -> dict[str, str]:
        return dict.fromkeys(type(self).model_fields, "on numbers, which need no tokenizer")


class ForecastingData(DataSection):
    """The numbers: where they are, which columns are predicted and which are known, and how far to look both ways."""

    targets: Annotated[list[str], MinLen(1)] = ["values"]  # noqa: RUF012 (pydantic copies it)
    """Columns of what is measured and predicted. In a table with a row for each step a column is a number of each step;
    where a row is a whole series, it is a list of numbers, or of lists of them."""

    context: list[str] = []  # noqa: RUF012
    """Columns of what is known of each step, also of those to predict: a control, a calendar."""

    series: str | None = None
    """Column of the name of the series that a row belongs to. Without it a table with a row for each step is one
    series."""

    history: PositiveInt
    """Number of steps that the model reads."""

    horizon: PositiveInt
    """Number of steps that it predicts."""

    stride: PositiveInt = 1
    """Steps from one training window to the next. Splits that are evaluated have a window every data.horizon steps."""

    missing: Literal["refuse", "mask"] = "refuse"
    """What happens where a value is missing (empty, null or not a number): refuse says where, and stops; mask leaves
    the step out of what is read and of the loss. Context must never be missing."""

    validation_steps: PositiveInt | None = None
    """Hold out the steps at the end of every training series, so many of them, for validation; before those of
    test_steps. The model may read what is before them."""

    test_steps: PositiveInt | None = None
    """Hold out so many of the last steps of every training series for the test."""

    validation_size: PositiveInt | None = None
    """Number of training series held out for validation when the data has no such split."""

    test_size: PositiveInt | None = None
    """Number of training series held out for the test when the data has no such split."""

    drop_duplicates: bool = False
    """Leave out training series that occur before in the training data."""

    max_examples: PositiveInt | None = None
    """Use only this many training series: for a quick trial, or to study the effect of the size."""

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
                yield "targets", f'"{name}" is there twice, among targets, context and series.'
        if self.streaming:
            yield "streaming", "series are cut into windows in memory. Leave it out."
        for split in ("validation", "test"):
            if getattr(self, f"{split}_steps") is not None and getattr(self, f"{split}_size") is not None:
                yield f"{split}_steps", f"it is given beside data.{split}_size, but only one can hold."


class ForecastingEval(EvalSection):
    """Evaluation: when, and by which errors of predictions that the model reads itself, step by step."""

    metrics: Annotated[list[Metric], MinLen(1)] = ["mse", "mae"]  # type: ignore[assignment]  # noqa: RUF012
    """Mean squared and mean absolute error over all steps of the horizon, in the units of the data."""

    select_by: Metric | Literal["loss"] = "mse"
    """What makes a checkpoint the best one: one of eval.metrics, or the loss, which is that of the training: of each
    step after the true ones, in units of their spread."""


class ForecastingRecipe(Recipe):
    """Tell how sequences of numbers go on."""

    own_types: ClassVar[tuple[str, ...]] = ("rnn_forecaster",)
    pipeline_tag: ClassVar[str] = "time-series-forecasting"
    auto_class: ClassVar[str] = "AutoModel"

    task: Literal["forecasting"]
    """Tell how sequences of numbers go on, with or without other numbers that are known."""

    tokenizer: NoTokenizer = NoTokenizer()
    """There is no text: leave this section out."""

    data: ForecastingData
    """The numbers: where they are and what to use of them."""

    eval: ForecastingEval = ForecastingEval()
    """Evaluation: when, and by which errors."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for name in ("label_smoothing_factor", "normalize_by"):
            if getattr(self.train, name) != type(self.train).model_fields[name].default:
                yield f"train.{name}", "it is for tasks that write text. Leave it out."


__all__ = ["ForecastingRecipe"]
