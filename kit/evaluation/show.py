"""The figures of an evaluation as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from kit.evaluation.errors import CONFUSIONS, LABELS, number_of_errors
from kit.evaluation.titles import figure_titles

GROUPS, BY_STEP, BY_VALUE = "by", "by_horizon", "by_value"
"""Figures of groups of examples, and of each step and each value of a forecast."""
TABLES = (GROUPS, BY_STEP, BY_VALUE, LABELS, CONFUSIONS)
SETTINGS = {
    "examples": "Examples",
    "season": "Season, in steps",
    "linear_order": "Order of the linear autoregression",
    "regression_order": "Order of the linear regression",
}
"""Titles of what is listed among the figures without measuring anything."""
MAX_ROWS = 20  # of the tables of labels and of confusions


def figure_tables(figures: Mapping[str, Any], title: str) -> Iterator[Table]:
    """A table with a row for each figure, then one for each column of `eval.group_by`.

    The figures of each step of a forecast are left out: there may be hundreds.
    """
    titles = figure_titles()
    caption = Text(f"--json adds the figures of each step ({BY_STEP})") if BY_STEP in figures else None
    table = Table("figure", title=Text(title), title_justify="left", caption=caption, caption_justify="left")
    table.add_column("value", justify="right", overflow="fold")
    for name, value in _flat({name: value for name, value in figures.items() if name not in TABLES}):
        table.add_row(Text(_title(name, titles)), _cell(value))
    yield table
    for column, groups in figures.get(GROUPS, {}).items():
        yield _group_table(column, groups, titles)
    if len(values := figures.get(BY_VALUE, {})) > 1:
        yield _group_table("value", values, titles)
    if labels := figures.get(LABELS):
        yield _label_table(labels)
    if confusions := figures.get(CONFUSIONS):
        yield _confusion_table(confusions)


def _title(name: str, titles: Mapping[str, str]) -> str:
    metric, _, what = name.rpartition("_")
    if what == "signature" and metric in titles:
        return f"{titles[metric]} signature"
    return {**SETTINGS, **titles}.get(name, name.replace("_", " "))


def _flat(figures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All figures, those of a nested mapping with its name before theirs."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", value


def _group_table(column: str, groups: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> Table:
    numbers = {group: {k: v for k, v in figures.items() if not isinstance(v, str)} for group, figures in groups.items()}
    names = list(dict.fromkeys(name for figures in numbers.values() for name in figures))
    table = Table(title=Text(f"by {column}"), title_justify="left")
    table.add_column(Text(column))
    for name in names:
        table.add_column(Text(_title(name, titles)), justify="right")
    for group, figures in numbers.items():
        table.add_row(Text(group), *(_cell(figures.get(name, "")) for name in names))
    return table


def _label_table(labels: Mapping[str, Any]) -> Table:
    worst = sorted(labels, key=lambda label: -number_of_errors(labels[label]))[:MAX_ROWS]
    more = f" (the {MAX_ROWS} with the most errors of {len(labels):,}; all: --json)" if len(worst) < len(labels) else ""
    table = Table("label", title=Text(f"labels{more}"), title_justify="left")
    for name in ("precision", "recall", "f1", "examples", "predictions"):
        table.add_column(name, justify="right")
    for label in worst:
        table.add_row(Text(label), *(_cell(value) for value in labels[label].values()))
    return table


def _confusion_table(confusions: Sequence[Sequence[Any]]) -> Table:
    table = Table("label", "predicted", title=Text("most frequent confusions"), title_justify="left")
    table.add_column("errors", justify="right")
    for true, predicted, count in confusions[:MAX_ROWS]:
        table.add_row(Text(true), Text(predicted), _cell(count))
    return table


def _cell(value: Any) -> Text:
    """A figure with enough digits to compare."""
    if isinstance(value, float):
        return Text(
            f"{value:,.2f}"
            if 100 <= abs(value) < 1e6
            else f"{value:.4f}"
            if 1e-3 <= abs(value) < 100
            else f"{value:.4g}"
        )
    return Text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
