"""What the cards of classifiers, taggers and question answering models share."""

from collections.abc import Iterable, Sequence
from typing import Any

from kit.cards.markdown import quoted, table
from kit.tasks.families.labeling.recipe import FineTuningRecipe


def sections(
    recipe: FineTuningRecipe,
    split: str,
    headings: Sequence[str],
    examples: Iterable[Sequence[Any]],
    call: str,
    note: str,
) -> dict[str, Any]:
    """The sections of the card: a table of examples, the call of the pipeline, and what the figures mean."""
    rows = [list(row) for row in examples]
    return {
        "pipeline": quoted(recipe.pipeline_tag),
        "results_note": note,
        "examples_split": split,
        "examples_table": table(headings, rows) if rows else "",
        "call": call,
        "own_pipeline": False,
        "length_note": "It reads only the beginning of texts that are longer than it has positions for.",
    }


def joined(value: Any) -> Any:
    """A list as text; anything else as it is."""
    return ", ".join(map(str, value)) if isinstance(value, list) else value
