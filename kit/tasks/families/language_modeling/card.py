"""What the cards of language models share."""

from collections.abc import Sequence
from typing import Any

from kit.cards.markdown import quoted, table
from kit.recipe.base import Recipe


def sections(
    recipe: Recipe, split: str, headings: Sequence[str], examples: Sequence[Sequence[Any]], example: str, note: str
) -> dict[str, Any]:
    """The sections of the card: a table of examples, an input for the pipeline, and what the figures mean."""
    return {
        "pipeline": quoted(recipe.pipeline_tag),
        "results_note": note,
        "examples_split": split,
        "examples_table": table(headings, examples) if examples else "",
        "example": example,
    }
