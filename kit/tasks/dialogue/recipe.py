"""The recipe of dialogue modeling."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.data import DataSection
from kit.recipe.section import PositiveInt
from kit.recipe.suggestion import DataSample, Suggestion
from kit.tasks.families.seq2seq.recipe import Seq2SeqEval, Seq2SeqRecipe

ReplyMetric = Annotated[
    Literal["bleu", "chrf", "rougeL", "exact_match", "token_accuracy", "distinct_1", "distinct_2"],
    or_registered("text", "variety"),
]


class DialogueData(DataSection):
    """Location of the dialogues, format of their turns, and which turns are replies to learn."""

    text_keys: ClassVar[tuple[str, ...]] = ("target", "answer")
    value_keys: ClassVar[tuple[str, ...]] = ("turns",)
    evaluation_keys: ClassVar[tuple[str, ...]] = ("turn_text", "turn_speaker", "speaker")
    encoding_keys: ClassVar[tuple[str, ...]] = ("max_turns",)

    turns: str = "turns"
    """Column of the turns of a dialogue: a list of texts, of [speaker, text] pairs, or of objects that hold both."""

    turn_text: str = "text"
    """Key of the text, if turns are objects; content, for example."""

    turn_speaker: str = "speaker"
    """Key of the speaker, if turns are objects; role, for example."""

    target: str | None = None
    """Column of the reply to learn, if the turns are only its context. By default the replies are among the turns."""

    speaker: str | None = None
    """Speaker whose turns are replies to learn, such as assistant; for turns without speakers, "first" or "second". By
    default every turn but the first is a reply, whoever speaks."""

    max_turns: PositiveInt | None = None
    """Maximum number of turns that the model reads before a reply, counted from the last: 1 reads only the last turn.
    By default all turns. The number is saved with the model."""

    max_length: PositiveInt | None = None
    """Drop training examples in which the reply, or any turn that the model reads, has more tokens than this; they are
    counted. Other splits keep every example."""

    answer: str | None = None
    """Column of the decisive part of the reply: evaluation reports the share of outputs that contain it, and the share
    of the most frequent answer as a baseline. Only with data.target."""

    @property
    def roles(self) -> tuple[str, ...]:
        return ("turns", *self.text_columns.values())

    @property
    def text_roles(self) -> tuple[str, ...]:
        return ()  # replies exist only once their dialogues are split into them, which drops empty ones

    @property
    def target_roles(self) -> tuple[str, ...]:
        return ("target",)

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if self.target is not None:
            ineffective["speaker"] = "with data.target, which is the only reply in a row"
        else:
            ineffective["answer"] = "without data.target"
        return ineffective

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.turn_text == self.turn_speaker:
            yield "turn_speaker", f'turn_text and turn_speaker are both "{self.turn_text}".'


class DialogueEval(Seq2SeqEval[ReplyMetric]):
    """Frequency and metrics of evaluation, and beam search."""

    metrics: list[ReplyMetric] = []  # noqa: RUF012 (pydantic copies it)
    """Metrics computed on the generated replies, in addition to loss and perplexity. distinct_1 and distinct_2 measure
    variety: the fraction of distinct words, or pairs of words, among all."""

    group_by: list[str] = []  # noqa: RUF012
    """Also report metrics by group: by a column of the data, or by "length" (of all turns before the reply)."""


class DialogueRecipe(Seq2SeqRecipe):
    """Dialogue: reply to the previous turns."""

    kit_types: ClassVar[tuple[str, ...]] = ("hred", "rnn_seq2seq", "transformer_seq2seq")
    pipeline_tag: ClassVar[str] = "text-generation"
    hub_tags: ClassVar[tuple[str, ...]] = ("seq2seq", "conversational")
    auto_class: ClassVar[str] = "AutoModelForSeq2SeqLM"

    task: Literal["dialogue"]
    """Dialogue: reply to the previous turns. hred encodes each turn separately, other models read the turns as one
    sequence."""

    data: DialogueData
    """Location of the dialogues, format of their turns, and which turns are replies to learn."""

    eval: DialogueEval = DialogueEval()
    """Frequency and metrics of evaluation, and beam search."""

    @classmethod
    def suggest(cls, sample: DataSample) -> Suggestion | None:
        """Suggest dialogue for lists of turns: objects, pairs of speaker and text, or texts in a column with a usual
        name."""
        named = sample.find("turns", "messages", "dialog", "dialogue", "conversation", "conversations", "utterances")
        for column in sample.columns:
            turns = column.items
            if turns and all(isinstance(turn, dict) for turn in turns):
                keys = {key for turn in turns for key in turn}
                text = next((key for key in ("text", "content", "value", "utterance") if key in keys), None)
                speaker = next((key for key in ("speaker", "role", "from") if key in keys), None)
                if text is None or speaker is None:
                    continue
                data: dict[str, Any] = {"turns": column.name, "turn_text": text, "turn_speaker": speaker}
                speakers = [turn[speaker] for turn in turns]
            elif turns and all(isinstance(turn, list) and [*map(type, turn)] == [str, str] for turn in turns):
                data, speakers = {"turns": column.name}, [turn[0] for turn in turns]
            elif column is named and column.lists_text:
                data, speakers = {"turns": column.name}, []
            else:
                continue
            replies = [name for name in ("assistant", "gpt", "bot", "system", "agent", "S") if name in speakers]
            return Suggestion(
                0.92, "turns → reply", "sgd_hred", data | {"speaker": next(iter(replies), None)} | sample.held_out()
            )
        return None
