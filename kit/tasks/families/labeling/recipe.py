"""Recipe keys shared by classification, tagging and question answering."""

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Gt

from kit.recipe.base import Recipe
from kit.recipe.inputs import DataSection


class LabelingData(DataSection):
    """Location, columns and truncation of the data."""

    max_length: Annotated[int, Gt(7)] | None = None
    """Maximum number of tokens per example, including special tokens; by default the number of positions of the model.
    data.truncation decides what happens to longer examples; they are counted either way."""

    truncation: Literal["longest_first", "only_first", "only_second", "do_not_truncate"] = "longest_first"
    """How to truncate examples that are too long: cut the end of the longer text of a pair (longest_first), of the
    first, or of the second. do_not_truncate drops them from the training data instead; evaluation keeps every example,
    truncated."""

    @property
    def learned_columns(self) -> tuple[str, ...]:
        """Columns that a trained model does not read: those that it predicts, and row ids."""
        raise NotImplementedError

    @property
    def read_roles(self) -> list[str]:
        """The internal names of the columns that a model reads."""
        columns = self.text_columns | self.value_columns
        return [role for name, role in columns.items() if name not in self.learned_columns]

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.streaming:
            yield "streaming", "fine-tuning needs all labels before the first step. Leave it out."


class FineTuningRecipe(Recipe):
    """What the recipes of classification, tagging and question answering have in common."""

    data: LabelingData
    """Location, columns and truncation of the data."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.train.normalize_by != "tokens":
            yield "train.normalize_by", "it applies only to tasks that generate text. Leave it out."
