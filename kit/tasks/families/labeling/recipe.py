"""The keys of recipes that fine-tune encoders on labelled data: classification, tagging and question answering."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, MinLen
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from kit.recipe.base import Recipe
from kit.recipe.inputs import DataSection
from kit.recipe.training import EvalSection

LabelMetric = Literal[
    "accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "precision", "precision_macro", "precision_micro",
    "precision_weighted", "recall", "recall_macro", "recall_micro", "recall_weighted", "matthews", "roc_auc",
    "pearson", "spearman", "mse",
]  # fmt: skip
TagMetric = Literal["entity_f1", "entity_precision", "entity_recall", "tag_accuracy"]
AnswerMetric = Literal["squad_f1", "squad_exact_match"]

OF_NUMBERS = ("pearson", "spearman", "mse")
OF_ONE_LABEL = ("f1", "precision", "recall", "matthews")
"""Metrics that are not defined for examples of several labels."""


class LabelledData(DataSection):
    """The data: where it is, and which columns to use."""

    max_length: Annotated[int, Gt(7)] | None = None
    """Most tokens that the model reads of an example, special ones included; by default as many as it has positions
    for. What happens to longer ones, data.truncation says; either way they are counted."""

    truncation: Literal["longest_first", "only_first", "only_second", "do_not_truncate"] = "longest_first"
    """What is cut off examples that are too long: the end of the longer text of a pair, of the first or of the second.
    do_not_truncate leaves them out of the training data instead; splits that are evaluated keep all, cut."""

    @property
    def learned_columns(self) -> tuple[str, ...]:
        """Columns that a trained model has no need of: those that it predicts, or that only name a row."""
        raise NotImplementedError

    @property
    def read_roles(self) -> list[str]:
        """The names by which kit knows the columns that a model reads."""
        columns = self.text_columns | self.value_columns
        return [role for name, role in columns.items() if name not in self.learned_columns]

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.streaming:
            yield "streaming", "fine-tuning needs all labels before the first step. Leave it out."


class ClassificationData(LabelledData):
    """The data: where it is, which columns hold the texts and their label, and what kind of label that is."""

    text: str = "text"
    """Column of the text."""

    text_pair: str | None = None
    """Column of a second text, where the label is about two: do they say the same, does one answer the other."""

    label: str = "label"
    """Column of the label: a name, a number, or, with several labels for a text, a list of these."""

    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] = (
        "single_label_classification"
    )
    """What is learned: one label out of several, any number of labels (multi_label_classification), or a number
    (regression)."""

    label_names: Annotated[list[str], MinLen(1)] | None = None
    """Names of the labels. Labels that are numbers mean places in this list, from 0. By default the names that a Hub
    dataset has; where there are none, all labels that occur in the training data, in order."""

    label_separator: Annotated[str, MinLen(1)] | None = None
    """What stands between the labels of a text, in files whose cells hold no lists; multi_label_classification only."""

    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = None
    """How much examples of each label weigh in the loss, {spam: 5.0}, 1 for those that are not named; balanced lets all
    labels weigh the same, however rare they are. Losses that are reported are without weights."""

    @property
    def text_columns(self) -> dict[str, str]:
        pair = {} if self.text_pair is None else {self.text_pair: "text_pair"}
        return {self.text: "text", **pair}

    @property
    def value_columns(self) -> dict[str, str]:
        return {self.label: "label"}

    @property
    def learned_columns(self) -> tuple[str, ...]:
        return (self.label,)

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        if self.problem_type != "multi_label_classification":
            idle["label_separator"] = f"with data.problem_type: {self.problem_type}"
        if self.problem_type != "single_label_classification":
            idle["class_weights"] = f"with data.problem_type: {self.problem_type}"
        if self.problem_type == "regression":
            idle["label_names"] = "with data.problem_type: regression"
        return idle

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.text == self.text_pair:
            yield "text_pair", f'text and text_pair are both "{self.text}": there are not two texts.'
        if self.label in (self.text, self.text_pair):
            yield "label", f'"{self.label}" is the column of a text already: the label would be given away.'
        if self.text_pair is None and self.truncation == "only_second":
            yield "truncation", "there is no second text without data.text_pair. Leave it out."
        names = self.label_names or []
        if len(set(names)) < len(names):
            yield "label_names", "a name is there twice. Give each label its own."
        for name in self.class_weights if isinstance(self.class_weights, dict) else ():
            if names and name not in names:
                yield "class_weights", f'"{name}" is not among data.label_names.'


class TaggingData(LabelledData):
    """The data: where it is, which columns hold words and tags, and how tags are given to parts of words."""

    tokens: str = "tokens"
    """Column of the words: a list for each sentence."""

    tags: str = "tags"
    """Column of the tags, one for each word: names, or numbers of data.label_names or of a Hub dataset's names."""

    scheme: Literal["BIO", "IOB1", "IOBES", "BILOU", "none"] = "BIO"
    """How the model tags spans of words. Data may have any of these schemes and is converted; none takes tags as they
    are, for those that mean single words, such as parts of speech."""

    label_names: Annotated[list[str], MinLen(1)] | None = None
    """Names of the tags in the data, where they are numbers that mean places in this list, from 0."""

    label_all_subwords: bool = False
    """Whether all parts of a word learn its tag, the later ones of B-X as I-X where the scheme is BIO or IOB1; false
    lets only the first part learn. The tag of a word is that of its first part in any case."""

    @property
    def text_columns(self) -> dict[str, str]:
        return {}

    @property
    def value_columns(self) -> dict[str, str]:
        return {self.tokens: "tokens", self.tags: "tags"}

    @property
    def learned_columns(self) -> tuple[str, ...]:
        return (self.tags,)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.tokens == self.tags:
            yield "tags", f'tokens and tags are both "{self.tags}".'
        if self.truncation in ("only_first", "only_second"):
            yield "truncation", "there is one text: use longest_first or do_not_truncate."


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


class ClassificationEval(EvalSection):
    """Evaluation: when, and by which metrics."""

    metrics: list[LabelMetric] = []  # type: ignore[assignment]  # noqa: RUF012
    """What is computed on the predicted labels, besides the loss."""

    select_by: str = "loss"
    """What makes a checkpoint the best one: the loss, or one of eval.metrics."""

    positive_label: str | None = None
    """Which of two labels f1, precision, recall and roc_auc look for; by default the second."""


class TaggingEval(EvalSection):
    """Evaluation: when, and by which metrics, all of them of whole words."""

    metrics: list[TagMetric] = []  # type: ignore[assignment]  # noqa: RUF012
    """What is computed on the tags of words, besides the loss."""


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


class FineTuningRecipe(Recipe):
    """What the three kinds of recipes have in common."""

    adapters: ClassVar[tuple[str, ...]] = ("lora", "dora", "ia3")

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.train.normalize_by != "tokens":
            yield "train.normalize_by", "it is for tasks that write text. Leave it out."


class ClassificationRecipe(FineTuningRecipe):
    """Give a text, or a pair of texts, a label, several labels or a number."""

    mapping: ClassVar[str | None] = "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"

    task: Literal["classification"]
    """Tell the label of a text or of a pair of texts."""

    data: ClassificationData
    """The data: where it is and what to use of it."""

    eval: ClassificationEval = ClassificationEval()
    """Evaluation: when, and by which metrics."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        kind = self.data.problem_type
        for name in self.eval.metrics:
            if (name in OF_NUMBERS) != (kind == "regression"):
                yield "eval.metrics", f"{name} cannot be computed with data.problem_type: {kind}."
            elif name in OF_ONE_LABEL and kind == "multi_label_classification":
                yield "eval.metrics", f"{name} is for one label each: use f1_macro, f1_micro or f1_weighted."
        if self.train.label_smoothing_factor and kind != "single_label_classification":
            yield "train.label_smoothing_factor", f"it has no effect with data.problem_type: {kind}. Leave it out."


class TaggingRecipe(FineTuningRecipe):
    """Give each word a tag."""

    mapping: ClassVar[str | None] = "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES"

    task: Literal["tagging"]
    """Tell the tag of each word: names, parts of speech."""

    data: TaggingData
    """The data: where it is and what to use of it."""

    eval: TaggingEval = TaggingEval()
    """Evaluation: when, and by which metrics."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for name in self.eval.metrics:
            if name.startswith("entity_") and self.data.scheme == "none":
                yield "eval.metrics", f"{name} is about spans, which data.scheme: none does not have."


class QuestionAnsweringRecipe(FineTuningRecipe):
    """Find the part of a text that answers a question."""

    mapping: ClassVar[str | None] = "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES"

    task: Literal["question_answering"]
    """Find the part of a text that answers a question, or tell that there is none."""

    data: QuestionAnsweringData
    """The data: where it is and what to use of it."""

    eval: QuestionAnsweringEval = QuestionAnsweringEval()
    """Evaluation: when, by which metrics, and how answers are chosen."""


__all__ = ["ClassificationRecipe", "FineTuningRecipe", "QuestionAnsweringRecipe", "TaggingRecipe"]
