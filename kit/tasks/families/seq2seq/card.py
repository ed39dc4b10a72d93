"""What the cards of all models share that write text by beam search."""

from collections.abc import Mapping
from typing import Any

from kit.cards.markdown import code
from kit.cards.tables import SPLITS, figures_of
from kit.evaluation.metrics import METRICS
from kit.tasks.families.seq2seq.recipe import Seq2SeqRecipe


def results_note(
    recipe: Seq2SeqRecipe, results: Mapping[str, Any], shares: str = "Exact match and token accuracy"
) -> str:
    """How output was searched for and what the figures mean; `shares` names the metrics that are out of 1."""
    beams = recipe.eval.num_beams
    search = (
        "greedy search" if beams == 1 else f"beam search ({beams} beams, length penalty {recipe.eval.length_penalty})"
    )
    custom = [name for name in recipe.eval.metrics if name not in METRICS or METRICS[name].registered]
    others = f"the others out of 100, except {', '.join(custom)}" if custom else "the others out of 100"
    note = [f"Output was produced by {search}. {shares} are out of 1, {others}."]
    figures = next((figures_of(results, split) for split in SPLITS if results.get(split)), {})
    signatures = [(name, figures.get(f"{name}_signature")) for name in METRICS]
    note += [
        f"{METRICS[name].title} by {METRICS[name].library}: `{code(signature)}`."
        for name, signature in signatures
        if signature and METRICS[name].library
    ]
    return "  \n".join(note) if any(name in figures for name in (*METRICS, *custom)) else ""
