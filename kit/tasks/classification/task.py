"""Text classification: one label, several labels, or a number per text or text pair."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    Pipeline,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kit.cards.markdown import clean, quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.ragged import RaggedTokens
from kit.data.rows import ColumnView
from kit.data.shortcuts import LabeledPairs
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.errors import CONFUSIONS, LABELS, MAX_CONFUSIONS, confused_pairs, label_table
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import by_kind, compute_metrics
from kit.plots.labels import (
    label_figures,
    label_tables,
    numbers_figure,
    predicted_label_figures,
    predicted_label_tables,
    reliability_figure,
)
from kit.pretrained.folder import ModelFolder
from kit.pretrained.padding import padding_problem
from kit.tasks.classification.decision import Decision
from kit.tasks.classification.examples import LabeledTexts, tokenize_texts
from kit.tasks.classification.labels import (
    MULTI_LABEL,
    REGRESSION,
    as_list,
    class_weights,
    find_labels,
    label_array,
    label_value,
    labels_of_rows,
)
from kit.tasks.classification.recipe import ClassificationRecipe
from kit.tasks.families.labeling.evaluation import Predictions, predict_rows, predict_with_loss
from kit.tasks.families.labeling.examples import Tokenized
from kit.tasks.families.labeling.labels import THRESHOLDS, label_names, with_labels
from kit.tasks.families.labeling.objectives import ClassificationObjective, LabelObjective
from kit.tasks.families.labeling.task import LabelingState, LabelingTask
from kit.tasks.families.language_modeling.task import PLAIN
from kit.tasks.stages import Encoded, EvaluatedSplit
from kit.training.objective import Batch, Objective

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Classification(LabelingTask[LabeledTexts]):
    """Text classification: one label, several labels, or a number per text or text pair."""

    auto_class: ClassVar[Any] = AutoModelForSequenceClassification
    of_tokens: ClassVar[bool] = False
    pipeline_arguments: ClassVar[Mapping[str, Any]] = {"top_k": None, "truncation": True}
    recipe: ClassificationRecipe

    @property
    def predicted_names(self) -> tuple[str, ...]:
        return ("prediction",) if self.is_regression else ("prediction", "score")

    @property
    def ranked_name(self) -> str | None:
        return None if self.is_regression else "top_labels"

    @property
    def is_regression(self) -> bool:
        """Whether the model predicts a number."""
        return self.recipe.data.problem_type == REGRESSION

    @property
    def is_multi_label(self) -> bool:
        """Whether a text can have several labels."""
        return self.recipe.data.problem_type == MULTI_LABEL

    @property
    def columns(self) -> list[str]:
        """The columns that the model reads."""
        return ["text"] if self.recipe.data.text_pair is None else ["text", "text_pair"]

    # ---- data --------------------------------------------------------------------------------------------------------

    def vocabulary_texts(self, rows: Dataset) -> Iterable[str]:
        for column in self.columns:
            yield from ColumnView(rows, column)

    def new_config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        config = super().new_config(tokenizer)
        if problem := padding_problem(config):
            raise RecipeError(f"model.{'type' if self.recipe.model.pretrained is None else 'pretrained'}: {problem}.")
        config.problem_type = self.recipe.data.problem_type
        if self.is_regression:
            config.num_labels = 1
        return config

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> LabelingState:
        state = super().fit(splits, tokenizers)
        if self.is_regression:
            return state
        train = splits.datasets["train"]
        labels = find_labels(train, self.recipe)
        state = replace(state, config=with_labels(state.config, labels), labels=tuple(labels))
        return replace(state, class_weights=self.class_weights(train, state))

    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> LabelingState:
        state = super().restore(folder, splits)
        if self.is_regression:
            return state
        state = replace(state, labels=label_names(state.config))
        if splits is None or "train" not in splits.datasets:  # only the training loss is weighted
            return state
        return replace(state, class_weights=self.class_weights(splits.datasets["train"], state))

    def class_weights(self, train: Dataset, state: LabelingState) -> tuple[float, ...] | None:
        """The weight of each label in the training loss; None if all count the same."""
        data = self.recipe.data
        if data.truncation == "do_not_truncate" and "balanced" in (data.class_weights, data.pos_weight):
            train = train.select(np.flatnonzero(~self.tokenize(train, state).too_long))
        return class_weights(train, state.labels, data)

    def encode(self, rows: Dataset, state: LabelingState, split: str) -> Encoded[LabeledTexts]:
        data, tokenized = self.recipe.data, self.tokenize(rows, state)
        inputs, too_long = tokenized.inputs, tokenized.too_long
        labels = label_array(rows, state.labels, data, split)
        if split != "train" or data.truncation != "do_not_truncate" or not too_long.any():
            tunes = split == "validation" and not state.is_trained and self.is_multi_label
            return Encoded(LabeledTexts(inputs, labels, tunes, truncated=int(too_long.sum())))
        kept = np.flatnonzero(~too_long)
        if not len(kept):
            raise DataError("data.max_length: no training example is short enough.")
        return Encoded(LabeledTexts(inputs.select(kept), labels[kept]), {"max_length": int(too_long.sum())}, kept)

    def tokenize(self, rows: Dataset, state: LabelingState) -> Tokenized:
        """Tokenize the texts of the rows, truncated to what the model can read."""
        tokenizer = state.tokenizers.source
        limit = self.max_length(tokenizer, state.config)
        return tokenize_texts(rows, self.columns, tokenizer, limit, self.recipe.data.truncation)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def describe_labels(self, batch: Batch, state: LabelingState) -> dict[str, list[str]]:
        labels = (label_value(label, state.labels, self.recipe.data) for label in batch["labels"].numpy())
        return {"label": [", ".join(label) if isinstance(label, list) else str(label) for label in labels]}

    def count_labels(self, rows: Dataset) -> dict[str, int]:
        if self.is_regression:
            return {}
        names = labels_of_rows(rows, self.recipe.data, "data")
        return dict(Counter(name for row in names for name in row).most_common())

    def labeled_pairs(self, rows: Dataset, examples: LabeledTexts, state: LabelingState) -> LabeledPairs | None:
        if len(self.columns) < 2 or self.is_regression or self.is_multi_label:
            return None
        tokenizer, labels = state.tokenizers.source, label_array(rows, state.labels, self.recipe.data, "train")
        first, second = (
            RaggedTokens(tokenizer(list(ColumnView(rows, column)), **PLAIN)["input_ids"]) for column in self.columns
        )
        return LabeledPairs(first, second, labels, state.labels, ("text", "text_pair"), tokenizer)

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def objective(self, model: PreTrainedModel, state: LabelingState) -> ClassificationObjective:
        smoothing = self.recipe.train.label_smoothing_factor
        return ClassificationObjective(model, self.recipe.data.problem_type, state.class_weights, smoothing)

    # ---- evaluation and results --------------------------------------------------------------------------------------

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[LabeledTexts],
        state: LabelingState,
        *,
        final: bool = True,
    ) -> Evaluation:
        """Loss, metrics and predictions. The loss does not count class weights, so that it compares with that of any
        recipe."""
        assert isinstance(objective, ClassificationObjective)
        examples, section = encoded.examples, self.recipe.eval
        outputs, loss = predict_with_loss(objective, examples, evaluator, logits_of)
        logits = np.stack(outputs)
        figures: dict[str, Any] = {"loss": loss, "examples": len(examples)}
        if examples.truncated:
            figures["truncated"] = examples.truncated
        decision, updates = Decision.of(self.recipe, state.labels, state.config), dict[str, Any]()
        if examples.tunes_thresholds and section.label_threshold is None:
            decision = decision.tuned(logits, examples.labels)
            updates = {THRESHOLDS: decision.thresholds.tolist()}
        labels: list[Any] = [label_value(label, state.labels, self.recipe.data) for label in examples.labels]
        texts = zip(*(ColumnView(rows, column) for column in self.columns), strict=True)
        predicted = [
            {**dict(zip(self.columns, text, strict=True)), "label": label, **prediction}
            for text, label, prediction in zip(texts, labels, decision.predictions(logits), strict=True)
        ]
        predictions = [row["prediction"] for row in predicted]
        for kind, metrics in by_kind(section.metrics).items():
            options: dict[str, Any] = {}
            if kind != "numbers":
                options = {"labels": list(state.labels) or None, "positive": section.positive_label}
            scored = decision.scores(logits).tolist() if kind == "scores" else predictions
            figures |= compute_metrics(metrics, scored, labels, **options)
        if final and not self.is_regression:
            figures[LABELS] = label_table(*([as_list(label) for label in side] for side in (labels, predictions)))
            if not self.is_multi_label:
                figures[CONFUSIONS] = [list(pair) for pair in confused_pairs(labels, predictions)[:MAX_CONFUSIONS]]
        return Evaluation(figures, predicted, updates)

    @property
    def evaluates_alike(self) -> bool:
        return self.is_regression  # classes have figures by label at the end

    def predict(
        self, objective: LabelObjective, rows: Dataset, state: LabelingState, top_k: int | None = None
    ) -> Predictions:
        tokenized, decision = self.tokenize(rows, state), Decision.of(self.recipe, state.labels, state.config)
        outputs = predict_rows(objective, tokenized.inputs, self.recipe.eval.tokens_per_batch, logits_of)
        logits = np.stack(outputs)
        predicted = decision.predictions(logits)
        if top_k is not None and self.ranked_name is not None:
            ranked = decision.ranked(logits, top_k)
            predicted = [row | {self.ranked_name: best} for row, best in zip(predicted, ranked, strict=True)]
        return Predictions(predicted, int(tokenized.too_long.sum()))

    def format_prediction(self, row: dict[str, Any]) -> str:
        text = " | ".join(row[column] for column in self.columns)[:200]
        prediction, label = row["prediction"], row["label"]
        if isinstance(label, float):
            return f"{text} → {prediction:.4g}, expected {label:.4g}"
        names = [", ".join(as_list(value)) for value in (prediction, label)]
        return f"{text} → {names[0]} {'=' if prediction == label else '≠'} {names[1]}"

    def figures(self, evaluated: EvaluatedSplit) -> "dict[str, Figure]":
        """Predicted over true numbers, or the errors by label; with one label per example, also the confusions and the
        reliability of scores."""
        rows = evaluated.predictions
        true, predicted = [row["label"] for row in rows], [row["prediction"] for row in rows]
        if self.is_regression:
            return {"predictions": numbers_figure(true, predicted)}
        if self.is_multi_label:
            return label_figures(true, predicted)
        scores = [(row["score"], row["label"] == row["prediction"]) for row in rows]
        return {**predicted_label_figures(true, predicted), "reliability": reliability_figure(scores)}

    def tables(self, evaluated: EvaluatedSplit) -> dict[str, str]:
        rows = evaluated.predictions
        true, predicted = [row["label"] for row in rows], [row["prediction"] for row in rows]
        if self.is_regression:
            return {}
        return label_tables(true, predicted) if self.is_multi_label else predicted_label_tables(true, predicted)

    @property
    def training_only(self) -> Mapping[str, bool]:
        data = self.recipe.data
        return {**super().training_only, "class weights": bool(data.class_weights or data.pos_weight)}

    def example_texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(row[column] for column in self.columns)

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        first = rows[0] if rows else {}
        texts = {column: clean(first.get(column, "…")) for column in self.columns}
        example = quoted(texts["text"]) if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)
        headings = (*self.columns, "label", "prediction")
        examples = [[row[heading] for heading in headings] for row in rows]
        return {
            "call": f"{example}, truncation=True",
            "tokenized": ", ".join([*map(quoted, texts.values()), "truncation=True"]),
            "results_note": "Metrics are out of 1, except the loss and the squared error.",
            "examples_split": split,
            "examples_table": table(headings, examples),
        }

    # ---- proofs ------------------------------------------------------------------------------------------------------

    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch, state: LabelingState) -> float:
        smoothing, total, count = self.recipe.train.label_smoothing_factor, 0.0, 0.0
        for scores, label in zip(output["logits"].tolist(), batch["labels"].tolist(), strict=True):
            weights: Sequence[float] = state.class_weights or [1.0] * len(scores)
            if self.is_regression:
                total, count = total + (scores[0] - label) ** 2, count + 1
            elif self.is_multi_label:
                for score, present, weight in zip(scores, label, weights, strict=True):
                    sign, weight = (1, weight) if present else (-1, 1.0)
                    total, count = total + weight * math.log1p(math.exp(-sign * score)), count + 1
            else:
                log_sum = math.log(math.fsum(map(math.exp, scores)))
                losses = [weight * (log_sum - score) for weight, score in zip(weights, scores, strict=True)]
                total += (1 - smoothing) * losses[label] + smoothing * math.fsum(losses) / len(losses)
                count += weights[label]
        return total / count

    def pipeline_prediction(self, pipe: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
        scores = {item["label"]: item["score"] for item in pipe({name: row[name] for name in self.columns})}
        labels = label_names(pipe.model.config)
        decision = Decision.of(self.recipe, labels, pipe.model.config)
        return decision.decide(np.array([scores[label] for label in labels]))


def logits_of(output: dict[str, Tensor], batch: Batch) -> list[np.ndarray]:
    """The logits of each example."""
    return list(output["logits"].cpu().numpy().astype(np.float64))
