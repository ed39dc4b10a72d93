"""The recipe of extractive question answering."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt
from pydantic import NonNegativeInt, PositiveInt

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.training import EvalSection
from kit.tasks.families.labeling.recipe import FineTuningRecipe, LabelledData

AnswerMetric = Annotated[Literal["squad_f1", "squad_exact_match"], or_registered("answers")]


class QuestionAnsweringData(LabelledData):
    """The data: where it is, which columns hold questions, texts and answers, and how long texts are cut."""

    question: str = "question"
    """Column of the question."""

    context: str = "context"
    """Column of the text that the answer stands in."""

    answers: str = "answers"
    """Column of the answers as SQuAD has them: {"text": […], "answer_start": […]}, empty if there is none."""

    id: str | None = "id"
    """Column of the question's id, by which predictions are known; null numbers them."""

    held_out_together: str | None = None
    """Column by which data.validation_size and data.test_size keep rows together, such as the title of the article; by
    default questions about the same text are."""

    max_length: Annotated[int, Gt(7)] | None = None
    """Tokens of a window: the question, and as much of the text as fits beside it; by default 384, or as many as the
    model has positions for."""

    doc_stride: NonNegativeInt = 128
    """Tokens that neighbouring windows of a long text have in common; at most half of what fits beside the question."""

    max_question_length: PositiveInt = 64
    """Most tokens of a question; longer ones are cut, and counted."""

    @property
    def text_columns(self) -> dict[str, str]:
        return {self.context: "context", self.question: "question"}

    @property
    def value_columns(self) -> dict[str, str]:
        key = {} if self.id is None else {self.id: "id"}
        return {self.answers: "answers", **key}

    @property
    def learned_columns(self) -> tuple[str, ...]:
        return tuple(self.value_columns)

    @property
    def held_out_by(self) -> tuple[str, ...]:
        return super().held_out_by if self.held_out_together is None else (self.held_out_together,)

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        idle["truncation"] = "on questions: long texts are read in windows (data.doc_stride)"
        if self.validation_size is None and self.test_size is None:
            idle["held_out_together"] = "without data.validation_size or data.test_size"
        return idle

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        named = [self.question, self.context, self.answers, *([] if self.id is None else [self.id])]
        if len(set(named)) < len(named):
            yield "", "question, context, answers and id must be different columns."
        if self.max_length is not None and self.max_question_length + 4 > self.max_length:
            yield "max_question_length", f"it leaves no room for a text in data.max_length: {self.max_length}."


class QuestionAnsweringEval(EvalSection):
    """Evaluation: when, by which metrics, and how answers are chosen."""

    metrics: list[AnswerMetric] = []  # type: ignore[assignment]  # noqa: RUF012
    """What is computed on the answers, besides the loss. Where some questions have none, the parts with and without
    are told apart."""

    max_answer_length: PositiveInt = 30
    """Most tokens of an answer."""

    null_threshold: float | None = None
    """By how much the score of no answer must exceed that of the best one to be given. By default the value that is
    best on the validation split, if it has questions without an answer; it is saved with the model."""


class QuestionAnsweringRecipe(FineTuningRecipe):
    """Find the part of a text that answers a question."""

    mapping: ClassVar[str | None] = "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES"
    pipeline_tag: ClassVar[str] = "question-answering"
    auto_class: ClassVar[str] = "AutoModelForQuestionAnswering"
    peft_task_type: ClassVar[str | None] = "QUESTION_ANS"

    task: Literal["question_answering"]
    """Find the part of a text that answers a question, or tell that there is none."""

    data: QuestionAnsweringData
    """The data: where it is and what to use of it."""

    eval: QuestionAnsweringEval = QuestionAnsweringEval()
    """Evaluation: when, by which metrics, and how answers are chosen."""
