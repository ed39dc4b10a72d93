"""The recipe keys that classification, tagging and question answering share."""

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Gt

from kit.recipe.base import Recipe
from kit.recipe.inputs import DataSection


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


class FineTuningRecipe(Recipe):
    """What the three kinds of recipes have in common."""

    data: LabelledData
    """The data: where it is and what to use of it."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.train.normalize_by != "tokens":
            yield "train.normalize_by", "it is for tasks that write text. Leave it out."
