"""The recipe of extractive question answering."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.section import MAX_COUNT, MAX_NUMBER, NonNegativeInt, PositiveInt
from kit.recipe.suggestion import Column, DataSample, Suggestion
from kit.recipe.training import EvalSection
from kit.tasks.families.labeling.recipe import LabelingData, LabelingRecipe

AnswerMetric = Annotated[Literal["squad_f1", "squad_exact_match"], or_registered("answers")]


PARTS, SHARE_OF_PARTS = 100, 0.9
"""Answers that `kit data` looks for in the contexts, and the share that must occur there."""
MIN_ROOM = 4
"""Tokens of a window beside the question: three special ones, and at least one of the text."""


class QuestionAnsweringData(LabelingData):
    """Location, columns and windows of the data."""

    text_keys: ClassVar[tuple[str, ...]] = ("context", "question")
    value_keys: ClassVar[tuple[str, ...]] = ("answers", "id")
    window_keys: ClassVar[tuple[str, ...]] = ("doc_stride", "max_question_length")
    encoding_keys: ClassVar[tuple[str, ...]] = window_keys
    prediction_keys: ClassVar[tuple[str, ...]] = (*text_keys, *window_keys)
    own_data_keys: ClassVar[tuple[str, ...]] = ("held_out_together",)

    question: str = "question"
    """Column of the question."""

    context: str = "context"
    """Column of the text that contains the answer."""

    answers: str = "answers"
    """Column of the answers, in SQuAD format: {"text": […], "answer_start": […]}, with empty lists if there is no
    answer. A text, or a list of texts, stands for its first occurrence in the context; an empty one for no answer."""

    id: str | None = "id"
    """Column of the question id, which identifies predictions; null numbers the questions."""

    held_out_together: str | None = None
    """Column whose rows data.validation_size and data.test_size hold out together, such as the title of the article; by
    default questions about the same text stay together."""

    max_length: Annotated[int, Gt(7), Le(MAX_COUNT)] | None = None
    """Number of tokens in a window: the question, and as much of the text as fits; by default 384, or the number of
    positions of the model if that is smaller."""

    doc_stride: NonNegativeInt = 128
    """Number of tokens that neighboring windows of a long text share; at most half of the tokens left for text in a
    window."""

    max_question_length: PositiveInt | None = None
    """Maximum number of tokens in a question; longer questions are truncated, and counted. By default 64, or half of
    the window if that is smaller."""

    @property
    def held_out_by(self) -> tuple[str, ...]:
        return super().held_out_by if self.held_out_together is None else (self.held_out_together,)

    @property
    def identity_roles(self) -> tuple[str, ...]:
        return tuple(role for role in self.roles if role != "id")

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if self.validation_size is None and self.test_size is None:
            ineffective["held_out_together"] = "without data.validation_size or data.test_size"
        return ineffective

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        window, question = self.max_length, self.max_question_length
        if window is not None and question is not None and question + MIN_ROOM > window:
            yield "max_question_length", f"it leaves no room for the text within data.max_length={self.max_length}."


class QuestionAnsweringEval(EvalSection[AnswerMetric]):
    """Frequency and metrics of evaluation, and choice of answers."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("max_answer_length", "null_threshold")
    prediction_keys: ClassVar[tuple[str, ...]] = evaluation_keys

    metrics: list[AnswerMetric] = []  # noqa: RUF012 (pydantic copies it)
    """Metrics computed on the answers, in addition to the loss. If some questions have no answer, those with and
    without one are also reported separately."""

    max_answer_length: PositiveInt = 30
    """Maximum number of tokens in an answer."""

    null_threshold: Annotated[float, Ge(-MAX_NUMBER), Le(MAX_NUMBER)] | None = None
    """Predict no answer if its score exceeds that of the best answer by more than this. By default the threshold that
    is best on the validation split, if that has questions without an answer; it is saved with the model."""


class QuestionAnsweringRecipe(LabelingRecipe):
    """Extractive question answering."""

    mapping: ClassVar[str | None] = "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "question-answering"
    auto_class: ClassVar[str] = "AutoModelForQuestionAnswering"
    peft_task_type: ClassVar[str | None] = "QUESTION_ANS"

    task: Literal["question_answering"]
    """Extractive question answering: find the span of a text that answers a question, or report that there is none."""

    data: QuestionAnsweringData
    """Location, columns and windows of the data."""

    eval: QuestionAnsweringEval = QuestionAnsweringEval()
    """Frequency and metrics of evaluation, and choice of answers."""

    @classmethod
    def suggest(cls, sample: DataSample) -> Suggestion | None:
        """Suggest question answering for a question, a text, and answers that are parts of it."""
        filled = [column for column in sample.columns if column.values]
        question, context = sample.find("question", "query"), sample.find("context", "passage", "paragraph", "text")
        if question is None or context is None:
            return None
        answers = next((column for column in filled if all(map(is_answer, column.values))), None)
        answers = answers or parts_of(context, sample.find("answer", "answers", "answer_text", "span", among=filled))
        if answers is None:
            return None
        data: dict[str, Any] = {"question": question.name, "context": context.name, "answers": answers.name}
        data |= {"id": "id" if sample.find("id") else None} | sample.held_out()
        if sample.find("title"):
            data["held_out_together"] = "title"
        return Suggestion(1.0, "question and text → part of the text", "qa_squad", data)


def parts_of(context: Column, answers: Column | None) -> Column | None:
    """The column of answers if nearly all of its texts are in the contexts; None for answers in other words."""
    if answers is None or not answers.is_text or not context.is_text:
        return None
    contexts = set(context.values)
    copied = sum(any(answer in text for text in contexts) for answer in answers.values[:PARTS])
    return answers if copied >= SHARE_OF_PARTS * len(answers.values[:PARTS]) else None


def is_answer(cell: Any) -> bool:
    """Whether a cell holds answers in SQuAD format."""
    return isinstance(cell, dict) and {"text", "answer_start"} <= cell.keys()
