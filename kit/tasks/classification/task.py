"""Text classification: one label, several labels, or a number per text or text pair."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from scipy.special import expit, softmax
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
from kit.plots.labels import draw_labels, draw_numbers, draw_predicted_labels, draw_reliability
from kit.pretrained.folder import ModelFolder
from kit.pretrained.padding import padding_problem
from kit.tasks.base import Encoded
from kit.tasks.classification.recipe import ClassificationRecipe
from kit.tasks.families.labeling.data import Inputs, LabelReader, encode_all, feature_names, in_order, numbered
from kit.tasks.families.labeling.objectives import ClassificationObjective, LabelObjective
from kit.tasks.families.labeling.task import (
    THRESHOLDS,
    LabelingState,
    LabelingTask,
    Predictions,
    label_names,
    predict_rows,
    predict_with_loss,
    with_labels,
)
from kit.tasks.families.language_modeling.task import PLAIN
from kit.training.objective import Batch, Objective

MULTI = "multi_label_classification"
LABEL_THRESHOLD = 0.5
"""With several labels per text, those with a higher probability are predicted, unless validation has chosen another
threshold."""


@dataclass(frozen=True)
class LabeledTexts:
    """Encoded texts with their labels."""

    inputs: Inputs
    labels: np.ndarray
    """The index of the label (examples,), 1 for each label that an example has (examples, labels), or numbers."""
    truncated: int = 0
    tunes_thresholds: bool = False
    """Whether the evaluation of this split determines the thresholds of labels."""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    def batch(self, indices: np.ndarray) -> Batch:
        labels = self.labels[indices]
        if labels.dtype == np.float64:  # which Apple GPUs do not have
            labels = labels.astype(np.float32)
        return self.inputs.batch(indices) | {"labels": torch.from_numpy(labels)}


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
    def is_regression(self) -> bool:
        """Whether the model predicts a number."""
        return self.recipe.data.problem_type == "regression"

    @property
    def columns(self) -> list[str]:
        """The columns that the model reads."""
        return ["text"] if self.recipe.data.text_pair is None else ["text", "text_pair"]

    def tokenizer_corpus(self, rows: Dataset) -> Iterable[str]:
        for column in self.columns:
            yield from ColumnView(rows, column)

    # ---- state -------------------------------------------------------------------------------------------------------

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
        labels = self.find_labels(train)
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

    def find_labels(self, train: Dataset) -> list[str]:
        """All labels, in the model's order. Raises DataError if there are too few, RecipeError if the recipe does not
        match them."""
        data, metrics = self.recipe.data, self.recipe.eval.metrics
        given = data.label_names or feature_names(train, "label")
        names = list(given or in_order([name for row in self.names_of(train, "train") for name in row]))
        if len(names) < (1 if data.problem_type == MULTI else 2):
            only = f'only the label "{names[0]}"' if names else "no labels"
            raise DataError(
                f"data.label: the training data of {data.path} has {only}, so that there is nothing to tell apart. "
                "Use other data, or name all labels (data.label_names)."
            )
        for metric in ("f1", "precision", "recall"):
            if metric in metrics and len(names) > 2:
                raise RecipeError(
                    f"eval.metrics: {metric} is for two labels, and there are {len(names)}: use {metric}_macro."
                )
        positive = self.recipe.eval.positive_label
        if positive is not None and positive not in names:
            raise RecipeError(f'eval.positive_label: "{positive}" is none of the labels ({", ".join(names[:8])}).')
        return names

    def class_weights(self, train: Dataset, state: LabelingState) -> tuple[float, ...] | None:
        """The weight of each label in the training loss; None if all count the same."""
        data, labels = self.recipe.data, state.labels
        several = data.problem_type == MULTI
        key, weights = ("pos_weight", data.pos_weight) if several else ("class_weights", data.class_weights)
        if weights is None:
            return None
        if weights == "balanced":
            if self.recipe.data.truncation == "do_not_truncate":  # balance the examples that the model learns from
                train = train.select(np.flatnonzero(~self.encode_texts(train, state)[1]))
            names = Counter(name for row in self.names_of(train, "train") for name in row)
            counts = np.array([names[label] for label in labels])
            if several:
                return tuple(np.where(counts > 0, (len(train) - counts) / np.maximum(counts, 1), 1.0).tolist())
            # a label without a training example needs no weight
            return tuple(np.where(counts > 0, len(train) / (len(labels) * np.maximum(counts, 1)), 0.0).tolist())
        for name in weights:
            if name not in labels:
                raise RecipeError(f'data.{key}: "{name}" is none of the labels ({", ".join(labels[:8])}).')
        return tuple(float(weights.get(label, 1.0)) for label in labels)

    # ---- rows → examples ---------------------------------------------------------------------------------------------

    def encode(self, rows: Dataset, state: LabelingState, split: str) -> Encoded[LabeledTexts]:
        inputs, too_long = self.encode_texts(rows, state)
        labels = self.label_array(rows, state.labels, split)
        if split != "train" or self.recipe.data.truncation != "do_not_truncate" or not too_long.any():
            tunes = split == "validation" and not state.is_trained and self.recipe.data.problem_type == MULTI
            return Encoded(LabeledTexts(inputs, labels, int(too_long.sum()), tunes))
        kept = np.flatnonzero(~too_long)
        if not len(kept):
            raise DataError("data.max_length: no training example is short enough.")
        examples = LabeledTexts(inputs.select(kept), labels[kept])
        return Encoded(examples, {"max_length": int(too_long.sum())})

    def encode_texts(self, rows: Dataset, state: LabelingState) -> tuple[Inputs, np.ndarray]:
        """The texts of the rows as tokens, and which of them were too long and are truncated."""
        tokenizer = state.tokenizers.source
        texts = list(zip(*(ColumnView(rows, column) for column in self.columns), strict=True))
        encodings, too_long, lengths = encode_all(
            lambda chunk, **options: tokenizer(*map(list, zip(*chunk, strict=True)), **options),
            texts, self.max_length(tokenizer, state.config), self.recipe.data.truncation,
        )  # fmt: skip
        names = encodings[0][0].keys() if encodings else ()
        lists = {name: [encoding[name][index] for encoding, index in encodings] for name in names}
        return Inputs.of(lists, tokenizer, lengths), too_long

    def label_reader(self, rows: Dataset, split: str) -> LabelReader:
        data = self.recipe.data
        return LabelReader.of(rows, "label", data.label_names, f"data.label: {data.path}, {split}")

    def names_of(self, rows: Dataset, split: str) -> list[list[str]]:
        """The label names of each row."""
        data, reader = self.recipe.data, self.label_reader(rows, split)
        if data.problem_type == MULTI:
            return [reader.distinct(cell, row, data.label_separator) for row, cell in numbered(rows, "label")]
        return [[reader.name(cell, row)] for row, cell in numbered(rows, "label")]

    def label_array(self, rows: Dataset, labels: Sequence[str], split: str) -> np.ndarray:
        """The labels of the rows as the loss takes them. Raises DataError for a label that the model does not know."""
        if self.is_regression:
            reader = self.label_reader(rows, split)
            return np.array([reader.number(cell, row) for row, cell in numbered(rows, "label")], dtype=np.float64)
        index = {name: number for number, name in enumerate(labels)}
        names_of_rows = self.names_of(rows, split)
        for row, names in enumerate(names_of_rows, start=1):
            for name in names:
                if name not in index:
                    raise DataError(
                        f'data.label: {self.recipe.data.path}, {split}, row {row}: the label "{name}" is not among '
                        "those of the training data, so that the model cannot know it. Name all labels "
                        "(data.label_names), or leave the row out."
                    )
        if self.recipe.data.problem_type != MULTI:
            return np.array([index[names[0]] for names in names_of_rows], dtype=np.int64)
        array = np.zeros((len(names_of_rows), len(index)), dtype=np.float32)
        for flags, names in zip(array, names_of_rows, strict=True):
            flags[[index[name] for name in names]] = 1
        return array

    def describe_labels(self, batch: Batch, state: LabelingState) -> dict[str, list[str]]:
        labels = (self.readable(label, state.labels) for label in batch["labels"].numpy())
        return {"label": [", ".join(label) if isinstance(label, list) else str(label) for label in labels]}

    def count_labels(self, rows: Dataset) -> dict[str, int]:
        if self.is_regression:
            return {}
        return dict(Counter(name for row in self.names_of(rows, "data") for name in row).most_common())

    def labeled_pairs(self, rows: Dataset, examples: LabeledTexts, state: LabelingState) -> LabeledPairs | None:
        if len(self.columns) < 2 or self.is_regression or self.recipe.data.problem_type == MULTI:
            return None
        tokenizer, labels = state.tokenizers.source, self.label_array(rows, state.labels, "train")
        first, second = (
            RaggedTokens(tokenizer(list(ColumnView(rows, column)), **PLAIN)["input_ids"]) for column in self.columns
        )
        return LabeledPairs(first, second, labels, state.labels, ("text", "text_pair"), tokenizer)

    # ---- loss, evaluation and results --------------------------------------------------------------------------------

    def objective(self, model: PreTrainedModel, state: LabelingState) -> ClassificationObjective:
        smoothing = self.recipe.train.label_smoothing_factor
        return ClassificationObjective(model, self.recipe.data.problem_type, state.class_weights, smoothing)

    @property
    def evaluates_alike(self) -> bool:
        return self.is_regression  # classes have figures by label at the end

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
        """The loss does not count class weights, so that it compares with that of any other recipe."""
        assert isinstance(objective, ClassificationObjective)
        examples, section = encoded.examples, self.recipe.eval
        outputs, loss = predict_with_loss(objective, examples, evaluator, logits_of)
        logits = np.stack(outputs)
        figures: dict[str, Any] = {"loss": loss, "examples": len(examples)}
        if examples.truncated:
            figures["truncated"] = examples.truncated
        thresholds, updates = self.thresholds(state), dict[str, Any]()
        if examples.tunes_thresholds and section.label_threshold is None:
            thresholds = best_thresholds(self.probabilities(logits), examples.labels)
            updates = {THRESHOLDS: thresholds.tolist()}
        predicted = self.prediction_rows(logits, examples, rows, state, thresholds)
        predictions, labels = [row["prediction"] for row in predicted], [row["label"] for row in predicted]
        labels_or_none = list(state.labels) or None
        for kind, metrics in by_kind(section.metrics).items():
            options: dict[str, Any] = (
                {} if kind == "numbers" else {"labels": labels_or_none, "positive": section.positive_label}
            )
            scored = self.probabilities(logits).tolist() if kind == "scores" else predictions
            figures |= compute_metrics(metrics, scored, labels, **options)
        if final and not self.is_regression:
            sides = [[as_list(label) for label in side] for side in (labels, predictions)]
            figures[LABELS] = label_table(*sides)
            if self.recipe.data.problem_type != MULTI:
                figures[CONFUSIONS] = [list(pair) for pair in confused_pairs(labels, predictions)[:MAX_CONFUSIONS]]
        return Evaluation(figures, predicted, updates)

    def thresholds(self, state: LabelingState) -> np.ndarray:
        """The probability above which each label is predicted (labels,)."""
        chosen = self.recipe.eval.label_threshold
        saved = getattr(state.config, THRESHOLDS, None) if chosen is None else None
        default = LABEL_THRESHOLD if chosen is None else chosen
        return np.full(len(state.labels), default) if saved is None else np.array(saved)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """The scores of pipelines (examples, labels)."""
        return expit(logits) if self.recipe.data.problem_type == MULTI else softmax(logits, axis=-1)

    def prediction_rows(
        self,
        logits: np.ndarray,
        examples: LabeledTexts,
        rows: Dataset,
        state: LabelingState,
        thresholds: np.ndarray,
    ) -> list[dict[str, Any]]:
        """A row for each example: its texts, its label, its prediction and the score of this."""
        texts = zip(*(ColumnView(rows, column) for column in self.columns), strict=True)
        return [
            {**dict(zip(self.columns, row, strict=True)), "label": self.readable(label, state.labels), **prediction}
            for row, label, prediction in zip(
                texts, examples.labels, self.predictions_of(logits, state.labels, thresholds), strict=True
            )
        ]

    def readable(self, label: Any, labels: Sequence[str]) -> str | float | list[str]:
        """A label for people: its name, the names of several, or the number."""
        if self.is_regression:
            return float(label)
        if self.recipe.data.problem_type == MULTI:
            return [labels[index] for index in np.flatnonzero(label).tolist()]
        return labels[int(label)]

    def predictions_of(self, logits: np.ndarray, labels: Sequence[str], thresholds: np.ndarray) -> list[dict[str, Any]]:
        """The predicted label of each example with its probability, those of several labels, or a number."""
        if self.is_regression:
            return [{"prediction": number} for number in logits[:, 0].tolist()]
        predictions: list[dict[str, Any]] = []
        for row in self.probabilities(logits):
            if self.recipe.data.problem_type == MULTI:
                chosen = row > thresholds
                predictions.append({"prediction": self.readable(chosen, labels), "score": row[chosen].tolist()})
            else:
                best = int(row.argmax())
                predictions.append({"prediction": labels[best], "score": float(row[best])})
        return predictions

    @property
    def ranked_name(self) -> str | None:
        return None if self.is_regression else "top_labels"

    def predict(
        self, objective: LabelObjective, rows: Dataset, state: LabelingState, top_k: int | None = None
    ) -> Predictions:
        inputs, too_long = self.encode_texts(rows, state)
        logits = np.stack(predict_rows(objective, inputs, self.recipe.eval.tokens_per_batch, logits_of))
        predicted = self.predictions_of(logits, state.labels, self.thresholds(state))
        if top_k is not None and self.ranked_name is not None:
            for row, scores in zip(predicted, self.probabilities(logits), strict=True):
                best = np.argsort(-scores, kind="stable")[:top_k].tolist()
                row[self.ranked_name] = [{"label": state.labels[i], "score": float(scores[i])} for i in best]
        return Predictions(predicted, int(too_long.sum()))

    def format_prediction(self, row: dict[str, Any]) -> str:
        text = " | ".join(row[column] for column in self.columns)[:200]
        prediction, label = row["prediction"], row["label"]
        if isinstance(label, float):
            return f"{text} → {prediction:.4g}, expected {label:.4g}"
        names = [", ".join(value) if isinstance(value, list) else value for value in (prediction, label)]
        return f"{text} → {names[0]} {'=' if prediction == label else '≠'} {names[1]}"

    def plots(self, model_folder: Path, splits: Splits, split: str, evaluation: Evaluation, folder: Path) -> None:
        """Predicted over true numbers; or the figures of each label and, of one label per example, the confusions and
        the reliability of the scores."""
        rows = evaluation.rows
        true, predicted = [row["label"] for row in rows], [row["prediction"] for row in rows]
        if self.is_regression:
            draw_numbers(true, predicted, folder / "predictions.png")
        elif self.recipe.data.problem_type == MULTI:
            draw_labels(true, predicted, folder)
        else:
            draw_predicted_labels(true, predicted, folder)
            scores = [(row["score"], row["label"] == row["prediction"]) for row in rows]
            draw_reliability(scores, folder / "reliability.png")

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

    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch, state: LabelingState) -> float:
        smoothing = self.recipe.train.label_smoothing_factor
        problem, total, count = self.recipe.data.problem_type, 0.0, 0.0

        def weights_of(scores: list[float]) -> Sequence[float]:
            return state.class_weights or [1.0] * len(scores)

        for scores, label in zip(output["logits"].tolist(), batch["labels"].tolist(), strict=True):
            if problem == "regression":
                total, count = total + (scores[0] - label) ** 2, count + 1
            elif problem == MULTI:
                for score, present, weight in zip(scores, label, weights_of(scores), strict=True):
                    sign, weight = (1, weight) if present else (-1, 1.0)
                    total, count = total + weight * math.log1p(math.exp(-sign * score)), count + 1
            else:
                weights = weights_of(scores)
                log_sum = math.log(math.fsum(map(math.exp, scores)))
                losses = [weight * (log_sum - score) for weight, score in zip(weights, scores, strict=True)]
                total += (1 - smoothing) * losses[label] + smoothing * math.fsum(losses) / len(losses)
                count += weights[label]
        return total / count

    def pipeline_prediction(self, pipe: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
        scores = {item["label"]: item["score"] for item in pipe({name: row[name] for name in self.columns})}
        best = max(scores, key=lambda label: scores[label])
        if self.is_regression:
            return {"prediction": scores[best]}
        if self.recipe.data.problem_type == MULTI:
            labels, saved = label_names(pipe.model.config), getattr(pipe.model.config, THRESHOLDS, None)
            fixed = self.recipe.eval.label_threshold
            if fixed is not None or saved is None:
                saved = [LABEL_THRESHOLD if fixed is None else fixed] * len(labels)
            chosen = [label for label, limit in zip(labels, saved, strict=True) if scores[label] > limit]
            return {"prediction": chosen, "score": [scores[label] for label in chosen]}
        return {"prediction": best, "score": scores[best]}


def best_thresholds(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The threshold of each label (labels,) that gives it the best F1 on examples with scores and labels (examples,
    labels), midway between two scores; the default for a label that no example has."""
    thresholds = np.full(scores.shape[1], LABEL_THRESHOLD)
    for column in np.flatnonzero(labels.any(axis=0)).tolist():
        order = np.argsort(-scores[:, column], kind="stable")
        ranked, hits = scores[order, column], np.cumsum(labels[order, column])
        f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + hits[-1])  # of predicting the label for the first n examples
        f1[:-1][ranked[:-1] == ranked[1:]] = -1  # no threshold separates equal scores
        best = int(f1.argmax())
        lowest = 0.0 if ranked[best] > 0 else -1.0
        below = ranked[best + 1] if best + 1 < len(ranked) else lowest
        thresholds[column] = (ranked[best] + below) / 2
    return thresholds


def as_list(labels: str | list[str]) -> list[str]:
    """One label or several as a list."""
    return [labels] if isinstance(labels, str) else labels


def logits_of(output: dict[str, Tensor], batch: Batch) -> list[np.ndarray]:
    """The logits of each example."""
    return list(output["logits"].cpu().numpy().astype(np.float64))
