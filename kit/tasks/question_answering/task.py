"""Extractive question answering: the span of a text that answers a question, or no answer.

Windows and the choice of answers are those of the pipeline, so that evaluation measures what users get.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

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
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import compute_metrics
from kit.pipelines.question_answering import DEFAULTS, SETTINGS, TASK, Answers, find_answers
from kit.tasks.families.labeling.evaluation import Predictions, predict_rows, predict_with_loss
from kit.tasks.families.labeling.objectives import LabelObjective, QuestionAnsweringObjective
from kit.tasks.families.labeling.task import LabelingState, LabelingTask
from kit.tasks.question_answering.examples import (
    NOT_IN_CONTEXT,
    SPLIT_ACROSS_WINDOWS,
    ContextWindows,
    Question,
    encode_questions,
    without_answers,
)
from kit.tasks.question_answering.recipe import MIN_ROOM, QuestionAnsweringRecipe
from kit.tasks.stages import Encoded
from kit.training.objective import Batch, Objective
from kit.verify.learning import cross_entropy_by_hand


class QuestionAnswering(LabelingTask[ContextWindows]):
    """Extractive question answering: the span of a context that answers a question, or no answer."""

    auto_class: ClassVar[Any] = AutoModelForQuestionAnswering
    needs_offsets: ClassVar[bool] = True
    zero_gradients: ClassVar[Mapping[str, str]] = {
        r"\bbias$": "a constant that is added to all tokens cancels in the softmax over them"
    }
    recipe: QuestionAnsweringRecipe

    @property
    def pipelines(self) -> tuple[str, ...]:
        return (TASK,)

    @property
    def predicted_names(self) -> tuple[str, ...]:
        return ("prediction", "score", "start", "end")

    @property
    def ranked_name(self) -> str:
        return "top_answers"

    # ---- data --------------------------------------------------------------------------------------------------------

    def vocabulary_texts(self, rows: Dataset) -> Iterable[str]:
        yield from dict.fromkeys(ColumnView(rows, "context"))
        yield from ColumnView(rows, "question")

    def new_config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        config = super().new_config(tokenizer)
        config.num_labels = 2  # the scores of a token as start and as end, also if a classifier had other labels
        return config

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> LabelingState:
        config = super().fit(splits, tokenizers).config
        settings = self.window_settings(tokenizers.source, config)
        # replaces the settings of a pretrained model, with its threshold
        setattr(config, SETTINGS, settings | {"max_answer_len": self.recipe.eval.max_answer_length})
        return LabelingState(tokenizers, config)

    def window_settings(self, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> dict[str, int]:
        """The arguments of the pipeline that determine windows."""
        data, limit = self.recipe.data, self.max_length(tokenizer, config)
        default = DEFAULTS["max_seq_len"]
        window = data.max_length or min(limit or default, default)
        question = data.max_question_length or min(DEFAULTS["max_question_len"], window // 2)
        if question + MIN_ROOM > window:
            raise RecipeError(
                f"data.max_question_length: {question} tokens leave no room for the text within the {window} positions "
                f"of the model. Set data.max_question_length={max(1, window // 2)}"
            )
        return {
            "max_seq_len": window,
            "doc_stride": data.doc_stride,
            "max_question_len": question,
        }

    def encode(self, rows: Dataset, state: LabelingState, split: str) -> Encoded[ContextWindows]:
        """Divide all questions into windows; questions whose answer cannot be learned are dropped from train."""
        tokenizer, data = state.tokenizers.source, self.recipe.data
        settings = self.window_settings(tokenizer, state.config)
        tunes_threshold = split == "validation" and not state.is_trained
        encoded = encode_questions(rows, tokenizer, data, settings, split, tunes_threshold)
        if split != "train":
            notes = (
                f"{split}: {count} questions kept despite {self.filter_name(reason)}"
                for reason, count in encoded.unlearnable.items()
                if count
            )
            return Encoded(encoded.windows, notes=tuple(notes))
        if not len(encoded.windows):
            raise DataError(f"data.answers: no question of {data.path} has an answer that can be learned.")
        return Encoded(encoded.windows, encoded.unlearnable, encoded.kept)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def filter_name(self, name: str) -> str:
        names = {
            SPLIT_ACROSS_WINDOWS: "the windows (no window has all of the answer)",
            NOT_IN_CONTEXT: "an answer that is not in its text",
        }
        return names.get(name) or super().filter_name(name)

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def objective(self, model: PreTrainedModel, state: LabelingState) -> QuestionAnsweringObjective:
        return QuestionAnsweringObjective(model, self.recipe.train.label_smoothing_factor)

    # ---- evaluation and results --------------------------------------------------------------------------------------

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[ContextWindows],
        state: LabelingState,
        *,
        final: bool = True,
    ) -> Evaluation:
        """The loss of windows, and metrics of answers.

        In a new run, the threshold of no answer is the best one on validation; afterwards it is that of the model.
        """
        assert isinstance(objective, QuestionAnsweringObjective)
        examples, questions = encoded.examples, encoded.examples.questions
        logits, loss = predict_with_loss(objective, examples, evaluator, unpadded)
        predictions: list[dict[str, Any]] = []
        for question, answers in zip(questions, self.answers(questions, logits), strict=True):
            text = answers.best[0]["answer"] if answers.best else ""
            predictions.append({"id": question.key, "prediction_text": text, "null_score": answers.null_score})
        references = [{"id": question.key, "answers": {"text": question.answers}} for question in questions]
        threshold = self.threshold(state.config)
        if examples.tunes_threshold and self.recipe.eval.null_threshold is None:
            tuned = compute_metrics(["squad_f1"], predictions, references)
            threshold = tuned.get("squad_f1_best_threshold")  # type: ignore[assignment]
        figures: dict[str, Any] = {"loss": loss, "examples": len(questions)}
        if examples.truncated:
            figures["truncated"] = examples.truncated
        if threshold is not None:
            figures["null_threshold"] = threshold
        scores = compute_metrics(self.recipe.eval.metrics, predictions, references, null_threshold=threshold)
        # a threshold that is the best one for the evaluated split itself would flatter the model
        figures |= {name: value for name, value in scores.items() if "_best" not in name}
        predicted = []
        for question, prediction in zip(questions, predictions, strict=True):
            no_answer = threshold is not None and prediction["null_score"] > threshold
            predicted.append(
                {"id": question.key, "question": question.question, "context": question.context,
                 "answers": question.answers, "prediction": "" if no_answer else prediction["prediction_text"],
                 "null_score": prediction["null_score"]}
            )  # fmt: skip
        settings = {**(getattr(state.config, SETTINGS, None) or {})}
        settings.pop("null_threshold", None)
        if threshold is not None:
            settings["null_threshold"] = threshold
        return Evaluation(figures, predicted, {SETTINGS: settings})

    @property
    def evaluates_alike(self) -> bool:
        return True

    def answers(self, questions: list[Question], logits: list[tuple[Tensor, Tensor]], top_k: int = 1) -> list[Answers]:
        """Choose the best answers to each question, and compute the score of no answer."""
        best, start = [], 0
        for question in questions:
            of_windows = logits[start : start + len(question.windows)]
            start += len(of_windows)
            start_logits, end_logits = (list(side) for side in zip(*of_windows, strict=True))
            best.append(
                find_answers(
                    question.context, question.windows, start_logits, end_logits, top_k,
                    max_answer_len=self.recipe.eval.max_answer_length,
                )
            )  # fmt: skip
        return best

    def predict(
        self, objective: LabelObjective, rows: Dataset, state: LabelingState, top_k: int | None = None
    ) -> Predictions:
        examples = self.encode(without_answers(rows), state, "given").examples
        logits = predict_rows(objective, examples.inputs, self.recipe.eval.tokens_per_batch, unpadded)
        threshold = self.threshold(state.config)
        predicted = []
        for answers in self.answers(examples.questions, logits, top_k or 1):
            ranked = answers.top(top_k or 1, None, threshold)
            best = {"prediction": ranked[0]["answer"], **{name: ranked[0][name] for name in ("score", "start", "end")}}
            predicted.append(best if top_k is None else best | {self.ranked_name: ranked})
        return Predictions(predicted, examples.truncated)

    def threshold(self, config: PreTrainedConfig) -> float | None:
        """By how much the score of no answer must exceed that of the best answer for no answer to be predicted; None
        if it never is."""
        if self.recipe.eval.null_threshold is not None:
            return self.recipe.eval.null_threshold
        return (getattr(config, SETTINGS, None) or {}).get("null_threshold")

    def format_prediction(self, row: dict[str, Any]) -> str:
        expected = row["answers"][0] if row["answers"] else "(no answer)"
        predicted = row["prediction"] or "(no answer)"
        mark = "=" if row["prediction"] in (row["answers"] or [""]) else "≠"
        return f"{row['question'][:200]} → {predicted} {mark} {expected}"

    def example_texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return row["question"], row["context"]

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        first = rows[0] if rows else {}
        question, context = (quoted(first.get(name, "…")) for name in ("question", "context"))
        headings = ("question", "answers", "prediction")
        examples = [
            [row["question"], list(dict.fromkeys(row["answers"])), row["prediction"] or "(none)"] for row in rows
        ]
        note = "Exact match and F1 are out of 100."
        threshold = figures_of(results, "validation").get("null_threshold")
        if isinstance(threshold, float):
            origin = (
                "chosen on the validation split" if self.recipe.eval.null_threshold is None else "set in the recipe"
            )
            note += (
                f" A question counts as unanswerable if the score of no answer exceeds that of the best answer by more "
                f"than {threshold:.4g}, a threshold that was {origin}."
            )
        return {
            "custom_pipeline": True,
            "call": f"question={question}, context={context}",
            "tokenized": f"{question}, {context}, truncation=True",
            "results_note": note,
            "examples_split": split,
            "examples_table": table(headings, examples),
            "length_note": "It reads long texts in independent windows; an answer is always a span of the text.",
        }

    # ---- proofs ------------------------------------------------------------------------------------------------------

    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch, state: LabelingState) -> float:
        """The mean loss of the start and the end of answers, over the tokens that are not padding."""
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


def unpadded(output: dict[str, Tensor], batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """The start and end logits of the tokens of each window, without padding on either side."""
    starts, ends = (output[f"{side}_logits"].float().cpu() for side in ("start", "end"))
    real = batch["attention_mask"].bool().cpu()
    return [(starts[row][mask], ends[row][mask]) for row, mask in enumerate(real)]
