"""The splits of a run while they are assembled, whether training data is in memory or streamed."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kit.data.columns import blank, keep_common_columns
from kit.data.report import DataReport, SplitReport
from kit.data.rows import filter_rows, fingerprint, first_occurrences, held_out_mask, row_digests, too_large
from kit.data.sources import SPLITS, missing_split
from kit.data.steps import RowSteps
from kit.data.streaming.stream import Stream
from kit.errors import DataError, DataMistakes

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
    """Sixteen hexadecimal digits per split that identify all its rows; of a stream, its files."""

    stream: Stream | None = None
    """The training data, if it is streamed: then it is not in `datasets`."""


def without_split(mistake: str) -> str:
    """A message without the name of the split that it is about."""
    return re.sub(r"\b(the )?(train|validation|test) split\b", "", mistake)


class SplitBuilder:
    """Assembles the splits of a run, in the order train, validation, test, and accounts for every row."""

    def __init__(self, data: "DataSection", steps: RowSteps):
        self.data, self.steps = data, steps
        self.report = DataReport()
        self.datasets: dict[str, Dataset] = {}
        self._present: list[str] = []
        self._mistakes: list[str] = []

    def add(self, split: str, rows: "Dataset", report: SplitReport) -> None:
        """Add a split."""
        datasets, reports = {**self.datasets, split: rows}, {**self.report.splits, split: report}
        self.datasets = {name: datasets[name] for name in SPLITS if name in datasets}
        self.report.splits = {name: reports[name] for name in SPLITS if name in reports}

    @contextmanager
    def collecting(self, split: str) -> Iterator[None]:
        """Context manager for what is done to one split: its mistakes do not hide those of other splits.

        `check_mistakes` reports all of them.
        """
        self._present.append(split)
        try:
            yield
        except DataError as error:
            # a column that is missing in several splits is one mistake
            known = [without_split(mistake) for mistake in self._mistakes]
            self._mistakes += [line for line in str(error).split("\n") if without_split(line) not in known]

    def check_mistakes(self) -> None:
        """Raise DataMistakes for the mistakes in all splits, and for sizes that cannot be held out."""
        sizes, train = list[str](), self.datasets.get("train")
        for split, size in self.steps.holdout_sizes(0 if train is None else len(train)).items():
            if size is not None and split in self._present:
                sizes.append(self._has_split(f"{split}_size"))
            elif size is not None and train is not None and size >= len(train):
                sizes.append(too_large(f"{split}_size", size, len(train)))
        # a single size is checked again when it is held out, after what is wrong with the rows themselves
        if self._mistakes or len(sizes) > 1:
            raise DataMistakes([*self._mistakes, *sizes], self._present)

    @property
    def train(self) -> "Dataset":
        """The training rows. Raises DataError if the data has none to hold others out of."""
        if "train" not in self.datasets:
            raise missing_split(self.data, "train", [*self.datasets])
        return self.datasets["train"]

    def check_not_empty(self) -> None:
        """Raise DataError for a split without rows; add a note to the report for examples that a split lacks."""
        for split, rows in self.datasets.items():
            if not rows:
                report = self.report.splits[split]
                reasons = ", ".join(f"{count} {reason}" for reason, count in report.dropped.items())
                raise DataError(
                    f"{self.data.path}: no row of the {split} split can be used (of {report.read}: {reasons})."
                )
            if missing := self.steps.missing_examples(rows):
                self.report.notes.append(f"{split}: no example {missing}")

    def check_absent(self, split: str, key: str) -> None:
        """Raise DataError if the data has a split that the recipe's `key` would hold out of train."""
        if split in self.datasets:
            raise DataError(self._has_split(key))

    def _has_split(self, key: str) -> str:
        split = key.partition("_")[0]
        return f"data.{key}: {self.data.path} has a split for {split} of its own. Remove the key (data.{key}=null)."

    def held_out_sizes(self, sizes: Mapping[str, int | None]) -> dict[str, int]:
        """The splits to hold out of train: those of `sizes` with a size. Raises DataError if the data has one of them
        already."""
        held_out = {split: size for split, size in sizes.items() if size is not None}
        for split in held_out:
            self.check_absent(split, f"{split}_size")
        return held_out

    def hold_out_missing(self) -> None:
        """Take validation and test out of train where the data has none and the recipe gives a size."""
        rows = len(self.datasets.get("train", ()))
        for split, size in self.held_out_sizes(self.steps.holdout_sizes(rows)).items():
            train = self.train
            held = held_out_mask(self.steps.holdout_groups(train), size, f"{split}_size", self.data.held_out_by[0])
            self.datasets["train"] = filter_rows(train, ~held)
            self.report.splits["train"].dropped[f"held out for {split}"] = int(held.sum())
            self.add(split, filter_rows(train, held), SplitReport(int(held.sum())))

    def select_training_rows(self) -> None:
        """Apply drop_duplicates, then the limits of the task, then max_examples, then the repetitions."""
        if "train" not in self.datasets:  # data to evaluate
            return
        data, train, report = self.data, self.datasets["train"], self.report.splits["train"]
        if data.drop_duplicates:
            first = first_occurrences(row_digests(train, self.steps.identity))
            report.dropped += Counter({"duplicate": int((~first).sum())})
            train = filter_rows(train, first)
        train = self.steps.limit(train, report)
        if data.max_examples is not None and data.max_examples < len(train):
            report.dropped["beyond data.max_examples"] = len(train) - data.max_examples
            train = filter_rows(train, np.random.default_rng(data.seed).permutation(len(train)) < data.max_examples)
        self.datasets["train"] = self.steps.repeat(train, report)

    def finish(self, stream: Stream | None = None) -> Splits:
        """The splits with the columns that all of them share.

        Raises DataError if the recipe has fingerprints and the data has changed since.
        """
        keep_common_columns(self.datasets, self.data.roles, self.report)
        self._count_rows()
        return self.fingerprinted(stream)

    def _count_rows(self) -> None:
        """Add the counts of the rows that were kept to the report."""
        roles = self.data.text_roles
        for split, rows in self.datasets.items():
            report = self.report.splits[split]
            report.rows = len(rows)
            for role in roles:
                report.flagged += Counter({f"empty {role}": int(blank(rows, role).sum())})

    def fingerprinted(self, stream: Stream | None = None) -> Splits:
        """The splits as they are, with their fingerprints. Raises DataError if they differ from `data.fingerprints`."""
        from datasets import DatasetDict

        fingerprints = {} if stream is None else {"train": stream.fingerprint()}
        fingerprints |= {split: fingerprint(rows) for split, rows in self.datasets.items()}
        expected = fingerprints if self.data.fingerprints is None else self.data.fingerprints
        changed = [split for split in SPLITS if fingerprints.get(split) != expected.get(split)]
        if changed:
            raise DataError(
                f"data.fingerprints: {self.data.path} is not the data of this recipe: {', '.join(changed)} changed "
                f"(now {', '.join(f'{split} {fingerprints.get(split)}' for split in changed)}). Restore the data, or "
                "undo the change of the data section. To use the new data, remove data.fingerprints and "
                "train into a new folder."
            )
        return Splits(DatasetDict(self.datasets), self.report, fingerprints, stream)
