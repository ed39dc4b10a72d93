"""From `data:` in the recipe to splits with the columns of the task, and a report of what was left out.

Nothing is dropped in silence: the report accounts for every row that was read.
"""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kit.data.checks import Splits, check_fingerprints, count_rows, missing_splits, refuse_empty
from kit.data.columns import drop_missing, keep_common_columns, name_columns
from kit.data.report import DataReport, SplitReport
from kit.data.rows import filter_rows, fingerprint, first_occurrences, held_out_mask, row_digests
from kit.data.sources import SPLITS, read_splits
from kit.data.steps import RowSteps
from kit.data.streamed import load_streamed

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.recipe.data import DataSection


def load_splits(data: "DataSection", steps: RowSteps | None = None) -> Splits:
    """Load the data that a recipe names, with the steps of its task.

    Raises DataError if the data is missing or does not match the recipe. Of the filters for training data,
    `drop_duplicates`, the limits of the task and `max_examples` are applied here; those that count tokens need a
    tokenizer.
    """
    from datasets import DatasetDict

    steps = RowSteps(data) if steps is None else steps
    if data.streaming:
        return load_streamed(data, steps)
    report = DataReport()
    found: dict[str, Dataset] = {}
    for split, (dataset, split_report) in read_splits(data, steps).items():
        report.splits[split] = split_report
        found[split] = name_columns(steps.adapt(dataset), data, split, report, steps.columns)
    if steps.expands:
        # Before a row becomes several examples, so that it is held out in all of them.
        hold_out_missing(found, data, steps, report)
        found = {split: steps.expand(rows, report.splits[split]) for split, rows in found.items()}
    found = {split: drop_missing(rows, data.roles, report.splits[split]) for split, rows in found.items()}
    found = {split: steps.merge(rows, split, report.splits[split]) for split, rows in found.items()}
    if data.value_columns and "test" in found and not found["test"]:
        del found["test"], report.splits["test"]  # as in benchmarks that keep the answers to themselves
        report.notes.append("test is left out: none of its rows has all values")
    refuse_empty(found, data, steps, report)
    if not steps.expands:
        hold_out_missing(found, data, steps, report)
    found["train"] = choose_training_rows(found["train"], data, steps, report.splits["train"])
    found = {split: found[split] for split in SPLITS if split in found}
    found["train"] = steps.repeat(found["train"], report.splits["train"])
    keep_common_columns(found, data.roles, report)
    count_rows(found, data.roles, report)
    fingerprints = {split: fingerprint(dataset) for split, dataset in found.items()}
    check_fingerprints(fingerprints, data)
    return Splits(DatasetDict(found), report, fingerprints)


def hold_out_missing(found: "dict[str, Dataset]", data: "DataSection", steps: RowSteps, report: DataReport) -> None:
    """Take validation and test out of train where the data has none and the recipe gives a size."""
    for split, size in missing_splits(found, data, steps.holdout_sizes(found["train"])).items():
        held = held_out_mask(steps.holdout_groups(found["train"]), size, f"{split}_size", data.held_out_by[0])
        found[split] = filter_rows(found["train"], held)
        found["train"] = filter_rows(found["train"], ~held)
        report.splits[split] = SplitReport(int(held.sum()))
        report.splits["train"].dropped[f"held out for {split}"] = int(held.sum())


def choose_training_rows(train: "Dataset", data: "DataSection", steps: RowSteps, report: SplitReport) -> "Dataset":
    """Apply drop_duplicates, then the limits of the task, then max_examples."""
    if data.drop_duplicates:
        first = first_occurrences(row_digests(train, steps.identity))
        report.dropped += Counter({"duplicate": int((~first).sum())})
        train = filter_rows(train, first)
    train = steps.limit(train, report)
    if data.max_examples is not None and data.max_examples < len(train):
        report.dropped["beyond data.max_examples"] = len(train) - data.max_examples
        train = filter_rows(train, np.random.default_rng(data.seed).permutation(len(train)) < data.max_examples)
    return train
