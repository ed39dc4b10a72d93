"""Forecasting: time series, optionally with known covariates.

Errors are those of a rollout over the whole horizon, in which the model reads its own predictions, in the units of the
data. They are reported beside those of baselines on the same windows: the last value, the last season, a linear
autoregression, and a linear regression for each step of the horizon.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForTimeSeriesPrediction, PreTrainedConfig, PreTrainedModel

from kit.cards.markdown import code
from kit.cards.tables import SPLITS, figures_of
from kit.data.builder import SplitBuilder, Splits
from kit.data.sources import read_splits
from kit.data.steps import RowSteps
from kit.data.text.tokenizer import NoTokenizers, Tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.prediction.rows import PredictOptions
from kit.pretrained.export import export_model
from kit.pretrained.folder import ModelFolder, load_config
from kit.pretrained.loading import BuiltModel, build_from_config, load_model
from kit.recipe.model_settings import config_class
from kit.system.files import read_json
from kit.tasks.base import Encoded, Task, TaskState, TextTokens, TokenView
from kit.tasks.forecasting.dates import Step, complete_cycles
from kit.tasks.forecasting.evaluation import (
    Baselines,
    as_lists,
    compared_errors,
    coverage,
    mean_errors,
    rounded_means,
)
from kit.tasks.forecasting.inference import SETTINGS, Forecaster, value_names
from kit.tasks.forecasting.objective import ForecastObjective, past_inputs
from kit.tasks.forecasting.plots import draw_errors, draw_forecast
from kit.tasks.forecasting.proofs import PROOFS
from kit.tasks.forecasting.recipe import Feature, ForecastingRecipe
from kit.tasks.forecasting.season import find_season, stride_across
from kit.tasks.forecasting.series import Array, Series, Windows, as_rows, from_rows, read_series, windows_of
from kit.tasks.forecasting.splits import hold_out_series
from kit.training.objective import Batch, Objective, SamplingSchedule
from kit.verify.learning import MICRO_BATCHES
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject


@dataclass(frozen=True)
class ForecastingState(TaskState):
    """The state of a forecaster. A trained one without its training data has no series, and so no baselines."""

    train: Sequence[Series] = ()
    """The training series: a new model takes its normalization from them, and the baselines are fitted on them."""
    validation: Windows | None = None
    """The windows on which the settings of the baselines are selected."""
    season: int | None = None
    """Number of steps in a season; None without one."""

    @property
    def features(self) -> list[Feature]:
        """The calendar features that the model reads."""
        return getattr(self.config, SETTINGS).get("calendar", [])

    @cached_property
    def baselines(self) -> Baselines:
        """The baselines of the training data; fitted when the first final evaluation asks for them."""
        assert self.validation is not None, "the state was restored without data"
        return Baselines.fit(self.train, self.validation, self.season)


class Forecasting(Task[Windows, ForecastingState]):
    """Forecasting of time series, optionally with known covariates."""

    auto_class: ClassVar[Any] = AutoModelForTimeSeriesPrediction
    card_template: ClassVar[str] = "forecasting"
    proofs: ClassVar[Sequence[Proof]] = PROOFS
    command: ClassVar[Literal["generate", "predict"]] = "predict"
    recipe: ForecastingRecipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        return config.model_type in ForecastingRecipe.kit_types

    @classmethod
    def predictor(cls, folder: ModelFolder, options: PredictOptions) -> Forecaster:
        return Forecaster(folder, options)

    # ---- tables → series → windows -----------------------------------------------------------------------------------

    def load_splits(self) -> Splits:
        """A row for each series."""
        data = self.recipe.data
        builder = SplitBuilder(data, RowSteps(data))
        for split, (rows, report) in read_splits(data, builder.steps).items():
            with builder.collecting(split):
                series = read_series(rows, data, f"{data.path}, {split}")
                if not series:
                    raise DataError(f"{data.path}: the {split} split has no series.")
                builder.report.notes += irregular_dates(series, split)
                builder.add(split, as_rows(series), report)
        builder.check_mistakes()
        hold_out_series(builder, data)
        builder.select_training_rows()
        for split, rows in builder.datasets.items():
            lengths = [len(values) for values in rows["values"]]
            builder.report.splits[split].rows = len(rows)
            builder.report.notes.append(f"{split}: {len(rows):,} series of {min(lengths):,} to {max(lengths):,} steps")
        return builder.fingerprinted()

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        return NoTokenizers()

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> ForecastingState:
        """The configuration, the series of train, the windows of validation and the season; nothing is fitted yet.

        Raises DataError if the splits differ in the number of values or of covariates at each step.
        """
        data = self.recipe.data
        series = {split: from_rows(rows) for split, rows in splits.datasets.items()}
        features = data.calendar
        if features is None:
            features = complete_cycles([one.dates for one in series["train"] if one.dates is not None])
        series = {split: [one.with_calendar(features) for one in of_split] for split, of_split in series.items()}
        widths = {split: (of_split[0].value_size, of_split[0].context_size) for split, of_split in series.items()}
        if len(set(widths.values())) > 1:
            sizes = ", ".join(f"{split} {values} + {context}" for split, (values, context) in widths.items())
            raise DataError(f"the splits differ in the numbers of values + context at each step: {sizes}.")
        season = data.season
        if season == "auto":
            season = find_season(series["train"], max(data.history, data.horizon), data.horizon)
        steps = {str(Step.of(one.dates)) for one in series["train"] if one.dates is not None}
        found = {"calendar": features, "season": season, "step": steps.pop() if len(steps) == 1 else None}
        config = self.new_config(*widths["train"], found)
        validation = self.windows(series["validation"], "validation", season)
        return ForecastingState(tokenizers, config, series["train"], validation, season)

    def new_config(self, value_size: int, context_size: int, found: Mapping[str, Any]) -> PreTrainedConfig:
        """The configuration of a new or pretrained model, with the horizon and the columns of the recipe, and with what
        was found in the training data.

        Raises RecipeError if a pretrained model takes another number of values or of covariates at each step, or reads
        another calendar.
        """
        section, data = self.recipe.model, self.recipe.data
        sizes = {"value_size": value_size, "context_size": context_size}
        if section.pretrained is not None:
            config = load_config(section.pretrained, section.settings)
            if any(getattr(config, name, None) != size for name, size in sizes.items()):
                raise RecipeError(
                    f"model.pretrained: it takes {getattr(config, 'value_size', 'no')} values and "
                    f"{getattr(config, 'context_size', 'no')} known numbers at each step, but the data has "
                    f"{value_size} and {context_size}."
                )
            trained_on = (getattr(config, SETTINGS, None) or {}).get("calendar", [])
            if trained_on != found["calendar"]:
                raise RecipeError(
                    f"model.pretrained: it reads the calendar features {trained_on}, but here they are "
                    f"{found['calendar']}. Set data.calendar."
                )
            config.horizon = data.horizon
        else:
            assert section.type is not None
            kind = config_class(section.type, self.recipe.kit_types)
            config = kind(**section.settings, **sizes, horizon=data.horizon)
        columns = {"values": data.targets, "context": data.context, "series": data.series, "date": data.date}
        setattr(config, SETTINGS, {**columns, "history": data.history, "missing": data.missing, **found})
        return config

    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> ForecastingState:
        data, settings = self.recipe.data, getattr(folder.config, SETTINGS)
        season = settings.get("season") if data.season == "auto" else data.season
        state = ForecastingState(NoTokenizers(), folder.config, season=season)
        if data.calendar is not None and data.calendar != state.features:
            raise RecipeError(f"data.calendar: the model reads {state.features}, not {data.calendar}.")
        if splits is None:
            return state
        series = {split: self.series(rows, state) for split, rows in splits.datasets.items()}
        # other data that the model is evaluated on may be a single split
        train = series.get("train") or next(iter(series.values()))
        validation = self.windows(series.get("validation", train), "validation", season)
        return replace(state, train=train, validation=validation)

    def series(self, rows: Dataset, state: ForecastingState) -> list[Series]:
        """The series of a split, with the calendar features of the model."""
        return [one.with_calendar(state.features) for one in from_rows(rows)]

    def windows(self, series: list[Series], split: str, season: int | None) -> Windows:
        """The windows of the series of a split."""
        data = self.recipe.data
        stride = data.stride if split == "train" else self.evaluation_stride(season)
        return windows_of(series, data.history, data.horizon, stride)

    def evaluation_stride(self, season: int | None) -> int:
        return self.recipe.eval.stride or stride_across(season, self.recipe.data.horizon)

    def encode(self, rows: Dataset, state: ForecastingState, split: str) -> Encoded[Windows]:
        data, series = self.recipe.data, self.series(rows, state)
        needed = data.history + data.horizon
        windows = self.windows(series, split, state.season)
        if not len(windows):
            longest = max(map(len, series))
            raise DataError(
                f"{split} has no window of data.history + data.horizon = {needed} steps with values in both parts: "
                f"its longest series has {longest} steps."
            )
        sizes = state.config.value_size, state.config.context_size
        if (windows.value_size, windows.context_size) != sizes:
            raise DataError(
                f"the data has {windows.value_size} values and {windows.context_size} known numbers at each step, but "
                f"the model takes {sizes[0]} and {sizes[1]}."
            )
        too_short = sum(len(steps) < needed for steps in series)
        if split == "train":
            return Encoded(windows, {"short": too_short}, notes=tuple(self.season_notes(state)))
        notes = (f"{split}: {len(windows):,} windows, {self.evaluation_stride(state.season):,} steps apart",)
        return Encoded(windows, notes=notes)

    def season_notes(self, state: ForecastingState) -> Iterator[str]:
        """What the training data says about the season and the calendar."""
        data, season = self.recipe.data, state.season
        if data.date is not None:
            yield f"calendar features: {', '.join(state.features) or 'none'}"
        if season is None:
            found = "found" if data.season == "auto" else "set"
            yield f"no season was {found} (data.season): there is no seasonal naive baseline"
            return
        found = "as found in train" if data.season == "auto" else "as data.season says"
        yield f"the season is {season:,} steps, {found}"
        if season > data.history:
            yield (
                f"the season is longer than data.history ({data.history:,}): there is no seasonal naive baseline, and "
                "the model does not see a whole season"
            )
        phases = season // math.gcd(season, self.evaluation_stride(season))
        if phases < season:
            yield f"evaluated forecasts start at only {phases:,} of the {season:,} steps of the season (eval.stride)"

    def filter_name(self, name: str) -> str:
        return "data.history + data.horizon (series that are shorter)" if name == "short" else super().filter_name(name)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def token_lists(self, examples: Windows, state: ForecastingState) -> dict[str, TextTokens]:
        return {}

    def describe_batch(self, batch: Batch, state: ForecastingState) -> dict[str, TokenView]:
        return {}

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def build_model(self, state: ForecastingState) -> BuiltModel:
        section, train = self.recipe.model, self.recipe.train
        torch.manual_seed(train.seed)
        if section.pretrained is None:
            model = build_from_config(self.auto_class, copy.deepcopy(state.config), getattr(torch, train.dtype))
            fit_normalization(model, state.train)
        else:
            model = load_model(self.auto_class, section.pretrained, section.settings)
            for name in ("horizon", SETTINGS):
                setattr(model.config, name, copy.deepcopy(getattr(state.config, name)))
        return BuiltModel(model.to(getattr(torch, train.dtype)))

    def objective(self, model: PreTrainedModel, state: ForecastingState) -> ForecastObjective:
        return ForecastObjective(model, SamplingSchedule.of(self.recipe.model, self.recipe.train))

    # ---- evaluation and results --------------------------------------------------------------------------------------

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[Windows],
        state: ForecastingState,
        *,
        final: bool = True,
    ) -> Evaluation:
        """Errors of the model; a final evaluation adds those of the baselines, by step and by value."""
        assert isinstance(objective, ForecastObjective)
        windows, metrics = encoded.examples, self.recipe.eval.metrics
        loss, predictions, scales = roll_out(objective, windows, evaluator)
        future = windows.arrays(np.arange(len(windows)))[0][:, windows.history :]
        figures: dict[str, Any] = {"loss": loss, "examples": len(windows)}
        figures |= mean_errors(predictions, future, metrics)
        if final:
            names = value_names(self.recipe.data.targets, windows.value_size)
            figures |= compared_errors(predictions, windows, metrics, names, state.baselines)
        if final and scales is not None:
            covered = coverage(predictions, scales, future)
            figures |= {name: float(np.nanmean(inside)) for name, inside in covered.items()}
            figures["by_horizon"] |= {name: rounded_means(inside, (0, 2)) for name, inside in covered.items()}
        rows_of_windows = []
        for index, (number, start) in enumerate(windows.positions.tolist()):
            dates = windows.dates(index)
            row = {"series": windows.series[number].name, "start": start}
            row |= {} if dates is None else {"dates": dates}
            row |= {"target": as_lists(future[index]), "prediction": as_lists(predictions[index])}
            rows_of_windows.append(row if scales is None else row | {"scale": as_lists(scales[index])})
        return Evaluation(figures, rows_of_windows)

    def format_prediction(self, row: dict[str, Any]) -> str:
        prediction = " ".join(f"{value:.4g}" for value in row["prediction"][-1])
        target = " ".join("missing" if value is None else f"{value:.4g}" for value in row["target"][-1])
        last = f"last step ({row['dates'][-1]})" if "dates" in row else "last step"
        return f"series {row['series']} from step {row['start']}: {last} {prediction}, expected {target}"

    def export(self, folder: Path, model: PreTrainedModel, state: ForecastingState) -> None:
        export_model(folder, model, state.tokenizers)

    def plots(self, model_folder: Path, splits: Splits, split: str, evaluation: Evaluation, folder: Path) -> None:
        """Errors by the step of the horizon, and a forecast of the exported model, which tests that it can be
        loaded."""
        data = self.recipe.data
        model: Any = self.load_model(model_folder).eval()
        state = self.restore(ModelFolder.open(model_folder))
        windows = self.windows(self.series(splits.datasets[split], state), split, state.season)
        draw_errors(evaluation.figures["by_horizon"], self.recipe.eval.metrics[0], folder / "error_by_horizon.png")
        first = np.arange(1)
        output = model.predict(**past_inputs(windows.batch(first)), horizon=data.horizon)
        scales = None if output.scales is None else output.scales[0].numpy()
        names, values = value_names(data.targets, windows.value_size), windows.arrays(first)[0][0]
        number, start = windows.positions[0].tolist()
        dates = windows.series[number].part(start, start + len(values)).dates
        draw_forecast(values, output.predictions[0].numpy(), scales, names, dates, folder / "forecast.png")

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        figures = next((figures_of(results, split) for split in SPLITS if results.get(split)), {})
        config = run_folder / "model" / "config.json"
        sizes = read_json(config, "a model configuration") if config.is_file() else {}
        settings = sizes.get(SETTINGS) or {}
        note = (
            f"Errors are in the units of the data, over all {self.recipe.data.horizon} steps of the horizon; each step "
            "is predicted from the preceding predictions."
        )
        if "season" in figures:
            note += f" The seasonal naive forecast repeats the last {figures['season']} steps."
        elif "regression_order" in figures:
            note += " There is no seasonal naive forecast: no season was found or set (data.season)."
        if "regression_order" in figures:
            note += (
                f" The linear autoregression reads the last {figures['linear_order']} steps and predicts step by step; "
                f"the linear regression reads the last {figures['regression_order']} and predicts each step of the "
                "horizon directly. Their settings were selected on the validation split."
            )
        if self.predicts_variance:
            note += " Of a calibrated model, 50 % and 90 % of the values lie in the two intervals."
        return {
            "results_note": note,
            "context_columns": ", ".join(f"`{code(name)}`" for name in self.recipe.data.context),
            "history": self.recipe.data.history,
            "horizon": self.recipe.data.horizon,
            "value_size": sizes.get("value_size", len(self.recipe.data.targets)),
            "context_size": sizes.get("context_size", len(self.recipe.data.context)),
            "calendar": settings.get("calendar", []),
            "date": None if self.recipe.data.date is None else code(self.recipe.data.date),
            "predicts_variance": self.predicts_variance,
        }

    @property
    def predicts_variance(self) -> bool:
        return self.recipe.model.settings.get("loss") == "gaussian"

    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        splits = self.load_training_splits()
        model, state = self.open_model(model_folder, splits)
        windows = self.encode(splits.datasets["validation"], state, "validation").examples
        indices = torch.arange(max(MICRO_BATCHES, min(MAX_EXAMPLES, len(windows)))) % len(windows)
        batch = {
            name: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in windows.batch(indices.numpy()).items()
        }
        return Subject(model, batch, self.recipe.train.seed), f"{len(indices)} windows of validation"


def fit_normalization(model: Any, series: Sequence[Series]) -> None:
    """Set the normalization of a new model to the mean and deviation of all steps of the training series."""
    steps = [(one.values[one.present], one.context[: len(one)][one.present]) for one in series]
    values, context = (torch.from_numpy(np.concatenate(side)).unsqueeze(0) for side in zip(*steps, strict=True))
    model.fit_normalization(values, context=context if series[0].context_size else None)


def roll_out(objective: ForecastObjective, windows: Windows, evaluator: Evaluator) -> tuple[float, Array, Array | None]:
    """The mean loss of a value with teacher forcing, and the predictions and standard deviations (windows, horizon,
    value_size) of a rollout, in which the model reads its own predictions. A squared loss has no standard
    deviations."""
    objective.eval()
    model: Any = objective.model

    def compute(batch: Batch) -> tuple[list[Array], list[Tensor | float]]:
        output = model.predict(**past_inputs(batch), horizon=windows.horizon)
        parts = [part for part in (output.predictions, output.scales) if part is not None]
        # (batch, 1 or 2, horizon, …)
        numbers = np.stack([part.cpu().numpy() for part in parts], axis=1, dtype=np.float64)
        return list(numbers), [objective.summed_loss(batch), *objective.normalizers(batch)]

    outputs, (loss, count) = evaluator.outputs_and_sums(windows.lengths, windows.batch, compute)
    predictions, *scales = np.moveaxis(np.stack(outputs), 1, 0)
    return loss / max(count, 1), predictions, scales[0] if scales else None


def irregular_dates(series: Sequence[Series], split: str) -> list[str]:
    """A note if the distances between dates differ, which a model takes for equal."""
    steps = [step for one in series if one.dates is not None and (step := Step.of(one.dates)) is not None]
    irregular = sum(step.irregular for step in steps)
    notes = []
    if irregular:
        total = sum(len(one) - 1 for one in series)
        notes.append(
            f"{split}: {irregular:,} of {total:,} steps between dates are not {steps[0]}, and are treated as if they "
            "were"
        )
    if len({str(step) for step in steps}) > 1:
        notes.append(f"{split}: the series differ in their steps: {', '.join(sorted({str(step) for step in steps}))}")
    return notes
