"""What only the cards of language models say, those that follow instructions among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.cards.markdown import code, quoted, table
from kit.cards.tables import predicted_rows

if TYPE_CHECKING:
    from kit.recipe.base import Recipe
    from kit.tasks.instruction_tuning.recipe import InstructionTuningRecipe


def of_language_model(recipe: Recipe, run_folder: Path) -> dict[str, Any]:
    split, rows = predicted_rows(run_folder, recipe.eval.examples)
    masked = recipe.task == "masked_lm"
    examples: list[tuple[str, ...]] = [(row["prompt"], row["prediction"]) for row in rows if not masked]
    examples += [(row["text"], " ".join(row["target"]), " ".join(row["prediction"])) for row in rows if masked]
    headings = ("text", "masked", "filled in") if masked else ("beginning", "what the model writes")
    note = "Loss is in nats a token; perplexity is its exponential."
    if masked:
        note = "The loss is that of masked tokens, in nats, plus that of pairs where there are any."
    return {
        "pipeline": quoted("fill-mask" if masked else "text-generation"),
        "results_note": note,
        "examples_split": split,
        "examples_table": table(headings, examples) if examples else "",
        "example": quoted("The [MASK] statement" if masked else "The "),
    }


def of_instruction_tuning(recipe: InstructionTuningRecipe, run_folder: Path) -> dict[str, Any]:
    split, rows = predicted_rows(run_folder, recipe.eval.examples)
    headings = ("prompt", "answer", "prediction")
    prompt = recipe.data.written(rows[0]["prompt"] if rows else "…")
    return {
        "pipeline": quoted("text-generation"),
        "results_note": (
            "Loss is that of the tokens of answers and of their end, in nats; exact match is out of 1. Answers are "
            f"written by greedy search. A prompt is read as `{code(json.dumps(recipe.data.template))}`."
        ),
        "examples_split": split,
        "examples_table": table(headings, [[row[name] for name in headings] for row in rows]) if rows else "",
        # not cleaned: the end of the line may be a part of the template
        "example": f"{json.dumps(prompt, ensure_ascii=False)}, return_full_text=False",
    }
