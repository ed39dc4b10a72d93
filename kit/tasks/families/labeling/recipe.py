"""Recipe keys shared by classification, tagging and question answering."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le

from kit.recipe.base import Recipe, SupportsAdapters, UsesTokenizer
from kit.recipe.data import DataSection, LanguagesKey
from kit.recipe.section import MAX_COUNT, Section
from kit.recipe.training import LabelSmoothingKey, LayerwiseKeys, TrainSection


class TruncationKey(Section):
    """Truncation of long examples, for tasks that read each example in one piece."""

    encoding_keys: ClassVar[tuple[str, ...]] = ("truncation",)
    prediction_keys: ClassVar[tuple[str, ...]] = ("truncation",)

    truncation: Literal["longest_first", "only_first", "only_second", "do_not_truncate"] = "longest_first"
    """How to truncate examples that are too long: cut the end of the longer text of a pair (longest_first), of the
    first, or of the second. do_not_truncate drops them from the training data instead; evaluation keeps every example,
    truncated."""


class LabelingData(LanguagesKey, DataSection):
    """Location and columns of the data."""

    encoding_keys: ClassVar[tuple[str, ...]] = ("max_length",)
    prediction_keys: ClassVar[tuple[str, ...]] = ("max_length",)

    max_length: Annotated[int, Gt(7), Le(MAX_COUNT)] | None = None
    """Maximum number of tokens per example, including special tokens; by default the number of positions of the model.
    data.truncation decides what happens to longer examples; they are counted either way."""

    @property
    def learned_columns(self) -> tuple[str, ...]:
        """The columns that a model does not read: those that it predicts, and row ids."""
        return tuple(self.value_columns)

    @property
    def default_columns(self) -> list[str]:
        """The columns of a file that does not name its columns; empty if the task has no such convention."""
        return []

    @property
    def input_roles(self) -> tuple[str, ...]:
        columns = self.text_columns | self.value_columns
        return tuple(role for name, role in columns.items() if name not in self.learned_columns)


class LabelingTrain(LayerwiseKeys, LabelSmoothingKey, TrainSection):
    """Duration, batch size, optimizer, learning rate and loss of training."""


class LabelingRecipe(UsesTokenizer, SupportsAdapters, Recipe):
    """The sections of classification, tagging and question answering."""

    data: LabelingData
    """Location and columns of the data."""

    train: LabelingTrain
    """Duration, batch size, optimizer, learning rate and loss of training."""
