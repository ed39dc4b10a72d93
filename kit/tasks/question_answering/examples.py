"""Questions as examples: the rows of a data set, and the windows of contexts that a model reads one at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from kit.data.formats.squad import SCHEMA, locate_answer
from kit.data.rows import ColumnView, to_dataset
from kit.errors import DataError, RecipeError
from kit.pipelines.question_answering import Window
from kit.tasks.families.labeling.examples import Inputs, LabeledExamples
from kit.tasks.question_answering.recipe import QuestionAnsweringData
from kit.tasks.question_answering.windows import LabeledQuestion, label_question
from kit.training.objective import Batch

SPLIT_ACROSS_WINDOWS, NOT_IN_CONTEXT = "windows", "answers"
"""Names of the filters that drop questions whose answer is in no window as a whole, or not in the text."""


@dataclass(frozen=True)
class Question:
    """A question with its context, its answers and its windows."""

    key: str
    """The id of the question."""
    question: str
    context: str
    answers: list[str]
    windows: list[Window]


@dataclass(frozen=True)
class ContextWindows(LabeledExamples):
    """Windows of contexts as examples: a model reads one at a time, with its question."""

    starts: np.ndarray
    """The first token of the answer in each window (windows,); the null token if the window does not have all of it."""
    ends: np.ndarray
    """The last token of the answer in each window (windows,), likewise."""
    questions: list[Question] = field(default_factory=list)
    """The questions of an evaluated split, in order; the windows of each follow one another."""
    tunes_threshold: bool = False
    """Whether the evaluation of this split determines the threshold of no answer."""

    def batch(self, indices: np.ndarray) -> Batch:
        batch = self.inputs.batch(indices)
        labels = {"start_positions": self.starts[indices], "end_positions": self.ends[indices]}
        return batch | {name: torch.from_numpy(positions) for name, positions in labels.items()}


@dataclass(frozen=True)
class EncodedQuestions:
    """The windows of questions, and which questions a model cannot learn from."""

    windows: ContextWindows
    kept: np.ndarray
    """Indices of the rows whose windows these are: all of an evaluated split."""
    unlearnable: Mapping[str, int]
    """Number of questions whose answer cannot be learned, by filter."""


def encode_questions(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    data: QuestionAnsweringData,
    settings: Mapping[str, int],
    split: str,
    tunes_threshold: bool = False,
) -> EncodedQuestions:
    """Divide all questions into windows. Questions whose answer cannot be learned are dropped from "train", and
    counted.

    `settings` are the arguments of the pipeline that determine windows. Raises RecipeError for a question that leaves
    no room for its context.
    """
    lists: dict[str, list[list[int]]] = {}
    starts: list[int] = []
    ends: list[int] = []
    questions: list[Question] = []
    kept: list[int] = []
    unlearnable = {SPLIT_ACROSS_WINDOWS: 0, NOT_IN_CONTEXT: 0}
    truncated = 0
    for index, row in enumerate(question_rows(rows, data, split)):
        try:
            labeled, reason = label_row(row, tokenizer, settings)
        except ValueError as error:
            raise RecipeError(f"data.max_length: {data.path}, {split}, row {index + 1}: {error}.") from None
        if reason is not None:
            unlearnable[reason] += 1
            if split == "train":
                continue
        kept.append(index)
        ids = tokenizer(row["question"], add_special_tokens=False, verbose=False)["input_ids"]
        truncated += len(ids) > settings["max_question_len"]
        for window in labeled.windows:
            for name, values in window.inputs.items():
                lists.setdefault(name, []).append(values)
        starts += labeled.starts
        ends += labeled.ends
        if split != "train":
            answers = row["answers"]["text"]
            questions.append(Question(row["id"], row["question"], row["context"], answers, labeled.windows))
    windows = ContextWindows(
        Inputs.of(lists or {"input_ids": []}, tokenizer), np.array(starts, np.int64), np.array(ends, np.int64),
        questions, tunes_threshold, truncated=truncated,
    )  # fmt: skip
    return EncodedQuestions(windows, np.array(kept, np.int64), unlearnable)


def label_row(
    row: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, settings: Mapping[str, int]
) -> tuple[LabeledQuestion, str | None]:
    """Divide a row into labeled windows; also returns the filter that drops the row if its answer cannot be learned.

    Answers are located first, because their `answer_start` may be wrong.
    """
    pairs = list(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True))
    spans = [span for text, start in pairs if (span := locate_answer(row["context"], text, start)) is not None]
    located = {"text": [text for text, _ in spans], "answer_start": [start for _, start in spans]}
    labeled = label_question({**row, "answers": located}, tokenizer, **settings)
    if pairs and not spans:
        return labeled, NOT_IN_CONTEXT
    return labeled, SPLIT_ACROSS_WINDOWS if labeled.lost else None


def question_rows(rows: Dataset, data: QuestionAnsweringData, split: str) -> Iterator[dict[str, Any]]:
    """Iterate over the rows, each with its id as text, or with its number if the data has no ids.

    Raises DataError for answers that are neither texts nor in the format of SQuAD, and for an id that occurs twice.
    """
    seen: set[str] = set()
    ids = map(str, ColumnView(rows, "id")) if data.id is not None else map(str, range(1, len(rows) + 1))
    cells = zip(ids, *(ColumnView(rows, name) for name in ("question", "context", "answers")), strict=True)
    for number, (key, question, context, cell) in enumerate(cells, start=1):
        answers = in_squad_format(cell)
        if not (isinstance(answers, dict) and isinstance(answers.get("text"), list)
                and isinstance(answers.get("answer_start"), list)
                and len(answers["text"]) == len(answers["answer_start"])):  # fmt: skip
            raise DataError(
                f"data.answers: {data.path}, {split}, row {number}: expected a text, texts, or "
                f'{{"text": […], "answer_start": […]}}, got {str(cell)[:60]}.'
            )
        if key in seen:
            raise DataError(f'data.id: {data.path}, {split}, row {number}: the id "{key}" is not unique.')
        seen.add(key)
        yield {"id": key, "question": question, "context": context, "answers": answers}


def in_squad_format(cell: Any) -> Any:
    """Convert answers that are texts, without their positions, to the format of SQuAD; anything else is returned
    unchanged."""
    texts = [cell] if isinstance(cell, str) else cell
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return cell
    present = [text for text in texts if text.strip()]
    return {"text": present, "answer_start": [0] * len(present)}


def without_answers(rows: Dataset) -> Dataset:
    """The questions and contexts of the rows, with new ids and without answers."""
    columns: dict[str, list[Any]] = {name: list(ColumnView(rows, name)) for name in ("question", "context")}
    columns |= {"id": [str(number) for number in range(len(rows))]}
    columns |= {"answers": [{"text": [], "answer_start": []}] * len(rows)}
    return to_dataset(pa.table(columns, pa.schema([SCHEMA.field(name) for name in columns])))
