"""Forecasting: time series, optionally with known covariates.

Errors are those of a rollout over the whole horizon, in which the model reads its own predictions, in the units of the
data. They are reported beside those of baselines on the same windows: the last value, the last season, a linear
autoregression, and a linear regression for each step of the horizon.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForTimeSeriesPrediction, PreTrainedConfig, PreTrainedModel

from kit.data.builder import Splits
from kit.data.text.tokenizer import NoTokenizers, Tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.prediction.rows import PredictOptions
from kit.pretrained.export import export_model
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import BuiltModel, build_from_config, load_model
from kit.tasks.base import Task
from kit.tasks.forecasting.card import card_sections
from kit.tasks.forecasting.dates import Step, complete_cycles
from kit.tasks.forecasting.evaluation import (
    compared_errors,
    coverage,
    mean_errors,
    prediction_rows,
    roll_out,
    rounded_means,
)
from kit.tasks.forecasting.examples import Windows, windows_of
from kit.tasks.forecasting.inference import SETTINGS, Forecaster, settings_of, value_names
from kit.tasks.forecasting.objective import ForecastObjective, past_inputs
from kit.tasks.forecasting.plots import errors_figure, forecast_figure
from kit.tasks.forecasting.proofs import PROOFS
from kit.tasks.forecasting.recipe import ForecastingRecipe
from kit.tasks.forecasting.season import find_season, stride_across
from kit.tasks.forecasting.series import Series, from_rows
from kit.tasks.forecasting.splits import load_series
from kit.tasks.forecasting.state import ForecastingState, fit_normalization, forecaster_config, season_notes
from kit.tasks.stages import Encoded, EvaluatedSplit, TokenView
from kit.training.objective import Batch, Objective, SamplingSchedule
from kit.verify.learning import MICRO_BATCHES
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    @property
    def predicts_variance(self) -> bool:
        return self.recipe.model.settings.get("loss") == "gaussian"

    # ---- data --------------------------------------------------------------------------------------------------------

    def load_splits(self) -> Splits:
        """Load a row for each series."""
        return load_series(self.recipe.data)

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        return NoTokenizers()

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> ForecastingState:
        """Find calendar features and season, and cut validation into windows; the baselines are fitted later.

        Raises DataError if the splits differ in the number of values or of covariates at each step.
        """
        data = self.recipe.data
        series = {split: from_rows(rows) for split, rows in splits.datasets.items()}
        features = data.calendar
        if features is None:
            features = complete_cycles([item.dates for item in series["train"] if item.dates is not None])
        series = {split: [item.with_calendar(features) for item in of_split] for split, of_split in series.items()}
        widths = {split: (of_split[0].value_size, of_split[0].context_size) for split, of_split in series.items()}
        if len(set(widths.values())) > 1:
            sizes = ", ".join(f"{split} {values} + {context}" for split, (values, context) in widths.items())
            raise DataError(f"the splits differ in the numbers of values + context at each step: {sizes}.")
        season = data.season
        if season == "auto":
            season = find_season(series["train"], max(data.history, data.horizon), data.horizon)
        steps = {str(Step.of(item.dates)) for item in series["train"] if item.dates is not None}
        fitted = {"calendar": features, "season": season, "step": steps.pop() if len(steps) == 1 else None}
        config = forecaster_config(self.recipe, *widths["train"], fitted)
        validation = self.windows(series["validation"], "validation", season)
        return ForecastingState(tokenizers, config, series["train"], validation, season)

    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> ForecastingState:
        data, settings = self.recipe.data, settings_of(getattr(folder.config, SETTINGS, None))
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
        """Read the series of a split, with the calendar features of the model."""
        return [item.with_calendar(state.features) for item in from_rows(rows)]

    def windows(self, series: list[Series], split: str, season: int | None) -> Windows:
        """Cut the series of a split into windows."""
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
        stride = self.evaluation_stride(state.season)
        if split != "train":
            return Encoded(windows, notes=(f"{split}: {len(windows):,} windows, {stride:,} steps apart",))
        too_short = sum(len(steps) < needed for steps in series)
        kept = np.unique(windows.positions[:, 0])
        return Encoded(windows, {"short": too_short}, kept, tuple(season_notes(state, data, stride)))

    # ---- batches -----------------------------------------------------------------------------------------------------

    def describe_batch(self, batch: Batch, state: ForecastingState) -> dict[str, TokenView]:
        return {}

    def filter_name(self, name: str) -> str:
        return "data.history + data.horizon (series that are shorter)" if name == "short" else super().filter_name(name)

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
        return Evaluation(figures, prediction_rows(windows, future, predictions, scales))

    def format_prediction(self, row: dict[str, Any]) -> str:
        prediction = " ".join(f"{value:.4g}" for value in row["prediction"][-1])
        target = " ".join("missing" if value is None else f"{value:.4g}" for value in row["target"][-1])
        last = f"last step ({row['dates'][-1]})" if "dates" in row else "last step"
        return f"series {row['series']}, window from step {row['start']}: {last} {prediction}, expected {target}"

    def export(self, folder: Path, model: PreTrainedModel, state: ForecastingState) -> None:
        export_model(folder, model, state.tokenizers)

    def figures(self, evaluated: EvaluatedSplit) -> "dict[str, Figure]":
        """Errors by the step of the horizon, and a forecast of the exported model, which tests that it can be
        loaded."""
        data = self.recipe.data
        model: Any = self.load_model(evaluated.model_folder).eval()
        state = self.restore(ModelFolder.open(evaluated.model_folder))
        windows = self.windows(self.series(evaluated.rows(), state), evaluated.split, state.season)
        first = np.arange(1)
        output = model.predict(**past_inputs(windows.batch(first)), horizon=data.horizon)
        scales = None if output.scales is None else output.scales[0].numpy()
        names, values = value_names(data.targets, windows.value_size), windows.arrays(first)[0][0]
        number, start = windows.positions[0].tolist()
        dates = windows.series[number].part(start, start + len(values)).dates
        return {
            "error_by_horizon": errors_figure(evaluated.results["by_horizon"], self.recipe.eval.metrics[0]),
            "forecast": forecast_figure(values, output.predictions[0].numpy(), scales, names, dates),
        }

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        return card_sections(self.recipe, results, run_folder, self.predicts_variance)

    # ---- proofs ------------------------------------------------------------------------------------------------------

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
