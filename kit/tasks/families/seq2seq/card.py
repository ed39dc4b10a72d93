"""What only the cards of models that write by beam search say: translation, captioning, dialogue."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.cards.markdown import clean, code, quoted, table
from kit.cards.metadata import PIPELINE_TAGS
from kit.cards.tables import SPLITS, figures_of, predicted_rows
from kit.evaluation.metrics import METRICS
from kit.tasks.captioning.recipe import CaptioningRecipe
from kit.tasks.dialogue.recipe import DialogueRecipe
from kit.tasks.translation.recipe import TranslationRecipe


def of_translation(recipe: TranslationRecipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the card of a model that turns text into text says."""
    split, examples = _examples(run_folder, recipe.eval.examples)
    example, longest = clean(examples[0][0]) if examples else "…", recipe.data.max_length
    return {
        "pipeline": quoted(_pipeline_task(recipe)),
        "results_note": results_note(recipe, results),
        "examples_split": split,
        "examples_table": table(("source", "reference", "output"), examples) if examples else "",
        "example": quoted(example),
        "told_by_tokenizer": recipe.data.directions is None,
        "prefixed_example": json.dumps((recipe.data.source_prefix or "") + example, ensure_ascii=False),
        "shared_vocabulary": recipe.tokenizer.shared,
        "max_new_tokens": recipe.eval.max_new_tokens,
        "length_limit": f"; it was trained on texts of up to {longest} tokens" if longest else "",
    }


def _pipeline_task(recipe: TranslationRecipe) -> str:
    """The task of a pipeline for the first example, which is in the first direction."""
    if not recipe.data.directions:
        return recipe.task
    source, target = recipe.data.directions[0].split("-")
    return f"translation_{source}_to_{target}"


def _examples(run_folder: Path, count: int) -> tuple[str, list[tuple[str, str, str]]]:
    """The split and a few of its predictions, evenly spread, so that no kind of example is favoured."""
    split, rows = predicted_rows(run_folder, count)
    return split, [
        (row["source"], row["target"] if isinstance(row["target"], str) else row["target"][0], row["prediction"])
        for row in rows
    ]


def of_captioning(recipe: CaptioningRecipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the card of a captioner says."""
    split, rows = predicted_rows(run_folder, recipe.eval.examples)
    examples = [(row["source"], " / ".join(row["target"]), row["prediction"]) for row in rows]
    return {
        "pipeline": quoted(PIPELINE_TAGS[recipe.task]),
        "results_note": results_note(recipe, results),
        "examples_split": split,
        "examples_table": table(("picture", "right captions", "output"), examples) if examples else "",
        "max_new_tokens": recipe.eval.max_new_tokens,
        "background": recipe.model.settings.get("background", "#ffffff"),
    }


def of_dialogue(recipe: DialogueRecipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the card of a model that replies says."""
    split, rows = predicted_rows(run_folder, recipe.eval.examples)
    examples = [(" / ".join(row["turns"]), row["target"], row["prediction"]) for row in rows]
    turns = [clean(turn) for turn in rows[0]["turns"]] if rows else ["…"]
    most = recipe.data.max_turns
    note = results_note(recipe, results)
    if recipe.data.answer is not None:
        note += "  \nRight answers are the share of replies, out of 1, that have the answer in them, word for word."
    return {
        "results_note": note,
        "examples_split": split,
        "examples_table": table(("turns", "right reply", "reply"), examples) if examples else "",
        "example": json.dumps(turns, ensure_ascii=False),
        "reading": f"The model reads the last {most} of them." if most else "The model reads all of them.",
        "max_new_tokens": recipe.eval.max_new_tokens,
    }


def results_note(recipe: TranslationRecipe | CaptioningRecipe | DialogueRecipe, results: Mapping[str, Any]) -> str:
    beams = recipe.eval.num_beams
    search = (
        "greedy search" if beams == 1 else f"beam search ({beams} beams, length penalty {recipe.eval.length_penalty})"
    )
    custom = [name for name in recipe.eval.metrics if name not in METRICS or METRICS[name].registered]
    others = f"the others out of 100, except {', '.join(custom)}" if custom else "the others out of 100"
    note = [f"Output was produced by {search}. {_scales(recipe)} are out of 1, {others}."]
    figures = next((figures_of(results, split) for split in SPLITS if results.get(split)), {})
    signatures = [(name, figures.get(f"{name}_signature")) for name in METRICS]
    note += [
        f"{METRICS[name].title} by {METRICS[name].library}: `{code(signature)}`."
        for name, signature in signatures
        if signature and METRICS[name].library
    ]
    return "  \n".join(note) if any(name in figures for name in (*METRICS, *custom)) else ""


def _scales(recipe: TranslationRecipe | CaptioningRecipe | DialogueRecipe) -> str:
    """The metrics that are shares of 1."""
    varied = isinstance(recipe, DialogueRecipe)
    return "Exact match, token accuracy and distinct-n" if varied else "Exact match and token accuracy"
