"""Extractive question answering: the part of a text that answers a question, or that there is none.

Windows and the choice of answers are those of the pipeline, so that what is measured is what users get.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor
from transformers import (
    AutoModelForQuestionAnswering,
    Pipeline,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kit.cards.markdown import quoted, table
from kit.cards.tables import figures_of, predicted_rows
from kit.data.batching.plan import Plan
from kit.data.columns import note_once
from kit.data.formats.squad import SCHEMA, locate_answer
from kit.data.rows import ColumnView, to_dataset
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import compute_metrics
from kit.pipelines.question_answering import DEFAULTS, SETTINGS, TASK, Answers, Window, find_answers
from kit.tasks.base import Encoded
from kit.tasks.families.labeling.data import Inputs
from kit.tasks.families.labeling.objectives import LabelObjective, QuestionAnsweringObjective
from kit.tasks.families.labeling.task import FineTuning, Predictions, predict_rows, predict_with_loss
from kit.tasks.question_answering.recipe import QuestionAnsweringRecipe
from kit.tasks.question_answering.windows import label_question
from kit.training.objective import Batch, Objective
from kit.verify.learning import cross_entropy_by_hand

LOST, NOT_THERE = "windows", "answers"
"""Names of the filters that leave out questions whose answer no window has whole, or is not in the text."""


@dataclass(frozen=True)
class Question:
    """A question with its text and the windows that this is read in."""

    key: str
    question: str
    context: str
    answers: list[str]
    windows: list[Window]


@dataclass(frozen=True)
class Windows:
    """Windows as examples: a model reads one at a time."""

    inputs: Inputs
    starts: np.ndarray
    ends: np.ndarray
    questions: list[Question] = field(default_factory=list)
    """Of a split that is evaluated, in order; their windows follow one another."""
    cut: int = 0

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    def batch(self, indices: np.ndarray) -> Batch:
        batch = self.inputs.batch(indices)
        labels = {"start_positions": self.starts[indices], "end_positions": self.ends[indices]}
        return batch | {name: torch.from_numpy(places) for name, places in labels.items()}


class QuestionAnswering(FineTuning[Windows]):
    """What a recipe of this task does at each station on the way of the data."""

    auto_class: ClassVar[Any] = AutoModelForQuestionAnswering
    zero_gradients: ClassVar[Mapping[str, str]] = {
        r"\bbias$": "what is added to all tokens alike cancels in the softmax over them"
    }
    recipe: QuestionAnsweringRecipe
    in_training = False
    """Whether the threshold for no answer is still to be found."""

    @property
    def predicted_names(self) -> tuple[str, ...]:
        return ("prediction", "score", "start", "end")

    @property
    def pipelines(self) -> tuple[str, ...]:
        return (TASK,)

    def words_to_learn(self, rows: Dataset) -> Iterable[str]:
        yield from dict.fromkeys(ColumnView(rows, "context"))
        yield from ColumnView(rows, "question")

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().check_tokenizer(tokenizer)
        self.needs_fast(tokenizer)

    def filter_name(self, name: str) -> str:
        told = {LOST: "the windows (no window has all of the answer)", NOT_THERE: "an answer that is not in its text"}
        return told.get(name) or super().filter_name(name)

    # ---- questions → windows -----------------------------------------------------------------------------------------

    def encode(self, splits: Splits, tokenizers: Tokenizers) -> Encoded[Windows]:
        self.in_training = True
        config = self.config(tokenizers)
        self.suit_inputs(tokenizers.source, config)
        encoded: dict[str, Windows] = {}
        left_out: dict[str, int] = {}
        for name, rows in splits.datasets.items():
            encoded[name], lost = self.encode_rows(rows, tokenizers.source, config, name)
            if name == "train":
                left_out = lost
            else:
                for what, count in lost.items():
                    if count:
                        note_once(splits.report, f"{name}: {count} questions kept despite {self.filter_name(what)}")
        if not len(encoded["train"]):
            raise DataError(f"data.answers: no question of {self.recipe.data.path} has an answer that can be learned.")
        return Encoded(encoded, left_out)

    def encode_split(self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig) -> Windows:
        return self.encode_rows(rows, tokenizers.source, config, "evaluated")[0]

    def settings(self, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> dict[str, int]:
        """How texts are cut into windows, by the names of the pipeline."""
        data, limit = self.recipe.data, self.limit(tokenizer, config)
        longest = data.max_length or min(limit or DEFAULTS["max_seq_len"], DEFAULTS["max_seq_len"])
        return {
            "max_seq_len": longest,
            "doc_stride": data.doc_stride,
            "max_question_len": data.max_question_length,
        }

    def encode_rows(
        self, rows: Dataset, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, split: str
    ) -> tuple[Windows, dict[str, int]]:
        """The windows of all questions, and how many answers cannot be learned; in train those are left out."""
        how, data = self.settings(tokenizer, config), self.recipe.data
        lists: dict[str, list[list[int]]] = {}
        starts: list[int] = []
        ends: list[int] = []
        questions: list[Question] = []
        left_out = {LOST: 0, NOT_THERE: 0}
        cut = 0
        for number, row in enumerate(self.rows(rows, split), start=1):
            pairs = list(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True))
            placed = [
                place for text, start in pairs if (place := locate_answer(row["context"], text, start)) is not None
            ]
            known = {"text": [text for text, _ in placed], "answer_start": [start for _, start in placed]}
            try:
                found = label_question({**row, "answers": known}, tokenizer, **how)
            except ValueError as error:
                raise RecipeError(f"data.max_length: {data.path}, {split}, row {number}: {error}.") from None
            why = NOT_THERE if pairs and not placed else LOST if found.lost else None
            if why is not None:
                left_out[why] += 1
                if split == "train":
                    continue
            ids = tokenizer(row["question"], add_special_tokens=False, verbose=False)["input_ids"]
            cut += len(ids) > data.max_question_length
            for window, start, end in zip(found.windows, found.starts, found.ends, strict=True):
                for name, values in window.inputs.items():
                    lists.setdefault(name, []).append(values)
                starts.append(start)
                ends.append(end)
            if split != "train":
                answers = row["answers"]["text"]
                questions.append(Question(row["id"], row["question"], row["context"], answers, found.windows))
        inputs = Inputs.of(lists or {"input_ids": []}, tokenizer)
        return Windows(inputs, np.array(starts, np.int64), np.array(ends, np.int64), questions, cut), left_out

    def rows(self, rows: Dataset, split: str) -> Iterable[dict[str, Any]]:
        """The rows, with a text for an id. Raises DataError for answers that are not as SQuAD has them."""
        data = self.recipe.data
        where = f"data.answers: {data.path}, {split}"
        known: set[str] = set()
        ids = map(str, ColumnView(rows, "id")) if data.id is not None else map(str, range(1, len(rows) + 1))
        cells = zip(ids, *(ColumnView(rows, name) for name in ("question", "context", "answers")), strict=True)
        for number, (key, question, context, answers) in enumerate(cells, start=1):
            if not (isinstance(answers, dict) and isinstance(answers.get("text"), list)
                    and isinstance(answers.get("answer_start"), list)
                    and len(answers["text"]) == len(answers["answer_start"])):  # fmt: skip
                raise DataError(
                    f'{where}, row {number}: expected {{"text": […], "answer_start": […]}}, got {str(answers)[:60]}.'
                )
            if key in known:
                raise DataError(f'data.id: {data.path}, {split}, row {number}: the id "{key}" is there twice.')
            known.add(key)
            yield {"id": key, "question": question, "context": context, "answers": answers}

    # ---- loss and evaluation -----------------------------------------------------------------------------------------

    def objective(self, model: PreTrainedModel, plan: Plan | None = None) -> QuestionAnsweringObjective:
        return QuestionAnsweringObjective(model, self.recipe.train.label_smoothing_factor)

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
        """Loss of windows, and metrics of answers.

        In training the threshold for no answer is the best one on validation; after that, the one of the model.
        """
        assert isinstance(objective, QuestionAnsweringObjective)
        examples, section = encoded.splits[split], self.recipe.eval
        logits, loss = predict_with_loss(objective, examples, evaluator, unpadded)
        predictions: list[dict[str, Any]] = []
        for one, found in zip(examples.questions, self.answers(examples.questions, logits), strict=True):
            text = found.best[0]["answer"] if found.best else ""
            predictions.append({"id": one.key, "prediction_text": text, "null_score": found.null_score})
        references = [{"id": one.key, "answers": {"text": one.answers}} for one in examples.questions]
        threshold = self.threshold(objective.model.config, split, predictions, references)
        figures: dict[str, Any] = {"loss": loss, "examples": len(examples.questions)}
        if examples.cut:
            figures["cut"] = examples.cut
        if threshold is not None:
            figures["null_threshold"] = threshold
        scores = compute_metrics(section.metrics, predictions, references, null_threshold=threshold)
        # the best threshold of a split that is judged is nothing to go by
        figures |= {name: value for name, value in scores.items() if "_best" not in name}
        rows = []
        for one, given in zip(examples.questions, predictions, strict=True):
            silent = threshold is not None and given["null_score"] > threshold
            prediction = "" if silent else given["prediction_text"]
            rows.append(
                {"id": one.key, "question": one.question, "context": one.context, "answers": one.answers,
                 "prediction": prediction, "null_score": given["null_score"]}
            )  # fmt: skip
        return Evaluation(figures, rows)

    def answers(self, questions: list[Question], logits: list[tuple[torch.Tensor, torch.Tensor]]) -> list[Answers]:
        """The best answer to each question and the score of none."""
        found, at = [], 0
        for one in questions:
            own = logits[at : at + len(one.windows)]
            at += len(own)
            found.append(
                find_answers(
                    one.context, one.windows, [start for start, _ in own], [end for _, end in own],
                    max_answer_len=self.recipe.eval.max_answer_length,
                )
            )  # fmt: skip
        return found

    def predict(self, objective: LabelObjective, rows: Dataset, tokenizers: Tokenizers) -> Predictions:
        config = objective.model.config
        examples = self.encode_rows(without_answers(rows), tokenizers.source, config, "given")[0]
        logits = predict_rows(objective, examples.inputs, self.recipe.eval.tokens_per_batch, unpadded)
        threshold = self.threshold(config, "given", [], [])
        chosen = [one.chosen(1, None, threshold)[0] for one in self.answers(examples.questions, logits)]
        told = [{"prediction": one.pop("answer"), **one} for one in map(dict, chosen)]
        return Predictions(told, examples.cut)

    def threshold(
        self, config: PreTrainedConfig, split: str, predictions: list[Any], references: list[Any]
    ) -> float | None:
        """By how much the score of no answer must be higher than the best one's to be given; None if it never is."""
        given = self.recipe.eval.null_threshold
        if given is not None:
            return given
        if self.in_training and split == "validation":
            return compute_metrics(["squad_f1"], predictions, references).get("squad_f1_best_threshold")  # type: ignore[return-value]
        return (getattr(config, SETTINGS, None) or {}).get("null_threshold")

    def settle(self, model: PreTrainedModel, validation: Evaluation) -> None:
        self.tell(model.config, validation.figures.get("null_threshold"))

    def tell(self, config: PreTrainedConfig, threshold: float | None) -> None:
        """Write into the configuration how the pipeline is to cut texts and choose answers."""
        told = dict(getattr(config, SETTINGS, None) or {})
        told.pop("null_threshold", None)
        setattr(config, SETTINGS, told if threshold is None else told | {"null_threshold": threshold})

    def config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        config = super().config(tokenizers)
        how = self.settings(tokenizers.source, config) | {"max_answer_len": self.recipe.eval.max_answer_length}
        setattr(config, SETTINGS, how)  # a threshold of the pretrained model is not one of this
        return config

    def shown(self, row: dict[str, Any]) -> str:
        right = row["answers"][0] if row["answers"] else "(no answer)"
        found = row["prediction"] or "(no answer)"
        mark = "=" if row["prediction"] in (row["answers"] or [""]) else "≠"
        return f"{row['question'][:200]} → {found} {mark} {right}"

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        first = rows[0] if rows else {}
        call = f"question={quoted(first.get('question', '…'))}, context={quoted(first.get('context', '…'))}"
        headings = ("question", "answers", "prediction")
        examples = [
            [row["question"], list(dict.fromkeys(row["answers"])), row["prediction"] or "(none)"] for row in rows
        ]
        note = "Exact match and F1 are out of 100."
        threshold = figures_of(results, "validation").get("null_threshold")
        if isinstance(threshold, float):
            note += (
                f" A question counts as unanswerable if the score of no answer exceeds that of the best answer by more "
                f"than {threshold:.4g}, a threshold that was chosen on the validation split."
            )
        return {
            "custom_pipeline": True,
            "call": call,
            "results_note": note,
            "examples_split": split,
            "examples_table": table(headings, examples),
            "length_note": "It reads long texts in independent windows; an answer is always a span of the text.",
        }

    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch) -> float:
        """The mean loss of where answers start and end, among the tokens that are no padding."""
        smoothing = self.recipe.train.label_smoothing_factor
        total = 0.0
        for side in ("start", "end"):
            for row, mask in enumerate(batch["attention_mask"].bool()):
                logits = output[f"{side}_logits"][row][mask]
                position = batch[f"{side}_positions"][row]
                total += cross_entropy_by_hand(logits[None, None], position[None, None], smoothing)
        return total / (2 * len(batch["attention_mask"]))

    def pipeline_prediction(self, pipe: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
        answer = dict(pipe(question=row["question"], context=row["context"]))
        return {"prediction": answer.pop("answer"), **answer}


def unpadded(output: dict[str, torch.Tensor], batch: Batch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The logits of the tokens of each window, without padding, on whichever side that is."""
    starts, ends = (output[f"{side}_logits"].float().cpu() for side in ("start", "end"))
    real = batch["attention_mask"].bool().cpu()
    return [(starts[row][mask], ends[row][mask]) for row, mask in enumerate(real)]


def without_answers(rows: Dataset) -> Dataset:
    """The questions and texts of the rows, as if each had no answer, with new ids."""
    columns: dict[str, list[Any]] = {name: list(ColumnView(rows, name)) for name in ("question", "context")}
    columns |= {"id": [str(number) for number in range(len(rows))]}
    columns |= {"answers": [{"text": [], "answer_start": []}] * len(rows)}
    return to_dataset(pa.table(columns, pa.schema([SCHEMA.field(name) for name in columns])))
