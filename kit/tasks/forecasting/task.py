"""Forecasting: time series, optionally with known covariates.

Errors are those of a rollout over the whole horizon, in which the model reads its own predictions, in the units of the
data. They are reported beside those of two baselines on the same windows: persistence and linear autoregression.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
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
from kit.cards.tables import figures_of
from kit.data.builder import SplitBuilder, Splits
from kit.data.sources import SPLITS, read_splits
from kit.data.steps import RowSteps
from kit.data.text.tokenizer import NoTokenizers, Tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.prediction.rows import PredictOptions
from kit.pretrained.export import export_model
from kit.pretrained.folder import ModelFolder, load_config
from kit.pretrained.loading import load_model
from kit.recipe.model_settings import config_class
from kit.system.files import read_json
from kit.tasks.base import BuiltModel, Encoded, Task, TaskState, TextTokens, TokenView
from kit.tasks.forecasting.baselines import LinearAutoregression, best_autoregression, persistence
from kit.tasks.forecasting.inference import SETTINGS, Forecaster, value_names
from kit.tasks.forecasting.objective import ForecastObjective, past_inputs
from kit.tasks.forecasting.plots import draw_errors, draw_forecast
from kit.tasks.forecasting.proofs import PROOFS
from kit.tasks.forecasting.recipe import ForecastingRecipe
from kit.tasks.forecasting.series import Array, Series, Windows, as_rows, from_rows, read_series, windows_of
from kit.tasks.forecasting.splits import hold_out_series
from kit.training.objective import Batch, Objective, SamplingSchedule
from kit.verify.learning import MICRO_BATCHES
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject

ERRORS: dict[str, Callable[[Array], Array]] = {"mse": np.square, "mae": np.abs}


@dataclass(frozen=True)
class ForecastingState(TaskState):
    """The state of a forecaster. A trained one without its training data has no series, and so no baseline."""

    train: Sequence[Series] = ()
    """The training series: a new model takes its normalization from them, and the baseline is fitted on them."""
    validation: Windows | None = None
    """The windows on which the order of the baseline is selected."""

    @cached_property
    def baseline(self) -> LinearAutoregression:
        """The linear autoregression of the training data; fitted when it is first used, by a final evaluation."""
        assert self.validation is not None, "the state was restored without data"
        return best_autoregression(self.train, self.validation)


class Forecasting(Task[Windows, ForecastingState]):
    """Forecasting of time series, optionally with known covariates."""

    auto_class: ClassVar[Any] = AutoModelForTimeSeriesPrediction
    card_template: ClassVar[str] = "forecasting"
    proofs: ClassVar[Sequence[Proof]] = PROOFS
    command: ClassVar[Literal["generate", "predict", "embed"]] = "predict"
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
            series = read_series(rows, data, f"{data.path}, {split}")
            if not series:
                raise DataError(f"{data.path}: the {split} split has no series.")
            builder.add(split, as_rows(series), report)
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
        """The configuration, the series of train and the windows of validation; nothing is fitted to them yet.

        Raises DataError if the splits differ in the number of values or of covariates at each step.
        """
        series = {split: from_rows(rows) for split, rows in splits.datasets.items()}
        widths = {split: (of_split[0].value_size, of_split[0].context_size) for split, of_split in series.items()}
        if len(set(widths.values())) > 1:
            sizes = ", ".join(f"{split} {values} + {context}" for split, (values, context) in widths.items())
            raise DataError(f"the splits differ in the numbers of values + context at each step: {sizes}.")
        config = self.new_config(*widths["train"])
        return ForecastingState(tokenizers, config, series["train"], self.windows(series["validation"], "validation"))

    def new_config(self, value_size: int, context_size: int) -> PreTrainedConfig:
        """The configuration of a new or pretrained model, with the horizon and the columns of the recipe.

        Raises RecipeError if a pretrained model takes another number of values or of covariates at each step.
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
            config.horizon = data.horizon
        else:
            assert section.type is not None
            kind = config_class(section.type, self.recipe.kit_types)
            config = kind(**section.settings, **sizes, horizon=data.horizon)
        columns = {"values": data.targets, "context": data.context, "series": data.series}
        setattr(config, SETTINGS, {**columns, "history": data.history, "missing": data.missing})
        return config

    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> ForecastingState:
        state = ForecastingState(NoTokenizers(), folder.config)
        if splits is None:
            return state
        series = {split: from_rows(splits.datasets[split]) for split in ("train", "validation")}
        return replace(state, train=series["train"], validation=self.windows(series["validation"], "validation"))

    def windows(self, series: list[Series], split: str) -> Windows:
        """The windows of the series of a split, which overlap in train only."""
        data = self.recipe.data
        stride = data.stride if split == "train" else data.horizon
        return windows_of(series, data.history, data.horizon, stride)

    def encode(self, rows: Dataset, state: ForecastingState, split: str) -> Encoded[Windows]:
        data, series = self.recipe.data, from_rows(rows)
        needed = data.history + data.horizon
        windows = self.windows(series, split)
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
        return Encoded(windows, {"short": too_short} if split == "train" else {})

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
            model = self.auto_class.from_config(copy.deepcopy(state.config), trust_remote_code=False)
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
        windows, data, metrics = encoded.examples, self.recipe.data, self.recipe.eval.metrics
        loss, predictions = roll_out(objective, windows, evaluator)
        values, context = windows.arrays(np.arange(len(windows)))
        past, future = values[:, : windows.history], values[:, windows.history :]
        figures: dict[str, Any] = {"loss": loss, "examples": len(windows)}
        figures |= {metric: float(np.nanmean(ERRORS[metric](predictions - future))) for metric in metrics}
        if final:
            baseline = state.baseline
            forecasts: dict[str, Array] = {
                "": predictions,
                "persistence_": persistence(past, windows.horizon),
                "linear_": baseline.predict(past, context, windows.horizon),
            }
            errors = {  # (windows, horizon, value_size) each
                f"{prefix}{metric}": ERRORS[metric](forecast - future)
                for prefix, forecast in forecasts.items()
                for metric in metrics
            }
            figures |= {name: float(np.nanmean(error)) for name, error in errors.items()}
            figures["linear_order"] = baseline.order
            figures["by_horizon"] = {
                name: [round_to_single(step) for step in masked_mean(error, (0, 2))] for name, error in errors.items()
            }
            figures["by_value"] = {
                name: {metric: float(np.nanmean(errors[metric][..., index])) for metric in metrics}
                for index, name in enumerate(value_names(data.targets, windows.value_size))
            }
        return Evaluation(
            figures,
            [
                {"series": windows.series[number].name, "start": start,
                 "target": as_lists(target), "prediction": as_lists(prediction)}
                for (number, start), target, prediction in zip(
                    windows.positions.tolist(), future, predictions, strict=True
                )
            ],
        )  # fmt: skip

    def format_prediction(self, row: dict[str, Any]) -> str:
        prediction = " ".join(f"{value:.4g}" for value in row["prediction"][-1])
        target = " ".join("missing" if value is None else f"{value:.4g}" for value in row["target"][-1])
        return f"series {row['series']} from step {row['start']}: last step {prediction}, expected {target}"

    def export(self, folder: Path, model: PreTrainedModel, state: ForecastingState) -> None:
        export_model(folder, model, state.tokenizers)

    def plots(self, model_folder: Path, splits: Splits, split: str, evaluation: Evaluation, folder: Path) -> None:
        """Errors by the step of the horizon, and a forecast of the exported model, which tests that it can be
        loaded."""
        data = self.recipe.data
        model: Any = self.load_model(model_folder).eval()
        windows = self.windows(from_rows(splits.datasets[split]), split)
        draw_errors(evaluation.figures["by_horizon"], self.recipe.eval.metrics[0], folder / "error_by_horizon.png")
        first = np.arange(1)
        output = model.predict(**past_inputs(windows.batch(first)), horizon=data.horizon)
        scales = None if output.scales is None else output.scales[0].numpy()
        names, values = value_names(data.targets, windows.value_size), windows.arrays(first)[0][0]
        draw_forecast(values, output.predictions[0].numpy(), scales, names, folder / "forecast.png")

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        figures = next((figures_of(results, split) for split in SPLITS if results.get(split)), {})
        config = run_folder / "model" / "config.json"
        sizes = read_json(config, "a model configuration") if config.is_file() else {}
        order = figures.get("linear_order")
        note = (
            f"Errors are in the units of the data, over all {self.recipe.data.horizon} steps of the horizon; each step "
            "is predicted from the preceding predictions."
        )
        if order is not None:
            note += (
                f" The linear autoregression reads the last {order} steps, an order that was chosen on the validation "
                "split."
            )
        return {
            "results_note": note,
            "context_columns": ", ".join(f"`{code(name)}`" for name in self.recipe.data.context),
            "history": self.recipe.data.history,
            "horizon": self.recipe.data.horizon,
            "value_size": sizes.get("value_size", len(self.recipe.data.targets)),
            "context_size": sizes.get("context_size", len(self.recipe.data.context)),
            "predicts_variance": self.recipe.model.settings.get("loss") == "gaussian",
        }

    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        splits = self.load_splits()
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


def roll_out(objective: ForecastObjective, windows: Windows, evaluator: Evaluator) -> tuple[float, Array]:
    """The mean loss of a value with teacher forcing, and the predictions (windows, horizon, value_size) of a rollout,
    in which the model reads its own predictions."""
    objective.eval()
    model: Any = objective.model

    def compute(batch: Batch) -> tuple[list[Array], list[Tensor]]:
        predictions = model.predict(**past_inputs(batch), horizon=windows.horizon).predictions.double().cpu().numpy()
        return list(predictions), [objective.summed_loss(batch), objective.normalizers(batch)[0]]

    predictions, (loss, count) = evaluator.outputs_and_sums(windows.lengths, windows.batch, compute)
    return loss / max(count, 1), np.stack(predictions)


def masked_mean(errors: Array, axes: tuple[int, ...]) -> Array:
    """The mean of the errors that are not missing; zero if all are."""
    present = ~np.isnan(errors)
    return np.nansum(errors, axis=axes) / np.maximum(present.sum(axis=axes), 1)


def as_lists(steps: Array) -> list[list[float | None]]:
    """Values (steps, value_size) for JSON; a missing one is None."""
    return [[None if np.isnan(value) else round_to_single(value) for value in step] for step in steps]


def round_to_single(value: float) -> float:
    """The value with as many digits as single precision has."""
    return float(f"{value:.7g}")
