"""The keys of a recipe whose task is to answer in a dialogue."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import PositiveInt

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.inputs import DataSection
from kit.tasks.families.seq2seq.recipe import Seq2SeqEval, Seq2SeqRecipe

Metric = Annotated[
    Literal["bleu", "chrf", "rougeL", "exact_match", "token_accuracy", "distinct_1", "distinct_2"],
    or_registered("text", "variety"),
]


class DialogueData(DataSection):
    """The dialogues: where they are, how turns are written down, and which of them are replies to learn."""

    turns: str = "turns"
    """Column of the turns of a dialogue: a list of texts, of pairs [speaker, text], or of objects that hold both."""

    turn_text: str = "text"
    """Key of the text in turns that are objects, such as content."""

    turn_speaker: str = "speaker"
    """Key of the speaker in turns that are objects, such as role."""

    target: str | None = None
    """Column of the reply to learn, where the turns only lead up to it. By default the replies are among the turns."""

    speaker: str | None = None
    """Whose turns are replies to learn, such as assistant; of turns without speakers those of "first" or "second". By
    default every turn but the first is a reply, whoever speaks."""

    max_turns: PositiveInt | None = None
    """Most turns before a reply that the model reads, the last ones: 1 is the last turn alone. By default all. It is
    saved with the model."""

    max_length: PositiveInt | None = None
    """Leave out training examples whose reply, or any turn before it that is read, has more tokens than this; they are
    counted. Other splits keep all."""

    answer: str | None = None
    """Column of the part of the reply that counts: evaluation tells how often outputs have it, beside how often the
    most frequent answer would be right. Only with data.target."""

    validation_size: PositiveInt | None = None
    """Number of training dialogues held out for validation when the data has no such split."""

    test_size: PositiveInt | None = None
    """Number of training dialogues held out for the test when the data has no such split."""

    drop_duplicates: bool = False
    """Leave out training dialogues that occur before in the training data."""

    max_examples: PositiveInt | None = None
    """Use only this many training dialogues: for a quick trial, or to study the effect of the size."""

    @property
    def text_columns(self) -> dict[str, str]:
        named = {self.target: "target", self.answer: "answer"}
        return {column: key for column, key in named.items() if column is not None}

    @property
    def value_columns(self) -> dict[str, str]:
        return {self.turns: "turns"}

    @property
    def roles(self) -> tuple[str, ...]:
        return ("turns", *self.text_columns.values())

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        if self.target is not None:
            idle["speaker"] = "beside data.target, which is the only reply of a row"
        else:
            idle["answer"] = "without data.target"
        return idle

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        named = [name for name in (self.turns, self.target, self.answer) if name is not None]
        if len(set(named)) < len(named):
            yield "", "turns, target and answer must be different columns."
        if self.turn_text == self.turn_speaker:
            yield "turn_speaker", f'turn_text and turn_speaker are both "{self.turn_text}".'
        if self.streaming:
            yield "streaming", "dialogues are taken apart in memory. Leave it out."


class DialogueEval(Seq2SeqEval):
    """Evaluation: when, by which metrics, and how replies are searched for."""

    metrics: list[Metric] = []  # type: ignore[assignment]  # noqa: RUF012 (pydantic copies it)
    """What is computed on decoded replies, besides loss and perplexity; distinct_1 and distinct_2 tell how varied they
    are: the share of different words, or pairs of words, among all."""

    select_by: Metric | Literal["loss"] = "loss"  # type: ignore[assignment]
    """What makes a checkpoint the best one: the loss, or one of eval.metrics."""

    group_by: list[str] = []  # noqa: RUF012
    """Report metrics for groups too: by a column of the data, or by "length" (of all turns before the reply)."""


class DialogueRecipe(Seq2SeqRecipe):
    """Answer in a dialogue."""

    own_types: ClassVar[tuple[str, ...]] = ("hred", "rnn_seq2seq", "transformer_seq2seq")
    pipeline_tag: ClassVar[str] = "text-generation"
    hub_tags: ClassVar[tuple[str, ...]] = ("seq2seq", "conversational")
    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"

    task: Literal["dialogue"]
    """Reply to what has been said, turn by turn; hred reads turns apart, other models one after the other."""

    data: DialogueData
    """The dialogues: where they are and what to use of them."""

    eval: DialogueEval = DialogueEval()
    """Evaluation: when, by which metrics, and how replies are searched for."""


__all__ = ["DialogueRecipe"]
