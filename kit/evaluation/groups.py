"""Results by group: by the value of a column such as the language, or by the length of the source."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kit.errors import DataError, did_you_mean
from kit.evaluation.metrics import compute_metrics

LENGTH = "length"
"""Grouping by this name means the length of the source, whatever columns there are."""

_UPPER_ENDS = (0, 10, 20, 30, 40, 50, 60, 80, 100, 200, 500, 1000)


def by_group(
    group_by: Sequence[str], rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]
) -> dict[str, dict[str, dict[str, float | str]]]:
    """The metrics of each group, as `{"language": {"de": {"count": 120, "bleu": 31.5, …}}}`.

    `rows` are prediction rows with `source`, `target`, `prediction` and the columns named in `group_by`. The
    groups of a column come in the order of their names, those of "length" from short to long, with names like
    "11-20 words".
    """
    return {
        column: {name: _results(group, metrics) for name, group in _groups(column, rows).items()} for column in group_by
    }


def _results(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, float | str]:
    values = compute_metrics(metrics, [row["prediction"] for row in rows], [row["target"] for row in rows])
    return {"count": len(rows), **values}


def _groups(column: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    if column == LENGTH:
        return _by_length(rows)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for number, row in enumerate(rows, start=1):
        if column not in row:
            columns = [*row, LENGTH]
            raise DataError(
                f'Results cannot be grouped by "{column}": row {number} has no such column. '
                f"There are: {', '.join(columns)}.{did_you_mean(column, columns)}"
            )
        groups.setdefault(str(row[column]), []).append(row)
    return dict(sorted(groups.items()))


def _by_length(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Lengths are in words, or in characters where most sources have no space (some scripts, single words).

    The unit is the same for all rows, and part of each group's name, since the two do not compare.
    """
    sources = [row["source"].strip() for row in rows]
    in_words = _most(len(source.split()) > 1 for source in sources)
    unit = "words" if in_words else "characters"
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for source, row in zip(sources, rows, strict=True):
        length = len(source.split()) if in_words else len(source)
        groups.setdefault(bisect_left(_UPPER_ENDS, length), []).append(row)
    return {f"{_range(place)} {unit}": groups[place] for place in sorted(groups)}


def _most(facts: Iterable[bool]) -> bool:
    values = list(facts)
    return 2 * sum(values) > len(values)


def _range(place: int) -> str:
    if place == 0:
        return "0"
    if place == len(_UPPER_ENDS):
        return f"over {_UPPER_ENDS[-1]}"
    return f"{_UPPER_ENDS[place - 1] + 1}-{_UPPER_ENDS[place]}"
