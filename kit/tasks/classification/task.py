"""Classification: a text or a pair of texts, and its label, its labels or a number."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForSequenceClassification, Pipeline, PreTrainedConfig, PreTrainedModel

from kit.cards.markdown import clean, quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.plan import Plan
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import by_kind, compute_metrics
from kit.plots.labels import draw_confusion, draw_labels, draw_reliability
from kit.pretrained.padding import padding_problem
from kit.tasks.base import Encoded
from kit.tasks.classification.recipe import ClassificationRecipe
from kit.tasks.families.labeling.data import Inputs, LabelReader, encode_all, feature_names, in_order, numbered
from kit.tasks.families.labeling.objectives import ClassificationObjective, LabelObjective
from kit.tasks.families.labeling.task import FineTuning, Predictions, predict_rows, predict_with_loss
from kit.training.objective import Batch, Objective

MULTI = "multi_label_classification"
LIKELY = 0.5
"""Of several labels, those are predicted that have a higher probability than this, as in pipelines."""


@dataclass(frozen=True)
class Classified:
    """Encoded texts with their labels."""

    inputs: Inputs
    labels: np.ndarray
    """Of one label its number (examples), of several 1 where an example has them (examples, labels), or numbers."""
    cut: int = 0

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    def batch(self, indices: np.ndarray) -> Batch:
        return self.inputs.batch(indices) | {"labels": torch.from_numpy(self.labels[indices])}


class Classification(FineTuning[Classified]):
    """What a recipe of this task does at each station on the way of the data."""

    auto_class: ClassVar[Any] = AutoModelForSequenceClassification
    of_tokens: ClassVar[bool] = False
    pipeline_arguments: ClassVar[Mapping[str, Any]] = {"top_k": None, "truncation": True}
    recipe: ClassificationRecipe
    class_weights: Tensor | None = None

    @property
    def predicted_names(self) -> tuple[str, ...]:
        return ("prediction",) if self.recipe.data.problem_type == "regression" else ("prediction", "score")

    @property
    def columns(self) -> list[str]:
        return ["text"] if self.recipe.data.text_pair is None else ["text", "text_pair"]

    def words_to_learn(self, rows: Dataset) -> Iterable[str]:
        for column in self.columns:
            yield from ColumnView(rows, column)

    # ---- text → tokens -----------------------------------------------------------------------------------------------

    def encode(self, splits: Splits, tokenizers: Tokenizers) -> Encoded[Classified]:
        train = splits.datasets["train"]
        self.labels = self.find_labels(train)
        config = self.config(tokenizers)
        self.suit_inputs(tokenizers.source, config)
        encoded, left_out = {}, {}
        for name, rows in splits.datasets.items():
            examples, long = self.encode_rows(rows, tokenizers, config, name)
            if name == "train" and self.recipe.data.truncation == "do_not_truncate" and long.any():
                kept = np.flatnonzero(~long)
                if not len(kept):
                    raise DataError("data.max_length: no training example is short enough.")
                examples = Classified(examples.inputs.select(kept), examples.labels[kept])
                left_out["max_length"] = int(long.sum())
            encoded[name] = examples
        self.class_weights = self.find_weights(encoded["train"].labels)
        return Encoded(encoded, left_out)

    def encode_split(self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig) -> Classified:
        if self.recipe.data.problem_type != "regression":
            self.take_labels(config)
        return self.encode_rows(rows, tokenizers, config, "evaluated")[0]

    def encode_rows(
        self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig, split: str
    ) -> tuple[Classified, np.ndarray]:
        """The rows as examples, and which of them had to be cut."""
        inputs, long = self.encode_texts(rows, tokenizers, config)
        return Classified(inputs, self.label_array(rows, split), int(long.sum())), long

    def encode_texts(
        self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig
    ) -> tuple[Inputs, np.ndarray]:
        """The texts of the rows as tokens, and which of them had to be cut."""
        tokenizer = tokenizers.source
        texts = list(zip(*(ColumnView(rows, column) for column in self.columns), strict=True))
        limit = self.limit(tokenizer, config)
        found, long = encode_all(
            lambda portion, **how: tokenizer(*map(list, zip(*portion, strict=True)), **how),
            texts, limit, self.recipe.data.truncation,
        )  # fmt: skip
        names = found[0][0].keys() if found else ()
        return Inputs.of({name: [encoded[name][at] for encoded, at in found] for name in names}, tokenizer), long

    # ---- labels ------------------------------------------------------------------------------------------------------

    def reader(self, rows: Dataset, split: str) -> LabelReader:
        data = self.recipe.data
        return LabelReader(f"data.label: {data.path}, {split}", data.label_names or feature_names(rows, "label"))

    def names_of(self, rows: Dataset, split: str) -> list[list[str]]:
        """The names of the labels of each row."""
        data, reader = self.recipe.data, self.reader(rows, split)
        if data.problem_type == MULTI:
            return [reader.listed(cell, row, data.label_separator) for row, cell in numbered(rows, "label")]
        return [[reader.name(cell, row)] for row, cell in numbered(rows, "label")]

    def find_labels(self, train: Dataset) -> list[str] | None:
        """All labels there are, in the model's order. Raises DataError if there is nothing to tell apart."""
        data, metrics = self.recipe.data, self.recipe.eval.metrics
        if data.problem_type == "regression":
            return None
        told = data.label_names or feature_names(train, "label")
        names = list(told or in_order([name for names in self.names_of(train, "train") for name in names]))
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
        return self.order_of_pretrained(names)

    def label_array(self, rows: Dataset, split: str) -> np.ndarray:
        """The labels of the rows as the loss takes them."""
        if self.recipe.data.problem_type == "regression":
            reader = self.reader(rows, split)
            return np.array([reader.number(cell, row) for row, cell in numbered(rows, "label")], dtype=np.float64)
        assert self.labels is not None
        places = {name: place for place, name in enumerate(self.labels)}
        found = self.names_of(rows, split)
        for row, names in enumerate(found, start=1):
            for name in names:
                if name not in places:
                    raise DataError(
                        f'data.label: {self.recipe.data.path}, {split}, row {row}: the label "{name}" is not among '
                        "those of the training data, so that the model cannot know it. Name all labels "
                        "(data.label_names), or leave the row out."
                    )
        if self.recipe.data.problem_type != MULTI:
            return np.array([places[names[0]] for names in found], dtype=np.int64)
        array = np.zeros((len(found), len(places)), dtype=np.float32)
        for flags, names in zip(array, found, strict=True):
            flags[[places[name] for name in names]] = 1
        return array

    def find_weights(self, labels: np.ndarray) -> Tensor | None:
        """The weight of each label in the loss."""
        wanted = self.recipe.data.class_weights
        if wanted is None:
            return None
        assert self.labels is not None
        if wanted == "balanced":
            counts = np.bincount(labels, minlength=len(self.labels))
            # a label that no training example has needs no weight
            return torch.from_numpy(np.where(counts > 0, len(labels) / (len(self.labels) * np.maximum(counts, 1)), 0.0))
        for name in wanted:
            if name not in self.labels:
                raise RecipeError(f'data.class_weights: "{name}" is none of the labels ({", ".join(self.labels[:8])}).')
        return torch.tensor([float(wanted.get(name, 1.0)) for name in self.labels], dtype=torch.float64)

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        config = super().config(tokenizers)
        if problem := padding_problem(config):
            raise RecipeError(f"model.{'type' if self.recipe.model.pretrained is None else 'pretrained'}: {problem}.")
        config.problem_type = self.recipe.data.problem_type
        if config.problem_type == "regression":
            config.num_labels = 1
        return config

    def objective(self, model: PreTrainedModel, plan: Plan | None = None) -> ClassificationObjective:
        smoothing = self.recipe.train.label_smoothing_factor
        return ClassificationObjective(model, self.recipe.data.problem_type, self.class_weights, smoothing)

    # ---- evaluation and what is left behind --------------------------------------------------------------------------

    def evaluate(
        self,
        objective: Objective,
        splits: Splits,
        encoded: Encoded[Classified],
        tokenizers: Tokenizers,
        split: str,
        evaluator: Evaluator,
        final: bool = True,
    ) -> Evaluation:
        assert isinstance(objective, ClassificationObjective)
        examples, section = encoded.splits[split], self.recipe.eval
        logits, loss = predict_with_loss(objective, examples, evaluator, logits_of)
        figures: dict[str, Any] = {"loss": loss, "examples": len(examples)}
        if examples.cut:
            figures["cut"] = examples.cut
        rows = self.predictions(np.stack(logits), examples, splits.datasets[split])
        predictions, right = [row["prediction"] for row in rows], [row["label"] for row in rows]
        for kind, names in by_kind(section.metrics).items():
            told = {} if kind == "numbers" else {"labels": self.labels, "positive": section.positive_label}
            given = self.probabilities(np.stack(logits)).tolist() if kind == "scores" else predictions
            figures |= compute_metrics(names, given, right, **told)
        return Evaluation(figures, rows)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """What pipelines show: (examples, labels)"""
        tensor = torch.from_numpy(logits)
        return (tensor.sigmoid() if self.recipe.data.problem_type == MULTI else tensor.softmax(-1)).numpy()

    def predictions(self, logits: np.ndarray, examples: Classified, rows: Dataset) -> list[dict[str, Any]]:
        """A row for each example: its texts, its label, what is predicted and how surely."""
        texts = [
            dict(zip(self.columns, row, strict=True))
            for row in zip(*(ColumnView(rows, c) for c in self.columns), strict=True)
        ]
        right = [self.label_shown(label) for label in examples.labels]
        told = zip(texts, right, self.predicted(logits), strict=True)
        return [{**text, "label": label, **found} for text, label, found in told]

    def label_shown(self, label: Any) -> str | float | list[str]:
        """A label as it is shown: its name, the names of several, or the number."""
        if self.recipe.data.problem_type == "regression":
            return float(label)
        assert self.labels is not None
        if self.recipe.data.problem_type == MULTI:
            return [self.labels[place] for place in np.flatnonzero(label)]
        return self.labels[label]

    def predicted(self, logits: np.ndarray) -> list[dict[str, Any]]:
        """For each example the label that is predicted and its probability; those of several; or a number."""
        if self.recipe.data.problem_type == "regression":
            return [{"prediction": number} for number in logits[:, 0].tolist()]
        found: list[dict[str, Any]] = []
        for row in self.probabilities(logits):
            if self.recipe.data.problem_type == MULTI:
                scores: Any = row[row > LIKELY].tolist()
                found.append({"prediction": self.label_shown(row > LIKELY), "score": scores})
            else:
                best = int(row.argmax())
                found.append({"prediction": self.label_shown(best), "score": float(row[best])})
        return found

    def predict(self, objective: LabelObjective, rows: Dataset, tokenizers: Tokenizers) -> Predictions:
        config = objective.model.config
        self.take_labels(config)
        inputs, long = self.encode_texts(rows, tokenizers, config)
        logits = predict_rows(objective, inputs, self.recipe.eval.tokens_per_batch, logits_of)
        return Predictions(self.predicted(np.stack(logits)), int(long.sum()))

    def shown(self, row: dict[str, Any]) -> str:
        text = " | ".join(row[column] for column in self.columns)[:200]
        prediction, label = row["prediction"], row["label"]
        if isinstance(label, float):
            return f"{text} → {prediction:.4g}, right: {label:.4g}"
        shown = [", ".join(one) if isinstance(one, list) else one for one in (prediction, label)]
        return f"{text} → {shown[0]} {'=' if prediction == label else '≠'} {shown[1]}"

    def draw(self, model_folder: Path, splits: Splits, split: str, evaluation: Evaluation, plots: Path) -> None:
        """Which labels are taken for which, how well each is found, and whether the model is as sure as it is right."""
        if self.recipe.data.problem_type == "regression":
            return
        rows = evaluation.rows
        pairs = [(row["label"], row["prediction"]) for row in rows]
        draw_labels([(as_list(right), as_list(found)) for right, found in pairs], plots / "labels.png")
        if self.recipe.data.problem_type != MULTI:
            draw_confusion(pairs, plots / "confusion.png")
            draw_reliability(
                [(row["score"], row["label"] == row["prediction"]) for row in rows], plots / "reliability.png"
            )

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        first = rows[0] if rows else {}
        texts = {column: clean(first.get(column, "…")) for column in self.columns}
        example = quoted(texts["text"]) if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)
        headings = (*self.columns, "label", "prediction")
        examples = [[row[heading] for heading in headings] for row in rows]
        return {
            "call": f"{example}, truncation=True",
            "results_note": "Metrics are out of 1, except the loss and the squared error.",
            "examples_split": split,
            "examples_table": table(headings, examples),
        }

    def restore_weights(self, splits: Splits) -> None:
        if self.recipe.data.class_weights is not None:
            self.class_weights = self.find_weights(self.label_array(splits.datasets["train"], "train"))

    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch) -> float:
        smoothing = self.recipe.train.label_smoothing_factor
        kind, total, count = self.recipe.data.problem_type, 0.0, 0.0
        weights = None if self.class_weights is None else self.class_weights.tolist()
        for scores, label in zip(output["logits"].tolist(), batch["labels"].tolist(), strict=True):
            if kind == "regression":
                total, count = total + (scores[0] - label) ** 2, count + 1
            elif kind == MULTI:
                for score, there in zip(scores, label, strict=True):
                    sign = 1 if there else -1
                    total, count = total + math.log1p(math.exp(-sign * score)), count + 1
            else:
                each = weights or [1.0] * len(scores)
                log_sum = math.log(math.fsum(map(math.exp, scores)))
                losses = [weight * (log_sum - score) for weight, score in zip(each, scores, strict=True)]
                total += (1 - smoothing) * losses[label] + smoothing * math.fsum(losses) / len(losses)
                count += each[label]
        return total / count

    def pipeline_prediction(self, pipe: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
        scores = {item["label"]: item["score"] for item in pipe({name: row[name] for name in self.columns})}
        best = max(scores, key=lambda label: scores[label])
        if self.recipe.data.problem_type == "regression":
            return {"prediction": scores[best]}
        if self.recipe.data.problem_type == MULTI:
            likely = [label for label in self.labels or () if scores[label] > LIKELY]
            return {"prediction": likely, "score": [scores[label] for label in likely]}
        return {"prediction": best, "score": scores[best]}


def as_list(labels: str | list[str]) -> list[str]:
    """One label or several as a list."""
    return [labels] if isinstance(labels, str) else labels


def logits_of(output: dict[str, Tensor], batch: Batch) -> list[np.ndarray]:
    """The logits of each example."""
    return list(output["logits"].double().cpu().numpy())
