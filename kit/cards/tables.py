"""The results of a run as tables of metrics, and example predictions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.cards.markdown import escape, table
from kit.evaluation.titles import lower_is_better
from kit.system.files import read_json_lines

SPLITS = ("test", "validation")
"""The splits that a card reports, most important first."""


def figures_of(results: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    """A section of the results, empty if the run has none."""
    return results.get(section) or {}


def results_table(results: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The metrics of each split; an empty string if there are none."""
    splits = [split for split in SPLITS if results.get(split)]
    names = [name for name in titles if any(name in results[split] for split in splits)]
    rows = [[_heading(name, titles), *(_figure(results[split], name) for split in splits)] for name in names]
    return table(("metric", *splits), rows)


def group_tables(results: Mapping[str, Any], titles: Mapping[str, str]) -> list[dict[str, str]]:
    """The metrics by group, one table for each split and column of `eval.group_by`."""
    tables = []
    for split in SPLITS:
        for column, groups in figures_of(results, split).get("by", {}).items():
            names = [name for name in titles if any(name in figures for figures in groups.values())]
            rows = [
                [group, figures["count"], *(_figure(figures, name) for name in names)]
                for group, figures in groups.items()
            ]
            headings = (column, "examples", *(_heading(name, titles) for name in names))
            tables.append({"column": escape(column), "split": split, "table": table(headings, rows)})
    return tables


def _figure(figures: Mapping[str, Any], name: str) -> Any:
    """A figure as a cell of a table: empty if there is none, and in words if it was not finite, null in JSON."""
    value = figures.get(name, "")
    return "not finite" if value is None else value


def _heading(name: str, titles: Mapping[str, str]) -> str:
    return f"{titles[name]} (lower is better)" if lower_is_better(name) else titles[name]


def figures_table(figures: Mapping[str, Any], headings: tuple[str, str]) -> str:
    """Strings and numbers by name; other values are left out."""
    rows = [
        [name.replace("_", " "), value]
        for name, value in figures.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    ]
    return table(headings, rows)


def predicted_rows(run_folder: Path, count: int) -> tuple[str, list[dict[str, Any]]]:
    """Up to `count` evenly spaced rows of the final predictions, and the split they are from; ("", []) if none."""
    for split in SPLITS:
        file = run_folder / "predictions" / f"{split}.jsonl"
        if count and file.exists() and file.stat().st_size:
            rows = [row for _, row in read_json_lines(file, "predictions")]
            return split, rows if count >= len(rows) else [rows[i * len(rows) // count] for i in range(count)]
    return "", []
