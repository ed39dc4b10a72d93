"""What of series is held out of training: some of them, or the end of each."""

from typing import TYPE_CHECKING

from kit.data.builder import SplitBuilder
from kit.data.report import SplitReport
from kit.errors import DataError
from kit.tasks.forecasting.series import as_rows, from_rows

if TYPE_CHECKING:
    from kit.tasks.forecasting.recipe import ForecastingData


def hold_out_series(builder: SplitBuilder, data: "ForecastingData") -> None:
    """Take validation and test out of train where the data has none and the recipe gives a size."""
    for split, steps in (("test", data.test_steps), ("validation", data.validation_steps)):
        if steps is None:
            continue
        builder.check_absent(split, f"{split}_steps")
        series = from_rows(builder.train)
        ends = [one for one in series if len(one) > steps]
        if not ends:
            longest = max(map(len, series))
            raise DataError(
                f"data.{split}_steps: no training series has more than {steps} steps, the longest {longest}."
            )
        builder.datasets["train"] = as_rows([one.part(0, len(one) - steps) for one in ends])
        # what is before the steps to predict may be read
        rows = as_rows([one.part(max(0, len(one) - steps - data.history), len(one)) for one in ends])
        builder.add(split, rows, SplitReport(len(ends)))
        if len(ends) < len(series):
            dropped = builder.report.splits["train"].dropped
            dropped["no longer than what is held out of each"] += len(series) - len(ends)
    builder.hold_out_missing()
