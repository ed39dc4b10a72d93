"""Several translation directions in one model: a row with a text per language becomes an example per direction."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kit.data.report import SplitReport
from kit.data.rows import ColumnView, filter_rows, row_digests, to_dataset
from kit.data.steps import ExampleColumns, RowSteps

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.translation.recipe import TranslationData

DIRECTION_COLUMNS = ("source_language", "target_language", "direction")
"""Columns beside source and target that identify the direction of an example."""


class DirectionSteps(RowSteps):
    """Expands rows with a text per language into one example for each direction of `data.directions`."""

    expands: ClassVar[bool] = True
    data: "TranslationData"

    def __init__(self, data: "TranslationData"):
        super().__init__(data)
        self.directions = list(data.directions or ())

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.data.roles, *DIRECTION_COLUMNS)

    @property
    def identity(self) -> list[str]:
        return [*self.data.roles, "direction"]

    @property
    def example_columns(self) -> ExampleColumns:
        columns = super().example_columns
        return replace(columns, inputs=(*columns.inputs, "direction"))

    @property
    def examples_per_row(self) -> int:
        return len(self.directions)

    def expand(self, rows: "Dataset", report: SplitReport) -> "Dataset":
        """Expand rows to examples, one direction after the other, with the columns source, target, source_language,
        target_language and direction, and those of the data that are not languages."""
        table = rows.with_format("arrow")[:]
        others = [name for name in table.column_names if name not in self.data.text_columns]
        parts = []
        for direction in self.directions:
            source, target = direction.split("-")
            texts = [table[language].cast(pa.string()) for language in (source, target)]
            constants = [pa.repeat(name, len(table)) for name in (source, target, direction)]
            columns = [*texts, *constants, *(table[name] for name in others)]
            parts.append(pa.table(columns, names=[*self.columns, *others]))
        # a dropped row is missing in every direction
        report.read *= len(parts)
        for reason in report.dropped:
            report.dropped[reason] *= len(parts)
        return to_dataset(pa.concat_tables(parts))

    def missing_examples(self, rows: "Dataset") -> str | None:
        missing = set(self.directions) - set(ColumnView(rows, "direction"))
        return f"in the direction {', '.join(sorted(missing))}" if missing else None

    def holdout_groups(self, train: "Dataset") -> np.ndarray:
        return linked_rows(train, list(self.data.text_columns), self.data.seed)

    def limit(self, train: "Dataset", report: SplitReport) -> "Dataset":
        """Apply `data.direction_sizes`, the maximum number of examples of each direction that it names.

        A digest of both texts and the seed decides which ones: opposite directions keep the same pairs.
        """
        if self.data.direction_sizes is None:
            return train
        sources, targets, directions = (
            np.array(list(ColumnView(train, name))) for name in ("source", "target", "direction")
        )
        ranks = np.where(
            sources < targets,
            row_digests(train, ["source", "target"], self.data.seed),
            row_digests(train, ["target", "source"], self.data.seed),
        )
        keep = np.ones(len(train), dtype=bool)
        for direction, size in self.data.direction_sizes.items():
            indices = np.flatnonzero(directions == direction)
            keep[indices[np.argsort(ranks[indices], kind="stable")[size:]]] = False
        report.dropped += Counter({"beyond data.direction_sizes": int((~keep).sum())})
        return filter_rows(train, keep)

    def repeat(self, train: "Dataset", report: SplitReport) -> "Dataset":
        """Apply `data.direction_repeats`, the number of consecutive copies of each example of a direction."""
        if self.data.direction_repeats is None:
            return train
        repeats = self.data.direction_repeats
        times = np.array([repeats.get(direction, 1) for direction in ColumnView(train, "direction")])
        report.repeated = int((times - 1).sum())
        report.flagged += Counter({"repetitions (data.direction_repeats)": int((times > 1).sum())})
        return to_dataset(train.data.table.take(pa.array(np.repeat(np.arange(len(train)), times))))


def linked_rows(dataset: "Dataset", languages: list[str], seed: int) -> np.ndarray:
    """Number rows so that rows connected by shared texts have the same number: holding out all rows of a number leaves
    none of their texts in the rest.

    Missing and empty texts connect nothing. The seed determines the order of the numbers.
    """
    table = dataset.with_format("arrow")[:]
    filled = to_dataset(pa.table({name: pc.fill_null(table[name].cast(pa.string()), "") for name in languages}))
    unique = np.arange(len(dataset), dtype=np.uint64)
    texts = []
    for name in languages:
        empty = np.array([not text for text in ColumnView(filled, name)], dtype=bool)
        texts.append(np.unique(np.where(empty, unique, row_digests(filled, [name])), return_inverse=True)[1])
    numbers, before = row_digests(filled, languages, seed), None
    while before is None or (numbers != before).any():
        before = numbers
        for groups in texts:
            lowest = np.full(len(dataset), np.iinfo(np.uint64).max)
            np.minimum.at(lowest, groups, numbers)
            numbers = lowest[groups]
    return numbers
