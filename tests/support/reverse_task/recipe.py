"""The recipe of the task "reverse"."""

from typing import ClassVar, Literal

from kit.recipe.data import DataSection
from kit.tasks.families.seq2seq.recipe import TextToTextRecipe


class ReverseData(DataSection):
    """Location, splits and filters of the texts."""

    text_keys: ClassVar[tuple[str, ...]] = ("source",)

    source: str = "text"
    """Column of the texts to reverse."""


class ReverseRecipe(TextToTextRecipe):
    """Reverse a text."""

    kit_types: ClassVar[tuple[str, ...]] = ("rnn_seq2seq", "transformer_seq2seq")

    task: Literal["reverse"]
    """Reverse a text."""

    data: ReverseData
    """Location, splits and filters of the texts."""
