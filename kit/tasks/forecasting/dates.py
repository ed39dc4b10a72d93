"""Dates of time series: reading them, the step between them, how they continue, and their calendar features."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from kit.errors import DataError
from kit.tasks.forecasting.recipe import Feature

Dates = NDArray[np.datetime64]
"""Microseconds; those with a UTC offset are converted to UTC."""
FEATURES: tuple[Feature, ...] = get_args(Feature)

UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
"""From long to short, in seconds; a step is named by the longest that divides it."""
MICROSECOND = np.timedelta64(1, "us")
DAY = np.timedelta64(1, "D")


# ---- cells → dates ---------------------------------------------------------------------------------------------------


def read_dates(cells: Sequence[Any], where: str, what: str = "step") -> tuple[Dates, bool]:
    """Read the dates of a series; also returns whether they have a UTC offset. Raises DataError for a cell that is
    no date, and for dates that do not increase. `what` is the noun for a cell in messages."""
    moments = [_moment(cell, f"{where}, {what} {number}") for number, cell in enumerate(cells, start=1)]
    zoned = [moment.tzinfo is not None for moment in moments]
    if any(zoned) and not all(zoned):
        odd = zoned.index(not zoned[0])
        raise DataError(
            f"{where}, {what} {odd + 1}: the date {cells[odd]} {'has' if zoned[odd] else 'lacks'} a UTC offset, unlike "
            "the ones before it."
        )
    dates = np.array([moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
                      for moment in moments], dtype="datetime64[us]")  # fmt: skip
    back = np.flatnonzero(np.diff(dates) <= 0 * MICROSECOND)
    if len(back):
        number = int(back[0]) + 2
        raise DataError(
            f"{where}, {what} {number}: the date {cells[number - 1]} is not after {cells[number - 2]}, the one before "
            "it. Sort the rows of each series by date, without repeated dates (local times repeat an hour in autumn: "
            "use UTC)."
        )
    return dates, any(zoned)


def _moment(cell: Any, where: str) -> datetime:
    """The date or time in a cell. Raises DataError if it holds none."""
    if cell is None or cell == "":
        raise DataError(f"{where}: the date is missing.")
    if isinstance(cell, datetime):
        return cell
    if isinstance(cell, date):
        return datetime(cell.year, cell.month, cell.day)
    try:
        return datetime.fromisoformat(cell.strip())
    except (ValueError, AttributeError):
        raise DataError(f"{where} is not a date: {str(cell)[:40]!r}. Use 2024-12-31 or 2024-12-31T18:00.") from None


def is_date(cell: Any) -> bool:
    """Whether a cell can be read as a date."""
    try:
        _moment(cell, "")
    except DataError:
        return False
    return True


def date_texts(dates: Dates, utc: bool) -> list[str]:
    """Format dates in ISO 8601, no finer than needed."""
    unit: Any = "D" if (dates == dates.astype("datetime64[D]")).all() and not utc else "s"
    if unit == "s" and (dates != dates.astype("datetime64[s]")).any():
        unit = "us"
    texts = np.datetime_as_string(dates.astype(f"datetime64[{unit}]"))
    return [f"{text}{'Z' if utc else ''}" for text in texts.tolist()]


# ---- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The distance between consecutive dates: microseconds, or months of the calendar."""

    size: int
    months: bool = False
    irregular: int = 0
    """Number of distances that differ from it."""

    def __str__(self) -> str:
        if self.months:
            count, unit = (self.size / 12, "year") if self.size % 12 == 0 else (self.size, "month")
        else:
            unit, length = next((unit for unit in UNITS if self.size % (unit[1] * 1_000_000) == 0), UNITS[-1])
            count = self.size / (length * 1_000_000)
        return f"{count:g} {unit}{'s' * (count != 1)}"

    @classmethod
    def of(cls, dates: Dates) -> "Step | None":
        """The step between the dates of a series; the most frequent one, if they are irregular. None for fewer than
        two dates."""
        if len(dates) < 2:
            return None
        sizes = np.diff(dates).astype(np.int64)
        if (sizes == sizes[0]).all():
            return cls(int(sizes[0]))
        months = np.diff(dates.astype("datetime64[M]").astype(np.int64))
        days = _day_of_month(dates)
        same_place = (days == days.max()) | _is_month_end(dates)  # the 31st, or the last day of a shorter month
        same_time = len(np.unique(dates - dates.astype("datetime64[D]"))) == 1
        if months[0] > 0 and (months == months[0]).all() and same_place.all() and same_time:
            return cls(int(months[0]), months=True)
        size, count = Counter(sizes.tolist()).most_common(1)[0]
        return cls(size, irregular=len(sizes) - count)

    def after(self, dates: Dates, count: int) -> Dates:
        """The `count` dates that follow."""
        steps = np.arange(1, count + 1)
        if not self.months:
            return dates[-1] + steps * self.size * MICROSECOND
        start = dates[-1].astype("datetime64[M]") + self.size * steps
        ends = (start + 1).astype("datetime64[D]") - DAY
        day = np.minimum(_day_of_month(dates).max(), _day_of_month(ends))
        return start.astype("datetime64[us]") + (day - 1) * DAY + (dates[-1] - dates[-1].astype("datetime64[D]"))


def _day_of_month(dates: Any) -> NDArray[np.int64]:
    """The day of the month of each date, from 1."""
    days = dates.astype("datetime64[D]")
    return np.asarray((days - days.astype("datetime64[M]")).astype(np.int64) + 1)


def _is_month_end(dates: Dates) -> NDArray[np.bool_]:
    """Whether each date is in the last day of its month."""
    days = dates.astype("datetime64[D]")
    return np.asarray((days + DAY).astype("datetime64[M]") != days.astype("datetime64[M]"))


# ---- calendar features -----------------------------------------------------------------------------------------------


def phases(dates: Dates, feature: Feature) -> NDArray[np.float64]:
    """How much of the cycle of a feature has passed at each date, from 0 to 1: at noon, half of "hour"."""
    days = dates.astype("datetime64[D]")
    if feature == "hour":
        return np.asarray((dates - days) / DAY, dtype=np.float64)
    if feature == "weekday":  # the first day of 1970 was a Thursday; a day begins on Monday
        return np.asarray((days.astype(np.int64) + 3) % 7 / 7, dtype=np.float64)
    return np.asarray(dates.astype("datetime64[M]").astype(np.int64) % 12 / 12, dtype=np.float64)


def calendar(dates: Dates, features: Sequence[Feature]) -> NDArray[np.float64]:
    """Sine and cosine of each feature, (steps, 2 · features), which give neighbors such as 23 and 0 o'clock similar
    numbers."""
    angles = [2 * np.pi * phases(dates, feature) for feature in features]
    columns = [side(angle) for angle in angles for side in (np.sin, np.cos)]
    return np.stack(columns, axis=1) if columns else np.zeros((len(dates), 0))


def complete_cycles(series: Sequence[Dates]) -> list[Feature]:
    """The features that vary and whose whole cycle some series covers. Others would take values in the future that
    training has not seen."""
    return [feature for feature in FEATURES if _varies(series, feature) and _is_covered(series, feature)]


def _varies(series: Sequence[Dates], feature: Feature) -> bool:
    """Whether a feature takes several values."""
    return len({phase for dates in series for phase in np.unique(phases(dates, feature)).tolist()}) > 1


def _is_covered(series: Sequence[Dates], feature: Feature) -> bool:
    """Whether a series is as long as the cycle of a feature."""
    days = {"hour": 1, "weekday": 7, "month": 360}[feature]  # 52 weeks, which count as a year, have 364
    return any(len(dates) > 1 and dates[-1] - dates[0] + np.median(np.diff(dates)) >= days * DAY for dates in series)
