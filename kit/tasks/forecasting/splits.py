"""What of series is held out of training: some of them, or the end of each."""

from typing import TYPE_CHECKING

from kit.data.report import DataReport, SplitReport
from kit.data.splits import hold_out_missing
from kit.data.steps import RowSteps
from kit.errors import DataError
from kit.tasks.forecasting.series import Series, as_rows, from_rows

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.forecasting.recipe import ForecastingData


def hold_out_series(found: "dict[str, Dataset]", data: "ForecastingData", report: DataReport) -> None:
    """Take validation and test out of train where the data has none and the recipe says how much."""
    for split, steps in (("test", data.test_steps), ("validation", data.validation_steps)):
        if steps is None:
            continue
        if split in found:
            raise DataError(f"data.{split}_steps: {data.path} has a split for {split} of its own. Remove the key.")
        series = from_rows(found["train"])
        ends = [one for one in series if len(one) > steps]
        if not ends:
            longest = max(map(len, series))
            raise DataError(
                f"data.{split}_steps: no training series has more than {steps} steps, the longest {longest}."
            )
        found["train"] = as_rows([_part(one, 0, len(one) - steps) for one in ends])
        # what is before the steps to predict may be read
        found[split] = as_rows([_part(one, max(0, len(one) - steps - data.history), len(one)) for one in ends])
        report.splits[split] = SplitReport(len(ends))
        if len(ends) < len(series):
            report.splits["train"].dropped["no longer than what is held out of each"] += len(series) - len(ends)
    hold_out_missing(found, data, RowSteps(data), report)


def _part(series: Series, start: int, end: int) -> Series:
    return Series(series.name, series.values[start:end], series.context[start:end])
