"""The splits of a run, and what is checked of them, whether training data is in memory or streamed."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kit.data.report import DataReport
from kit.data.rows import ColumnView, row_digests
from kit.data.sources import SPLITS
from kit.data.steps import RowSteps
from kit.data.streaming.stream import Stream
from kit.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from kit.recipe.data import DataSection


@dataclass(frozen=True)
class Splits:
    """The data of a run."""

    datasets: "DatasetDict"
    """train, validation and, if there is one, test: each with the columns of the task and the same others."""

    report: DataReport
    """What was left out, and why."""

    fingerprints: dict[str, str]
    """Sixteen digits for each split that stand for all its rows; of a stream, for its files."""

    stream: Stream | None = None
    """The training data, if it is streamed: then it is not in `datasets`."""


def refuse_empty(found: "dict[str, Dataset]", data: "DataSection", steps: RowSteps, report: DataReport) -> None:
    """Raise DataError for a split without rows; note what a split lacks."""
    for split, dataset in found.items():
        if dataset and (missing := steps.missing_examples(dataset)):
            report.notes.append(f"{split}: no example {missing}")
        if not dataset:
            split_report = report.splits[split]
            reasons = ", ".join(f"{count} {why}" for why, count in split_report.dropped.items())
            raise DataError(
                f"{data.path}: no row of the {split} split can be used (of {split_report.read}: {reasons})."
            )


def missing_splits(found: Collection[str], data: "DataSection", sizes: Mapping[str, int | None]) -> dict[str, int]:
    """The splits that must be held out of train, and their sizes. Raises DataError if `sizes` do not fit the data."""
    for split, size in sizes.items():
        if split in found and size is not None:
            raise DataError(f"data.{split}_size: {data.path} has a split for {split} of its own. Remove the key.")
    if "validation" not in found and sizes["validation"] is None:
        raise DataError(
            f"{data.path} has no validation split, by which the best checkpoint is chosen. Name it "
            "(data.validation), or hold rows out of train (data.validation_size: 1000)."
        )
    return {split: size for split, size in sizes.items() if size is not None}


def count_rows(found: "dict[str, Dataset]", roles: Sequence[str], report: DataReport) -> None:
    """Complete the report by what was kept, split by split."""
    first = roles[0]
    trained = row_digests(found["train"], [first]) if "train" in found else np.empty(0)  # as of a stream
    for split, dataset in found.items():
        split_report = report.splits[split]
        split_report.rows = len(dataset)
        for role in roles:
            split_report.flagged += Counter({f"empty {role}": sum(cell == "" for cell in ColumnView(dataset, role))})
        if split != "train":
            known = np.isin(row_digests(dataset, [first]), trained).sum()
            article = "an" if first[0] in "aeiou" else "a"
            split_report.flagged += Counter({f"{article} {first} that is in train": int(known)})
    report.splits = {split: report.splits[split] for split in found}


def check_fingerprints(fingerprints: dict[str, str], data: "DataSection") -> None:
    """Raise DataError if the recipe knows other data under this path."""
    expected = fingerprints if data.fingerprints is None else data.fingerprints
    changed = [split for split in SPLITS if fingerprints.get(split) != expected.get(split)]
    if changed:
        raise DataError(
            f"data.fingerprints: {data.path} is not the data of this recipe: {', '.join(changed)} changed (now "
            f"{', '.join(f'{split} {fingerprints.get(split)}' for split in changed)}). Bring back the data, or undo "
            "the change of the data section; to go on with the new data, remove data.fingerprints."
        )
