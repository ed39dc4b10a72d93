"""The recipe of text-to-text tasks: translation, summarization, text to code."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le, MinLen

from kit.errors import did_you_mean
from kit.recipe.base import SupportsAdapters
from kit.recipe.data import DataSection, LanguagesKey, StreamingKeys
from kit.recipe.messages import show
from kit.recipe.model import Seq2SeqTokenizerSection
from kit.recipe.section import MAX_NUMBER, PositiveInt
from kit.recipe.suggestion import DataSample, Suggestion
from kit.recipe.training import HubSection
from kit.tasks.families.seq2seq.recipe import TextToTextRecipe

SOURCE_NAMES = (
    "source", "src", "article", "document", "body", "input", "input_text", "text", "de", "question", "english",
)  # fmt: skip
TARGET_NAMES = (
    "target", "tgt", "highlights", "summary", "abstract", "headline", "output", "target_text", "en", "translation",
    "code", "non_english", "answer",
)  # fmt: skip
"""Usual names of what is read and of what is written, the surest first."""


class TranslationData(StreamingKeys, LanguagesKey, DataSection):
    """Location, columns, splits and filters of the text."""

    text_keys: ClassVar[tuple[str, ...]] = ("source", "target")
    evaluation_keys: ClassVar[tuple[str, ...]] = ("directions",)
    own_data_keys: ClassVar[tuple[str, ...]] = ("direction_sizes", "direction_repeats")
    in_memory_keys: ClassVar[tuple[str, ...]] = (*StreamingKeys.in_memory_keys, *own_data_keys)

    source: str = "source"
    """Column of the input text, or file suffix of parallel text (de for train.de)."""

    target: str = "target"
    """Column of the output text, or file suffix of parallel text (en for train.en)."""

    source_prefix: str | None = None
    """Text to prepend to every source, for models that expect a task prefix: "summarize: ", ">>fra<< ". It is saved
    with the model. By default the prefix that kit saved with a pretrained model, if any."""

    directions: Annotated[list[str], MinLen(1)] | None = None
    """Translation directions of a multilingual model, such as [de-en, en-fr], instead of source and target: each names
    two columns or file suffixes, and every row is one example in each direction. A tag before the source selects the
    target language. A row that is held out (validation_size, test_size) is held out in all directions."""

    direction_sizes: dict[str, PositiveInt] | None = None
    """Maximum number of training examples per direction, such as {fr-en: 2000}; the others use all. The choice depends
    on the seed and the text, so that both directions of a language pair keep the same rows, and a smaller number keeps
    a subset of a larger one."""

    direction_repeats: dict[str, PositiveInt] | None = None
    """Number of times that each example of a direction occurs in an epoch, such as {fr-en: 8}; 1 by default. A
    direction with few examples is hardly learned next to large ones unless its examples are repeated."""

    max_length: PositiveInt | None = None
    """Drop training examples with more tokens than this on either side; they are counted. Other splits keep every
    example."""

    min_length: PositiveInt = 1
    """Drop training examples with fewer tokens than this on either side; 1 drops empty text."""

    max_length_ratio: Annotated[float, Ge(1), Le(MAX_NUMBER)] | None = None
    """Drop training examples in which one side is more than this many times as long as the other."""

    @property
    def text_columns(self) -> dict[str, str]:
        if self.directions is None:
            return super().text_columns
        return {language: "directions" for direction in self.directions for language in direction.split("-")}

    @property
    def roles(self) -> tuple[str, ...]:
        return ("source", "target")

    @property
    def text_roles(self) -> tuple[str, ...]:
        return self.roles

    @property
    def target_roles(self) -> tuple[str, ...]:
        return ("target",)

    @property
    def language_directions(self) -> Sequence[str]:
        return self.directions or ()

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if self.directions is None:
            return ineffective | dict.fromkeys(("direction_sizes", "direction_repeats"), "without data.directions")
        return ineffective | dict.fromkeys(("source", "target"), "with data.directions")

    def contradictions(self) -> Iterator[tuple[str, str]]:
        directions = self.directions or []
        for direction in dict.fromkeys(directions):
            languages = direction.split("-")
            if len(languages) != 2 or not all(languages) or len(set(languages)) == 1:
                yield (
                    "directions",
                    f"{show(direction)} does not name two languages as SOURCE-TARGET (de-en). A column or file suffix "
                    "that contains a hyphen cannot be used here.",
                )
            if directions.count(direction) > 1:
                yield "directions", f"{show(direction)} occurs twice."
        for name in ("direction_sizes", "direction_repeats") if directions else ():
            for direction in (getattr(self, name) or {}).keys() - set(directions):
                hint = did_you_mean(direction, directions)
                yield name, f"{show(direction)} is not among data.directions.{hint}"
        if self.max_length is not None and self.max_length < self.min_length:
            yield (
                "max_length",
                f"{self.max_length} is below data.min_length ({self.min_length}): no example would be left.",
            )
        yield from super().contradictions()


class TranslationHub(HubSection):
    """Metadata for the model card; none of it affects training."""

    pipeline_tag: Literal["translation", "summarization", "text2text-generation"] | None = None
    """Task of the model on the Hub and in the code of its card. By default that of the recipe's task; set it for models
    that summarize, or that write something else, such as code."""


class TranslationRecipe(SupportsAdapters, TextToTextRecipe):
    """Text to text: translation, summarization, text to code."""

    kit_types: ClassVar[tuple[str, ...]] = ("rnn_seq2seq", "transformer_seq2seq")
    pipeline_tag: ClassVar[str] = "translation"
    peft_task_type: ClassVar[str | None] = "SEQ_2_SEQ_LM"

    task: Literal["translation"]
    """Text to text: translation, summarization, text to code."""

    tokenizer: Seq2SeqTokenizerSection = Seq2SeqTokenizerSection()  # type: ignore[misc]
    """Tokenizer to train on the training data, or an existing one to use."""

    data: TranslationData
    """Location, columns, splits and filters of the text."""

    hub: TranslationHub = TranslationHub()
    """Metadata for the model card."""

    @property
    def target_language(self) -> str | None:
        """The language that the tokenizer or all directions name, or else the name of the target column, such as zh."""
        targets = {direction.rpartition("-")[2] for direction in self.data.directions or ()}
        if targets:
            return targets.pop() if len(targets) == 1 else None
        return self.tokenizer.target_language or self.data.target.rpartition(".")[2]

    @classmethod
    def suggest(cls, sample: DataSample) -> Suggestion | None:
        """Suggest text to text for two columns or files of text, of which one follows from the other."""
        texts = [*sample.columns] if sample.is_parallel else sample.prose
        nested = [column for column in sample.columns if column.values and all(map(is_translation, column.values))]
        if nested:
            names = [f"{nested[0].name}.{language}" for language in nested[0].values[0]][:2]
            score = 0.95
        elif len(texts) >= 2:
            source = sample.find(*SOURCE_NAMES, among=texts)
            target = sample.find(*TARGET_NAMES, among=[column for column in texts if column is not source])
            first = source or next(column for column in texts if column is not target)
            names = [first.name, (target or next(column for column in texts if column is not first)).name]
            score = 0.95 if sample.is_parallel else 0.85 if source and target else 0.6
            score -= 0.1 * bool(sample.labels)
        else:
            return None
        data = {"source": names[0], "target": names[1], **sample.held_out()}
        return Suggestion(score, f"{names[0]} → {names[1]} (text to text)", "multi30k_transformer", data)

    @property
    def hub_task(self) -> str:
        return self.hub.pipeline_tag or super().hub_task

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        yield from self._language_contradictions()
        if self.data.streaming and self.train.tokens_per_batch is not None and self.data.max_length is None:
            yield (
                "data.max_length",
                "with data.streaming, a text longer than train.tokens_per_batch would stop the run in the middle of "
                "training. Set the maximum length, such as 128.",
            )
        if self.data.streaming and self.tokenizer.bpe_dropout:
            yield "tokenizer.bpe_dropout", "it needs all training data in memory. Remove it or data.streaming."

    def _language_contradictions(self) -> Iterator[tuple[str, str]]:
        """Find mistakes in the language keys of the tokenizer."""
        single_pair, multilingual = ("source_language", "target_language"), self.data.directions is not None
        is_pretrained = self.tokenizer.pretrained is not None or self.model.pretrained is not None
        for name in filter(self.tokenizer.is_set, (*single_pair, "language_codes")):
            if not is_pretrained:
                yield f"tokenizer.{name}", "a newly trained tokenizer has no language codes. Leave it out."
            elif (name in single_pair) == multilingual:
                per_example = "with data.directions, where each example has its own codes (tokenizer.language_codes)"
                reason = per_example if multilingual else "without data.directions"
                yield f"tokenizer.{name}", f"it has no effect {reason}. Leave it out."
        for name in self.tokenizer.language_codes or () if multilingual else ():
            if name not in self.data.text_columns:
                hint = did_you_mean(name, self.data.text_columns)
                yield f"tokenizer.language_codes.{name}", f"it is not a language of data.directions.{hint}"


def is_translation(cell: Any) -> bool:
    """Whether a cell holds a text in several languages, by language."""
    return isinstance(cell, dict) and len(cell) > 1 and all(isinstance(text, str) for text in cell.values())
