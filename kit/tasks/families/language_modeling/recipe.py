"""Recipe keys shared by masked and causal language modeling."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Lt
from pydantic import PositiveInt

from kit.recipe.base import Recipe
from kit.recipe.inputs import TABULAR_KEYS, DataSection

Share = Annotated[float, Gt(0), Lt(1)]


class TextData(DataSection):
    """Location, documents and blocks of the text."""

    joins_paragraphs: ClassVar[bool] = True

    text: str = "text"
    """Column of the text: a document, or the list of its paragraphs."""

    documents: Literal["row", "blank_line", "file"] = "row"
    """What counts as a document: a row of the data (in a .txt file, a line), the text between blank lines of .txt
    files, or a whole .txt file."""

    block_size: Annotated[int, Gt(7)] = 128
    """Number of tokens per example."""

    validation_share: Share | None = None
    """Fraction of the training text, taken from its end, to hold out for validation; for text with too few documents to
    use validation_size."""

    test_share: Share | None = None
    """Fraction of the training text, taken from its end, to hold out for testing."""

    workers: PositiveInt = 1
    """Number of processes that tokenize the text; it does not affect the result. For small datasets, one process is
    fastest."""

    cache: bool = True
    """Cache the tokenized text on disk for later runs, in $HF_HOME/kit or the folder that KIT_CACHE names."""

    @property
    def text_columns(self) -> dict[str, str]:
        return {self.text: "text"}

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if self.streaming:
            ineffective |= dict.fromkeys(("workers", "cache"), "with data.streaming, which tokenizes while training")
        if self.documents != "row":
            ineffective |= dict.fromkeys(TABULAR_KEYS, f"on texts without columns (data.documents: {self.documents})")
        return ineffective

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for split in ("validation", "test"):
            if getattr(self, f"{split}_share") is not None and getattr(self, f"{split}_size") is not None:
                yield f"{split}_share", f"it cannot be combined with data.{split}_size. Remove one of them."
        if (self.validation_share or 0) + (self.test_share or 0) >= 1:
            yield "validation_share", "together with data.test_share it holds out all text: none is left to train on."
        if self.documents != "row" and self.path.startswith("builtin:"):
            yield "documents", "the rows of built-in data are already documents. Leave it out."

    def in_memory_keys(self) -> list[str]:
        given = {
            "documents": self.documents != "row",
            "validation_share": self.validation_share is not None,
            "test_share": self.test_share is not None,
        }
        return super().in_memory_keys() + [name for name, is_set in given.items() if is_set]


class LanguageModelRecipe(Recipe):
    """What the recipes of masked and causal language models have in common."""

    data: TextData
    """Location, documents and blocks of the text."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for name, default in (("label_smoothing_factor", 0.0), ("normalize_by", "tokens")):
            if getattr(self.train, name) != default:
                yield f"train.{name}", f"it has no effect on {self.task}. Leave it out."
