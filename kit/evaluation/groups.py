"""Metrics by group: by the value of a column such as the language, or by the length of the source."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from kit.errors import DataError, did_you_mean
from kit.evaluation.metrics import compute_metrics

LENGTH = "length"
"""This name groups by the length of the source, even if the data has a column of that name."""

_BIN_MAXIMA = (0, 10, 20, 30, 40, 50, 60, 80, 100, 200, 500, 1000)
"""Largest length in each bin. Bins widen with the length because long texts are rare."""


def check_groups(group_by: Sequence[str], columns: Sequence[str], split: str) -> None:
    """Raise DataError, before anything is trained, if a split has no column to group its results by."""
    for column in group_by:
        if column != LENGTH and column not in columns:
            raise DataError(
                f'eval.group_by: {split} has no column "{column}".{did_you_mean(column, columns)} It has '
                f"{', '.join(columns)}; {LENGTH} groups by the length of the source."
            )


def by_group(
    group_by: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    metrics: Sequence[str],
    by_metric: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, dict[str, dict[str, float | str]]]:
    """The metrics of each group, as `{"language": {"de": {"count": 120, "bleu": 31.5, …}}}`.

    `rows` hold `source`, `target`, `prediction` and the columns named in `group_by`. The groups of a column are sorted
    by name, those of "length" from short to long, with names like "11-20 words". Raises DataError for a missing column.
    """
    return {
        column: {name: _figures(group, metrics, by_metric) for name, group in _groups(column, rows).items()}
        for column in group_by
    }


def _figures(
    rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], by_metric: Mapping[str, Mapping[str, Any]] | None
) -> dict[str, float | str]:
    values = compute_metrics(metrics, [row["prediction"] for row in rows], [row["target"] for row in rows], by_metric)
    return {"count": len(rows), **values}


def _groups(column: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    if column == LENGTH:
        return _by_length(rows)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for number, row in enumerate(rows, start=1):
        if column not in row:
            columns = [*row, LENGTH]
            raise DataError(
                f'Results cannot be grouped by "{column}": row {number} has no such column.'
                f"{did_you_mean(column, columns)} Choose from: {', '.join(columns)}."
            )
        groups.setdefault(str(row[column]), []).append(row)
    return dict(sorted(groups.items()))


def _by_length(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The rows by fixed ranges of the length of their source, from short to long; empty ranges are left out.

    The unit is words, or characters if at most half of the sources have several words (some scripts, single words). All
    rows share it, and it is part of each group's name, since words and characters do not compare.
    """
    sources = [row["source"].strip() for row in rows]
    in_words = 2 * sum(len(source.split()) > 1 for source in sources) > len(sources)
    unit = "words" if in_words else "characters"
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for source, row in zip(sources, rows, strict=True):
        length = len(source.split()) if in_words else len(source)
        groups.setdefault(bisect_left(_BIN_MAXIMA, length), []).append(row)
    return {f"{_bin_name(index)} {unit}": groups[index] for index in sorted(groups)}


def _bin_name(index: int) -> str:
    if index == 0:
        return "0"
    if index == len(_BIN_MAXIMA):
        return f"over {_BIN_MAXIMA[-1]}"
    return f"{_BIN_MAXIMA[index - 1] + 1}-{_BIN_MAXIMA[index]}"
