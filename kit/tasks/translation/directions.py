"""One model for several directions: from rows with a text in each language to an example for each direction."""

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kit.data.report import SplitReport
from kit.data.rows import ColumnView, filter_rows, row_digests, to_dataset
from kit.data.steps import RowSteps

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.translation.recipe import TranslationData

DIRECTION_COLUMNS = ("source_language", "target_language", "direction")
"""Columns beside source and target that tell the directions of `data.directions` apart."""


class DirectionSteps(RowSteps):
    """Rows with a text in each language become one example for each direction of `data.directions`."""

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
    def examples_per_row(self) -> int:
        return len(self.directions)

    def expand(self, rows: "Dataset", report: SplitReport) -> "Dataset":
        """Every row in each direction, direction after direction, with the columns source, target, source_language,
        target_language, direction and those of the data that are no language."""
        table = rows.with_format("arrow")[:]
        others = [name for name in table.column_names if name not in self.data.text_columns]
        parts = []
        for direction in self.directions:
            source, target = direction.split("-")
            texts = [table[language].cast(pa.string()) for language in (source, target)]
            constants = [pa.repeat(name, len(table)) for name in (source, target, direction)]
            columns = [*texts, *constants, *(table[name] for name in others)]
            parts.append(pa.table(columns, names=[*self.columns, *others]))
        # A row that was dropped is missing in every direction.
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
        """Apply `data.direction_sizes`: at most so many examples of each direction that it names.

        They are the first by a number made of both texts, whichever is the source, and the seed.
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
        wanted = np.ones(len(train), dtype=bool)
        for direction, size in self.data.direction_sizes.items():
            indices = np.flatnonzero(directions == direction)
            wanted[indices[np.argsort(ranks[indices], kind="stable")[size:]]] = False
        report.dropped += Counter({"beyond data.direction_sizes": int((~wanted).sum())})
        return filter_rows(train, wanted)

    def repeat(self, train: "Dataset", report: SplitReport) -> "Dataset":
        """Apply `data.direction_repeats`: so many copies of each example of a direction, one behind the other."""
        if self.data.direction_repeats is None:
            return train
        repeats = self.data.direction_repeats
        times = np.array([repeats.get(direction, 1) for direction in ColumnView(train, "direction")])
        report.repeated = int((times - 1).sum())
        report.flagged += Counter({"repetitions (data.direction_repeats)": int((times > 1).sum())})
        return to_dataset(train.data.table.take(pa.array(np.repeat(np.arange(len(train)), times))))


def linked_rows(dataset: "Dataset", languages: list[str], seed: int) -> np.ndarray:
    """A number for each row: rows that share a text in a language have the same, and so has every row that shares
    another text with one of them. Rows of one number can be held out without leaving a text of theirs in the rest.

    Missing and empty texts are shared with nobody. The seed decides how the numbers are ordered.
    """
    table = dataset.with_format("arrow")[:]
    filled = to_dataset(pa.table({name: pc.fill_null(table[name].cast(pa.string()), "") for name in languages}))
    alone = np.arange(len(dataset), dtype=np.uint64)
    texts = []
    for name in languages:
        empty = np.array([not text for text in ColumnView(filled, name)], dtype=bool)
        texts.append(np.unique(np.where(empty, alone, row_digests(filled, [name])), return_inverse=True)[1])
    numbers, before = row_digests(filled, languages, seed), None
    while before is None or (numbers != before).any():
        before = numbers
        for groups in texts:
            lowest = np.full(len(dataset), np.iinfo(np.uint64).max)
            np.minimum.at(lowest, groups, numbers)
            numbers = lowest[groups]
    return numbers
