"""The splits of series: reading them, and holding out some of the training series, or the end of each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kit.data.builder import SplitBuilder, Splits
from kit.data.report import SplitReport
from kit.data.sources import read_splits
from kit.data.steps import RowSteps
from kit.errors import DataError
from kit.system.console import counted
from kit.tasks.forecasting.dates import Step
from kit.tasks.forecasting.series import Series, as_rows, from_rows, read_series

if TYPE_CHECKING:
    from kit.tasks.forecasting.recipe import ForecastingData


def load_series(data: "ForecastingData") -> Splits:
    """Load the splits of a recipe, with a row for each series. Raises DataError if they cannot be read or held out."""
    builder = SplitBuilder(data, RowSteps(data))
    for split, (rows, report) in read_splits(data, builder.steps).items():
        with builder.collecting(split):
            series = read_series(rows, data, f"{data.path}, {split}")
            if not series:
                raise DataError(f"{data.path}: the {split} split has no series.")
            builder.report.notes += irregular_dates(series, split)
            builder.add(split, as_rows(series), report)
    builder.check_mistakes()
    hold_out_series(builder, data)
    builder.select_training_rows()
    for split, rows in builder.datasets.items():
        lengths = [len(values) for values in rows["values"]]
        builder.report.splits[split].rows = len(rows)
        steps = f"{min(lengths):,} to " * (min(lengths) < max(lengths)) + counted(max(lengths), "step")
        builder.report.notes.append(f"{split}: {len(rows):,} series of {steps}")
    return builder.fingerprinted()


def hold_out_series(builder: SplitBuilder, data: "ForecastingData") -> None:
    """Hold validation and test out of train, where the data lacks them and the recipe gives a size or a number of
    steps."""
    for split, steps in (("test", data.test_steps), ("validation", data.validation_steps)):
        if steps is None:
            continue
        builder.check_absent(split, f"{split}_steps")
        series = from_rows(builder.train)
        ends = [item for item in series if len(item) > steps]
        if not ends:
            longest = max(map(len, series))
            raise DataError(
                f"data.{split}_steps: no training series has more than {steps} steps, the longest {longest}."
            )
        builder.datasets["train"] = as_rows([item.part(0, len(item) - steps) for item in ends])
        # what is before the steps to predict may be read
        rows = as_rows([item.part(max(0, len(item) - steps - data.history), len(item)) for item in ends])
        builder.add(split, rows, SplitReport(len(ends)))
        if len(ends) < len(series):
            dropped = builder.report.splits["train"].dropped
            dropped["no longer than what is held out of each"] += len(series) - len(ends)
    builder.hold_out_missing()


def irregular_dates(series: Sequence[Series], split: str) -> list[str]:
    """Notes on distances between dates that differ: a model takes all steps as equal."""
    steps = [step for item in series if item.dates is not None and (step := Step.of(item.dates)) is not None]
    irregular = sum(step.irregular for step in steps)
    notes = []
    if irregular:
        total = sum(len(item) - 1 for item in series)
        notes.append(
            f"{split}: {irregular:,} of {total:,} steps between dates are not {steps[0]}, and are treated as if they "
            "were"
        )
    if len({str(step) for step in steps}) > 1:
        notes.append(f"{split}: the series differ in their steps: {', '.join(sorted({str(step) for step in steps}))}")
    return notes
