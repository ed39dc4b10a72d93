"""Recipe keys shared by masked and causal language modeling."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Le

from kit.recipe.base import Recipe, UsesTokenizer
from kit.recipe.data import TABULAR_KEYS, DataSection, HoldoutShareKeys, LanguagesKey, StreamingKeys
from kit.recipe.section import MAX_COUNT, PositiveInt
from kit.recipe.suggestion import DataSample, Suggestion
from kit.recipe.training import LayerwiseKeys, TrainSection


class TextData(StreamingKeys, HoldoutShareKeys, LanguagesKey, DataSection):
    """Location, documents and blocks of the text."""

    text_keys: ClassVar[tuple[str, ...]] = ("text",)
    evaluation_keys: ClassVar[tuple[str, ...]] = ("documents",)
    source_keys: ClassVar[tuple[str, ...]] = ("documents",)
    encoding_keys: ClassVar[tuple[str, ...]] = ("block_size", "num_proc")
    joins_paragraphs: ClassVar[bool] = True
    in_memory_keys: ClassVar[tuple[str, ...]] = (
        *StreamingKeys.in_memory_keys, "documents", "validation_share", "test_share",
    )  # fmt: skip

    text: str = "text"
    """Column of the text: a document, or the list of its paragraphs."""

    documents: Literal["row", "blank_line", "heading", "file"] = "row"
    """What counts as a document: a row of the data (in a .txt file, a line), or, in .txt files, the text between blank
    lines, the text from one heading to the next (`= Title =` as in WikiText; `== Section ==` starts none), or the whole
    file."""

    block_size: Annotated[int, Gt(7), Le(MAX_COUNT)] = 128
    """Number of tokens per example."""

    num_proc: PositiveInt = 1
    """Number of processes that tokenize the text; it does not affect the result. For small datasets, one process is
    fastest."""

    cache: bool = True
    """Cache the tokenized text on disk for later runs, in $HF_HOME/kit or the folder that KIT_CACHE names."""

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if self.streaming:
            ineffective |= dict.fromkeys(("num_proc", "cache"), "with data.streaming, which tokenizes while training")
        if self.documents != "row":
            ineffective |= dict.fromkeys(TABULAR_KEYS, f"on texts without columns (data.documents: {self.documents})")
        return ineffective

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.documents != "row" and self.is_builtin:
            yield "documents", "the rows of built-in data are already documents. Leave it out."


class LanguageModelTrain(LayerwiseKeys, TrainSection):
    """Duration, batch size, optimizer and learning rate of training."""


class LanguageModelRecipe(UsesTokenizer, Recipe):
    """The sections of masked and causal language modeling."""

    train: LanguageModelTrain
    """Duration, batch size, optimizer and learning rate of training."""

    data: TextData
    """Location, documents and blocks of the text."""

    starting_recipe: ClassVar[str]
    """The shipped recipe to start from on other text."""
    learns: ClassVar[str]
    """What a model learns of a text, in words."""
    suggested_score: ClassVar[float]
    """How likely it is that a user with such text wants this task."""

    @classmethod
    def suggest(cls, sample: DataSample) -> Suggestion | None:
        """Suggest pretraining for a column of texts, or of lists of paragraphs."""
        texts = [
            column for column in sample.columns if column.is_prose or (column.lists_text and column.item_words > 2)
        ]
        text = max(texts, key=lambda column: sum(len(str(value)) for value in column.values), default=None)
        if text is None or sample.is_parallel:
            return None
        data: dict[str, Any] = {"text": text.name, "documents": sample.documents}
        if sample.documents != "row":
            data |= {f"{split}_share": 0.1 for split in ("validation", "test") if split not in sample.splits}
        else:
            data |= sample.held_out()
        # a text beside other columns is probably not meant for pretraining
        score = cls.suggested_score * (1 if len(sample.columns) == 1 else 0.9 if text.lists_text else 0.4)
        return Suggestion(round(score, 2), f"text → {cls.learns}", cls.starting_recipe, data)
