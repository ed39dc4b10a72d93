"""From `data:` in the recipe to splits with the columns of the task, and a report of what was left out.

Nothing is dropped silently: the report accounts for every row that was read.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kit.data.builder import SplitBuilder, Splits
from kit.data.columns import drop_missing, name_columns
from kit.data.sources import missing_split, read_splits
from kit.data.steps import RowSteps
from kit.data.streamed import load_streamed
from kit.errors import DataError

if TYPE_CHECKING:
    from kit.recipe.data import DataSection

__all__ = ["Splits", "check_training_splits", "load_splits", "training_problems"]


def check_training_splits(splits: Splits, data: "DataSection") -> None:
    """Raise DataError for data that cannot be trained on, because it has no training or no validation split."""
    names = [*splits.datasets, *(["train"] if splits.stream is not None else [])]
    if problems := training_problems(names, data):
        raise DataError("\n".join(problems))


def training_problems(splits: Sequence[str], data: "DataSection") -> list[str]:
    """What keeps data with these splits, read or held out, from being trained on."""
    problems = []
    if "train" not in splits:
        problems.append(str(missing_split(data, "train", splits)))
    if "validation" not in splits:
        problems.append(
            f"data.validation: {data.path} has no validation split, by which the best checkpoint is chosen. Name it "
            "(data.validation), or hold rows out of train (data.validation_size: 1000)."
        )
    return problems


def load_splits(data: "DataSection", steps: RowSteps | None = None) -> Splits:
    """Load the data that a recipe names, with the steps of its task.

    Raises DataError if the data is missing or does not match the recipe. Of the filters for training data,
    `drop_duplicates`, the limits of the task and `max_examples` are applied here; those that count tokens need a
    tokenizer.
    """
    steps = RowSteps(data) if steps is None else steps
    if data.streaming:
        return load_streamed(data, steps)
    builder = SplitBuilder(data, steps)
    for split, (rows, report) in read_splits(data, steps).items():
        with builder.collecting(split):
            builder.add(split, name_columns(steps.adapt(rows), data, split, builder.report, steps.columns), report)
    builder.check_mistakes()
    if steps.expands:
        # before a row becomes several examples, so that all of them are held out
        builder.hold_out_missing()
    for split, rows in builder.datasets.items():
        report = builder.report.splits[split]
        texts = data.text_roles if split == "train" else ()
        complete = drop_missing(steps.expand(rows, report), data.roles, report, texts)
        builder.datasets[split] = steps.merge(complete, split, report)
    if data.value_columns and "test" in builder.datasets and not builder.datasets["test"]:
        del builder.datasets["test"], builder.report.splits["test"]  # as in benchmarks that publish no answers
        builder.report.notes.append("test is left out: none of its rows has all values")
    builder.check_not_empty()
    if not steps.expands:
        builder.hold_out_missing()
    builder.select_training_rows()
    return builder.finish()
