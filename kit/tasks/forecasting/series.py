"""Time series: from tables, with a row for each step or for each series, to arrays."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kit.data.rows import to_dataset
from kit.errors import DataError, did_you_mean
from kit.tasks.forecasting.dates import Dates, calendar, date_texts, is_date, read_dates

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.forecasting.recipe import Feature, ForecastingData

Array = NDArray[np.float64]

SCHEMA = pa.schema(
    {"series": pa.string(), "values": pa.list_(pa.list_(pa.float64())), "context": pa.list_(pa.list_(pa.float64()))}
)
"""The columns of a split, with a row for each series; a missing value is null."""
DATES, UTC = "dates", "utc"
"""Further columns where the series have dates: these, and whether they are in UTC."""


@dataclass(frozen=True)
class Series:
    """A time series with its context."""

    name: str
    values: Array  # (steps, value_size), NaN where one is missing
    context: Array  # (steps or more, context_size)
    dates: Dates | None = None  # (steps or more,)
    utc: bool = False
    """Whether the dates are in UTC, rather than local time without an offset."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def value_size(self) -> int:
        return self.values.shape[1]

    @property
    def context_size(self) -> int:
        return self.context.shape[1]

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether each step has all its values, (steps,)."""
        return np.asarray(~np.isnan(self.values).any(1))

    def part(self, start: int, end: int) -> "Series":
        """The steps from `start` to before `end`."""
        dates = None if self.dates is None else self.dates[start:end]
        return replace(self, values=self.values[start:end], context=self.context[start:end], dates=dates)

    def with_calendar(self, features: "Sequence[Feature]") -> "Series":
        """The series with these calendar features appended to its context."""
        if self.dates is None or not features:
            return self
        return replace(self, context=np.hstack([self.context, calendar(self.dates, features)]))

    def date_texts(self, start: int, end: int) -> list[str] | None:
        """The dates of the steps from `start` to before `end`; None if the series has none."""
        return None if self.dates is None else date_texts(self.dates[start:end], self.utc)


# ---- tables → series -------------------------------------------------------------------------------------------------


def read_series(rows: "Dataset", data: "ForecastingData", where: str, complete: bool = True) -> list[Series]:
    """Read the series of a table, in the order of their first rows. Raises DataError for a missing or invalid number.

    Without `complete`, as for a forecast, the last steps need no values: they are the context of the steps to predict.
    """
    missing = [(name, key) for name, key in data.value_columns.items() if name not in rows.column_names]
    if missing:
        raise DataError("\n".join(
            f'data.{key}: {where} has no column "{name}".{did_you_mean(name, rows.column_names)} It has '
            f"{', '.join(rows.column_names)}."
            for name, key in missing
        ))  # fmt: skip
    kind = rows.data.schema.field(data.targets[0]).type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    series = _series_of_rows(rows, data, where) if is_list else _series_of_steps(rows, data, where)
    return [_checked(item, data, f'{where}, series "{item.name}"', complete) for item in series]


def _series_of_rows(rows: "Dataset", data: "ForecastingData", where: str) -> Iterator[Series]:
    """Read a table with a row for each series."""
    for number, row in enumerate(rows.select_columns(list(data.value_columns)), start=1):
        name = str(number if data.series is None else row[data.series])
        here = f'{where}, series "{name}"'
        values = _concatenate([_matrix(row[column], column, here) for column in data.targets], data.targets, here)
        context = _concatenate([_matrix(row[column], column, here) for column in data.context], data.context, here)
        dates, utc = None, False
        if data.date is not None:
            if not isinstance(row[data.date], list):
                raise DataError(f'{here}: "{data.date}" is not a list of dates, one for each step.')
            dates, utc = read_dates(row[data.date], here)
        if not data.context:
            context = np.zeros((len(values if dates is None else dates), 0))
        yield Series(name, values, context, dates, utc)


def _matrix(cell: Any, column: str, where: str) -> Array:
    """Read a cell with a list of numbers, or of equally long lists of numbers, as (steps, numbers)."""
    if not isinstance(cell, list) or not cell:
        raise DataError(f'{where}: "{column}" is not a list of numbers.')
    steps = [step if isinstance(step, list) else [step] for step in cell]
    size = len(steps[0])
    for number, step in enumerate(steps, start=1):
        if len(step) != size:
            raise DataError(f'{where}: step {number} of "{column}" has {len(step)} numbers, and the first has {size}.')
    cells = [[_number(part, f'{where}, step {n}: "{column}"') for part in step] for n, step in enumerate(steps, 1)]
    return np.array(cells, dtype=np.float64)


def _concatenate(parts: Sequence[Array], names: Sequence[str], where: str) -> Array:
    """Concatenate columns of equal length to one matrix."""
    for name, part in zip(names, parts, strict=True):
        if len(part) != len(parts[0]):
            raise DataError(f'{where}: "{names[0]}" has {len(parts[0])} steps, but "{name}" has {len(part)}.')
    return np.concatenate(parts, axis=1) if parts else np.zeros((0, 0))


def _series_of_steps(rows: "Dataset", data: "ForecastingData", where: str) -> Iterator[Series]:
    """Read a table with a row for each step, in order. Rows of several series may alternate."""
    table = rows.with_format("arrow")[:]
    columns = {
        name: np.array(
            [_number(cell, f'{where}, row {n}: "{name}"') for n, cell in enumerate(table[name].to_pylist(), 1)]
        )
        for name in (*data.targets, *data.context)
    }
    dates_of_rows = [] if data.date is None else table[data.date].to_pylist()
    names: list[str | None] = [where for _ in range(len(table))]
    if data.series is not None:
        names = [None if cell is None else str(cell) for cell in table[data.series].to_pylist()]
        if None in names:
            raise DataError(
                f'{where}, row {names.index(None) + 1}: "{data.series}", the name of the series, is missing.'
            )
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        groups.setdefault(str(name), []).append(row)
    for name, rows_of_series in groups.items():
        values, context = (
            np.stack([columns[column][rows_of_series] for column in side], axis=1)
            if side
            else np.zeros((len(rows_of_series), 0))
            for side in (data.targets, data.context)
        )
        dates, utc = None, False
        if data.date is not None:
            cells = [dates_of_rows[row] for row in rows_of_series]
            dates, utc = read_dates(cells, where if data.series is None else f'{where}, series "{name}"')
        yield Series(name, values, context, dates, utc)


def _number(cell: Any, where: str) -> float:
    """Read a cell as a finite number, or as NaN if it is empty. Raises DataError for anything else."""
    if cell is None or cell == "":
        return math.nan
    try:
        number = float(cell)
    except (TypeError, ValueError):
        hint = " A column of dates is named by data.date; the model reads its calendar features." * is_date(cell)
        hint += " Write it with a decimal point." * (re.fullmatch(r"[+-]?\d+,\d+", str(cell).strip()) is not None)
        raise DataError(f"{where} is not a number: {str(cell)[:40]!r}.{hint}") from None
    if math.isinf(number):
        raise DataError(f"{where} is infinite.")
    return number


def _checked(series: Series, data: "ForecastingData", where: str, complete: bool) -> Series:
    """Return the series without missing values at its end. Raises DataError if a required number is missing."""
    values, context = series.values, series.context
    if not complete:
        present = np.flatnonzero(~np.isnan(values).all(1))
        values = values[: present[-1] + 1 if len(present) else 0]
    known = {"context": len(context), **({} if series.dates is None else {"dates": len(series.dates)})}
    for what, steps in known.items():
        if steps < len(values) or (complete and steps > len(values)) or steps != len(context):
            raise DataError(f"{where}: it has values of {len(values)} steps, but {what} of {steps}.")
    for what, numbers, names in (("value", values, data.targets), ("context", context, data.context)):
        missing = np.argwhere(np.isnan(numbers))
        if len(missing) and (what == "context" or data.missing == "refuse"):
            step, column = missing[0]
            name = f' of "{names[column]}"' if len(names) == numbers.shape[1] else ""
            advice = " Fill it in, or mask such steps with data.missing: mask." if what == "value" else ""
            raise DataError(f"{where}, step {step + 1}: the {what}{name} is missing.{advice}")
    return replace(series, values=values)


# ---- series ↔ rows of a split ----------------------------------------------------------------------------------------


def as_rows(series: Sequence[Series]) -> "Dataset":
    """Store series in a data set with a row for each."""
    columns = {
        "series": [item.name for item in series],
        "values": [[[None if math.isnan(x) else x for x in step] for step in item.values.tolist()] for item in series],
        "context": [item.context.tolist() for item in series],
    }
    table = pa.table(columns, SCHEMA)
    if series and series[0].dates is not None:
        dates = [None if item.dates is None else item.dates.astype(np.int64).tolist() for item in series]
        table = table.append_column(DATES, pa.array(dates, pa.list_(pa.int64())))
        table = table.append_column(UTC, pa.array([item.utc for item in series]))
    return to_dataset(table)


def from_rows(rows: "Dataset") -> list[Series]:
    """Read the series that `as_rows` stored."""
    series = []
    for row in rows:
        values = np.array(row["values"], dtype=np.float64)
        context = np.array(row["context"], dtype=np.float64).reshape(len(values), -1)
        dates = np.array(row[DATES], dtype="datetime64[us]") if row.get(DATES) is not None else None
        series.append(Series(row["series"], values, context, dates, bool(row.get(UTC))))
    return series
