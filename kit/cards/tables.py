"""What a card tells of the results of a run: tables of figures, and some predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.cards.markdown import escape, table
from kit.evaluation.metrics import METRICS, MODEL_METRICS
from kit.system.files import read_json_lines

SPLITS = ("test", "validation")
"""The splits that a card reports on, the more important one first."""

_TITLES = {
    "loss": "Loss",
    "perplexity": "Perplexity",
    "bits_per_byte": "Bits per byte",
    "masked_loss": "Loss of masked tokens",
    "unigram_loss": "The same by the frequency of tokens alone",
    "pair_loss": "Loss of pairs",
    "masked_accuracy": "Accuracy at masked tokens",
    "pair_accuracy": "Accuracy of pairs",
    "answer_accuracy": "Right answers",
    "answer_majority": "The same by the most frequent answer alone",
    "persistence_mse": "Mean squared error of the last value",
    "persistence_mae": "Mean absolute error of the last value",
    "linear_mse": "Mean squared error of a linear autoregression",
    "linear_mae": "Mean absolute error of a linear autoregression",
}
"""Titles of figures besides the metrics."""
_BASELINES = ("persistence_mse", "persistence_mae", "linear_mse", "linear_mae")


def figures_of(results: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """A part of the results, empty if the run has none."""
    return results.get(part) or {}


def metric_names(recipe_metrics: Sequence[str]) -> list[str]:
    """All metrics, with those of the recipe that were registered in the process that trained, but not in this one."""
    return list(dict.fromkeys([*METRICS, *(name for name in recipe_metrics if name not in _TITLES)]))


def figure_titles(recipe_metrics: Sequence[str]) -> dict[str, str]:
    """The titles of figures, in the order in which a card lists them."""
    names = metric_names(recipe_metrics)
    return {name: METRICS[name].title if name in METRICS else name for name in names} | _TITLES


def results_table(results: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    splits = [split for split in SPLITS if results.get(split)]
    names = [name for name in titles if any(name in results[split] for split in splits)]
    if not names:
        return ""
    rows = [[_heading(name, titles), *(results[split].get(name, "") for split in splits)] for name in names]
    return table(("metric", *splits), rows)


def group_tables(results: Mapping[str, Any], titles: Mapping[str, str]) -> list[dict[str, str]]:
    tables = []
    for split in SPLITS:
        for column, groups in figures_of(results, split).get("by", {}).items():
            names = [name for name in titles if any(name in figures for figures in groups.values())]
            rows = [
                [group, figures["count"], *(figures.get(name, "") for name in names)]
                for group, figures in groups.items()
            ]
            headings = (column, "examples", *(_heading(name, titles) for name in names))
            tables.append({"column": escape(column), "split": split, "table": table(headings, rows)})
    return tables


def _heading(name: str, titles: Mapping[str, str]) -> str:
    lower = name in (*MODEL_METRICS, *_BASELINES) or (name in METRICS and not METRICS[name].greater_is_better)
    return f"{titles[name]} (lower is better)" if lower else titles[name]


def figures_table(figures: Mapping[str, Any], headings: tuple[str, str]) -> str:
    rows = [
        [name.replace("_", " "), value]
        for name, value in figures.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    ]
    return table(headings, rows) if rows else ""


def predicted_rows(run_folder: Path, count: int) -> tuple[str, list[dict[str, Any]]]:
    for split in SPLITS:
        file = run_folder / "predictions" / f"{split}.jsonl"
        if count and file.exists() and file.stat().st_size:
            rows = [row for _, row in read_json_lines(file, "predictions")]
            chosen = [rows[place * len(rows) // count] for place in range(count)] if count < len(rows) else rows
            return split, chosen
    return "", []
