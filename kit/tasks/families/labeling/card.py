"""What only the cards of classifiers, taggers and question answerers say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.cards.markdown import clean, quoted, table
from kit.cards.metadata import PIPELINE_TAGS
from kit.cards.tables import figures_of, predicted_rows
from kit.tasks.classification.recipe import ClassificationRecipe
from kit.tasks.families.labeling.recipe import FineTuningRecipe
from kit.tasks.question_answering.recipe import QuestionAnsweringRecipe


def of_fine_tuning(recipe: FineTuningRecipe, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
    """What only the cards of classifiers, taggers and question answerers say."""
    split, rows = predicted_rows(run_folder, recipe.eval.examples)
    first = rows[0] if rows else {}
    call: str
    if isinstance(recipe, ClassificationRecipe):
        columns = ("text",) if recipe.data.text_pair is None else ("text", "text_pair")
        texts = {column: clean(first.get(column, "…")) for column in columns}
        call = quoted(texts["text"]) if len(columns) == 1 else json.dumps(texts, ensure_ascii=False)
        call, headings = f"{call}, truncation=True", (*columns, "label", "prediction")
        examples = [[_listed(row[heading]) for heading in headings] for row in rows]
        note = "Correlations are out of 1, and so are all others but loss and squared error."
    elif isinstance(recipe, QuestionAnsweringRecipe):
        call = f"question={quoted(first.get('question', '…'))}, context={quoted(first.get('context', '…'))}"
        headings = ("question", "answers", "prediction")
        examples = [
            [row["question"], _listed(list(dict.fromkeys(row["answers"]))), row["prediction"] or "(none)"]
            for row in rows
        ]
        note = "Figures of answers are out of 100."
        threshold = figures_of(results, "validation").get("null_threshold")
        if isinstance(threshold, float):
            note += f" No answer is given where its score exceeds that of the best one by more than {threshold:.4g}, a "
            note += "threshold that was chosen on the validation split."
    else:
        call = f"{json.dumps([clean(word) for word in first.get('tokens', ['…'])], ensure_ascii=False)}, "
        call += "is_split_into_words=True"
        headings = ("words", "tags", "prediction")
        examples = [[" ".join(row[name]) for name in ("tokens", "tags", "prediction")] for row in rows]
        note = "Figures are those of whole words, or of spans of words, out of 1."
    return {
        "pipeline": quoted(PIPELINE_TAGS[recipe.task]),
        "results_note": note,
        "examples_split": split,
        "examples_table": table(headings, examples) if examples else "",
        "call": call,
        "own_pipeline": isinstance(recipe, QuestionAnsweringRecipe),
        "length_note": _length_note(recipe),
    }


def _length_note(recipe: FineTuningRecipe) -> str:
    if isinstance(recipe, QuestionAnsweringRecipe):
        return "Long texts are read in windows, each on its own; an answer is always a part of the text."
    return "It reads only the beginning of texts that are longer than it has positions for."


def _listed(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
