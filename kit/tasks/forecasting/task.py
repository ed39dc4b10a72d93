"""Forecasting: how sequences of numbers go on.

Errors are those of predictions that the model goes on from itself, over the whole horizon, in the units of the data;
beside them stand those of the last value and of a linear autoregression on the same windows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForTimeSeriesPrediction, PreTrainedConfig, PreTrainedModel

from kit.cards.markdown import code
from kit.cards.tables import figures_of
from kit.data.batching.plan import BatchPlan, Plan
from kit.data.builder import SplitBuilder, Splits
from kit.data.sources import SPLITS, read_splits
from kit.data.steps import RowSteps
from kit.data.text.tokenizer import NoTokenizers, Tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.prediction.rows import PredictOptions
from kit.pretrained.loading import ModelFolder, export_model, load_config, load_model
from kit.recipe.model_settings import config_class
from kit.system.files import read_json
from kit.tasks.base import Encoded, MakeBatch, Task, TextTokens, TokenView
from kit.tasks.forecasting.baselines import LinearAutoregression, best_autoregression, persistence
from kit.tasks.forecasting.inference import SETTINGS, Forecaster, value_names
from kit.tasks.forecasting.objective import ForecastObjective
from kit.tasks.forecasting.plots import draw_errors, draw_forecast
from kit.tasks.forecasting.proofs import PROOFS
from kit.tasks.forecasting.recipe import ForecastingRecipe
from kit.tasks.forecasting.series import Array, Windows, as_rows, from_rows, read_series, windows_of
from kit.tasks.forecasting.splits import hold_out_series
from kit.training.objective import Batch, Objective, SamplingSchedule
from kit.verify.learning import MICRO_BATCHES
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject


class Forecasting(Task[Windows]):
    """What a recipe of this task does at each station on the way of the data."""

    card_template: ClassVar[str] = "forecasting"
    proofs: ClassVar[Sequence[Proof]] = PROOFS
    recipe: ForecastingRecipe

    command: ClassVar[Literal["generate", "predict", "embed"]] = "predict"

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        return config.model_type in ForecastingRecipe.kit_types

    @classmethod
    def predictor(cls, folder: ModelFolder, options: PredictOptions) -> Forecaster:
        return Forecaster(folder, options)

    training_windows: Windows | None = None
    """Once the training data is encoded: what a new model is as wide as, and takes its normalization from."""
    linear: LinearAutoregression | None = None
    """The autoregression to compare with, once it is fitted."""

    # ---- tables → series → windows -----------------------------------------------------------------------------------

    def load(self) -> Splits:
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

    def load_tokenizers(self, folder: Path) -> Tokenizers:
        return NoTokenizers()

    def encode(self, splits: Splits, tokenizers: Tokenizers) -> Encoded[Windows]:
        data = self.recipe.data
        encoded: dict[str, Windows] = {}
        left_out: dict[str, int] = {}
        for split, rows in splits.datasets.items():
            series, needed = from_rows(rows), data.history + data.horizon
            stride = data.stride if split == "train" else data.horizon
            encoded[split], short = windows_of(series, data.history, data.horizon, stride)
            if not len(encoded[split]):
                longest = max(map(len, series))
                raise DataError(
                    f"{split} has no window of data.history + data.horizon = {needed} steps with values in both parts: "
                    f"its longest series has {longest} steps."
                )
            if split == "train":
                left_out = {"short": short}
        widths = {split: (part.value_size, part.context_size) for split, part in encoded.items()}
        if len(set(widths.values())) > 1:
            told = ", ".join(f"{split} {width[0]} + {width[1]}" for split, width in widths.items())
            raise DataError(f"the splits differ in the numbers of values + context at each step: {told}.")
        self.training_windows = encoded["train"]
        return Encoded(encoded, left_out)

    def encode_split(self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig) -> Windows:
        data = self.recipe.data
        found, _ = windows_of(from_rows(rows), data.history, data.horizon, data.horizon)
        if not len(found):
            raise DataError(f"there is no window of data.history + data.horizon = {data.history + data.horizon} steps.")
        if (found.value_size, found.context_size) != (config.value_size, config.context_size):
            raise DataError(
                f"the data has {found.value_size} values and {found.context_size} known numbers at each step, but the "
                f"model takes {config.value_size} and {config.context_size}."
            )
        return found

    def filter_name(self, name: str) -> str:
        return "data.history + data.horizon (series that are shorter)" if name == "short" else super().filter_name(name)

    def plan(self, examples: Windows, seed: int | None = None) -> BatchPlan:
        return self.plan_lengths([examples.lengths], seed)

    def batch_maker(self, encoded: Encoded[Windows], tokenizers: Tokenizers, plan: Plan) -> MakeBatch:
        examples = encoded.splits["train"]
        return lambda indices, random: examples.batch(indices)

    def token_lists(self, examples: Windows, tokenizers: Tokenizers) -> dict[str, TextTokens]:
        return {}

    def describe_batch(self, batch: Batch, tokenizers: Tokenizers) -> dict[str, TokenView]:
        return {}

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        section, train, data = self.recipe.model, self.recipe.train, self.recipe.data
        windows = self.training_windows
        assert windows is not None, "the training data is encoded before a model is built"
        torch.manual_seed(train.seed)
        sizes = {"value_size": windows.value_size, "context_size": windows.context_size}
        if section.pretrained is not None:
            config = load_config(section.pretrained, section.settings)
            if any(getattr(config, name, None) != size for name, size in sizes.items()):
                raise RecipeError(
                    f"model.pretrained: it takes {getattr(config, 'value_size', 'no')} values and "
                    f"{getattr(config, 'context_size', 'no')} known numbers at each step, but the data has "
                    f"{windows.value_size} and {windows.context_size}."
                )
            model = load_model(AutoModelForTimeSeriesPrediction, section.pretrained, section.settings)
            model.config.horizon = data.horizon
        else:
            assert section.type is not None
            kind = config_class(section.type, self.recipe.kit_types)
            config = kind(**section.settings, **sizes, horizon=data.horizon)
            model = AutoModelForTimeSeriesPrediction.from_config(config, trust_remote_code=False)
            self.fit_normalization(model, windows)
        names = {"values": data.targets, "context": data.context, "series": data.series, "history": data.history}
        setattr(model.config, SETTINGS, {**names, "missing": data.missing})
        return model.to(getattr(torch, train.dtype))

    @staticmethod
    def fit_normalization(model: Any, windows: Windows) -> None:
        """Means and spreads of the training series, each step once."""
        steps = [(one.values[one.there], one.context[: len(one)][one.there]) for one in windows.series]
        values, context = (torch.from_numpy(np.concatenate(side)).unsqueeze(0) for side in zip(*steps, strict=True))
        model.fit_normalization(values, context=context if windows.context_size else None)

    def load_model(self, place: str | Path) -> PreTrainedModel:
        return load_model(AutoModelForTimeSeriesPrediction, place)

    def objective(self, model: PreTrainedModel, plan: Plan | None = None) -> ForecastObjective:
        return ForecastObjective(model, SamplingSchedule.of(self.recipe.model, self.recipe.train))

    # ---- evaluation and what is left behind --------------------------------------------------------------------------

    def evaluate(
        self,
        objective: Objective,
        splits: Splits,
        encoded: Encoded[Windows],
        tokenizers: Tokenizers,
        split: str,
        evaluator: Evaluator,
        final: bool = True,
    ) -> Evaluation:
        assert isinstance(objective, ForecastObjective)
        windows = encoded.splits[split]
        loss, found = roll_out(objective, windows, evaluator)
        values, context = windows.arrays(np.arange(len(windows)))
        past, true = values[:, : windows.history], values[:, windows.history :]
        guesses: dict[str, Array] = {"": found}
        if final:
            linear = self.fitted_linear(splits, encoded)
            guesses["persistence"] = persistence(past, windows.horizon)
            guesses["linear"] = linear.predict(past, context, windows.horizon)
        figures: dict[str, Any] = {"loss": loss, "examples": len(windows)}
        errors = {"mse": np.square, "mae": np.abs}
        by_horizon: dict[str, list[float]] = {}
        for guess, numbers in guesses.items():
            for metric in self.recipe.eval.metrics:
                name = f"{guess}_{metric}" if guess else metric
                wrong = errors[metric](numbers - true)  # (windows, horizon, value_size)
                figures[name] = float(np.nanmean(wrong))
                by_horizon[name] = [_short(step) for step in _means(wrong, (0, 2))]
        if final:
            figures["linear_order"] = linear.order
            figures["by_horizon"] = by_horizon
            names = value_names(self.recipe.data.targets, windows.value_size)
            own = {metric: errors[metric](found - true) for metric in self.recipe.eval.metrics}
            figures["by_value"] = {
                name: {metric: float(np.nanmean(part[..., place])) for metric, part in own.items()}
                for place, name in enumerate(names)
            }
        rows = [
            {"series": windows.series[number].name, "start": start, "target": _listed(t), "prediction": _listed(p)}
            for (number, start), t, p in zip(windows.places.tolist(), true, found, strict=True)
        ]
        return Evaluation(figures, rows)

    def fitted_linear(self, splits: Splits, encoded: Encoded[Windows]) -> LinearAutoregression:
        """The autoregression of the training data; its order is chosen on validation."""
        if self.linear is None:
            data = self.recipe.data
            validation = encoded.splits.get("validation")
            if validation is None:
                rows = splits.datasets["validation"]
                validation, _ = windows_of(from_rows(rows), data.history, data.horizon, data.horizon)
            self.linear = best_autoregression(from_rows(splits.datasets["train"]), validation)
        return self.linear

    def shown(self, row: dict[str, Any]) -> str:
        pairs = zip(row["prediction"], row["target"], strict=True)
        last = list(pairs)[-1]
        told = " ".join(f"{value:.4g}" for value in last[0])
        right = " ".join("missing" if value is None else f"{value:.4g}" for value in last[1])
        return f"series {row['series']} from step {row['start']}: at the end of the horizon {told}, right is {right}"

    def export(self, folder: Path, model: PreTrainedModel, tokenizers: Tokenizers) -> None:
        export_model(folder, model, tokenizers)

    def draw(self, model_folder: Path, splits: Splits, split: str, evaluation: Evaluation, plots: Path) -> None:
        """Errors by the step of the horizon, and a forecast of the exported model: one that cannot be loaded is
        noticed."""
        data = self.recipe.data
        model: Any = self.load_model(model_folder).eval()
        windows = self.encode_split(splits.datasets[split], NoTokenizers(), model.config)
        draw_errors(evaluation.figures["by_horizon"], self.recipe.eval.metrics[0], plots / "error_by_horizon.png")
        few = np.arange(1)
        batch = windows.batch(few)
        inputs = {name: part for name, part in batch.items() if name not in ("future_values", "future_mask")}
        output = model.predict(**inputs, horizon=data.horizon)
        scales = None if output.scales is None else output.scales[0].numpy()
        names = value_names(data.targets, windows.value_size)
        draw_forecast(windows.arrays(few)[0][0], output.predictions[0].numpy(), scales, names, plots / "forecast.png")

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
        splits = self.load()
        if model_folder is None:
            windows = self.encode(splits, NoTokenizers()).splits["validation"]
            model = self.build_model(NoTokenizers())
        else:
            model = self.load_model(model_folder)
            windows = self.encode_split(splits.datasets["validation"], NoTokenizers(), model.config)
        indices = torch.arange(max(MICRO_BATCHES, min(MAX_EXAMPLES, len(windows)))) % len(windows)
        batch = {
            name: tensor.double() if tensor.is_floating_point() else tensor
            for name, tensor in windows.batch(indices.numpy()).items()
        }
        return Subject(model, batch, self.recipe.train.seed), f"{len(indices)} windows of validation"


def roll_out(objective: ForecastObjective, windows: Windows, evaluator: Evaluator) -> tuple[float, Array]:
    """The mean loss of a number after the true ones, and the predictions (windows, horizon, value_size) of the model
    that reads its own, in the order of the data."""
    objective.eval()
    model: Any = objective.model

    def compute(batch: Batch) -> tuple[list[Array], list[Tensor]]:
        inputs = {name: tensor for name, tensor in batch.items() if name not in ("future_values", "future_mask")}
        predictions = model.predict(**inputs, horizon=windows.horizon).predictions.double().cpu().numpy()
        return list(predictions), [objective.summed_loss(batch), objective.normalizers(batch)[0]]

    predictions, (loss, count) = evaluator.outputs_and_sums(windows.lengths, windows.batch, compute)
    return loss / max(count, 1), np.stack(predictions)


def _means(errors: Array, axes: tuple[int, ...]) -> Array:
    """Means of what is there; of nothing, zero."""
    real = ~np.isnan(errors)
    return np.nansum(errors, axis=axes) / np.maximum(real.sum(axis=axes), 1)


def _listed(steps: Array) -> list[list[float | None]]:
    return [[None if np.isnan(value) else _short(value) for value in step] for step in steps]


def _short(value: float) -> float:
    """With as many digits as single precision has."""
    return float(f"{value:.7g}")
