"""One model for several directions: from rows with a text in each language to an example for each direction."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kit.data.columns import OF_DIRECTIONS
from kit.data.report import SplitReport
from kit.data.rows import ColumnView, filter_rows, row_digests, to_dataset

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.translation.recipe import TranslationData


def in_directions(dataset: "Dataset", data: "TranslationData", told: SplitReport) -> "Dataset":
    """Every row in each direction of the recipe, direction after direction, with the columns source, target,
    source_language, target_language, direction and those of the data that are no language."""
    table = dataset.with_format("arrow")[:]
    others = [name for name in table.column_names if name not in data.text_columns]
    parts = []
    for direction in data.directions or ():
        source, target = direction.split("-")
        texts = [table[language].cast(pa.string()) for language in (source, target)]
        constants = [pa.repeat(name, len(table)) for name in (source, target, direction)]
        columns = [*texts, *constants, *(table[name] for name in others)]
        parts.append(pa.table(columns, names=[*data.roles, *OF_DIRECTIONS, *others]))
    # A row that was left out is missing in every direction.
    told.read *= len(parts)
    for reason in told.dropped:
        told.dropped[reason] *= len(parts)
    return to_dataset(pa.concat_tables(parts))


def limit_directions(train: "Dataset", data: "TranslationData", told: SplitReport) -> "Dataset":
    """Apply `data.direction_sizes`: at most so many examples of each direction that it names.

    They are the first by a number made of both texts, whichever is the source, and the seed.
    """
    sources, targets, directions = (np.array(list(ColumnView(train, name))) for name in OF_DIRECTIONS)
    ranks = np.where(
        sources < targets,
        row_digests(train, ["source", "target"], data.seed),
        row_digests(train, ["target", "source"], data.seed),
    )
    wanted = np.ones(len(train), dtype=bool)
    for direction, size in (data.direction_sizes or {}).items():
        places = np.flatnonzero(directions == direction)
        wanted[places[np.argsort(ranks[places], kind="stable")[size:]]] = False
    told.dropped += Counter({"beyond data.direction_sizes": int((~wanted).sum())})
    return filter_rows(train, wanted)


def repeat_directions(train: "Dataset", data: "TranslationData", told: SplitReport) -> "Dataset":
    """Apply `data.direction_repeats`: so many copies of each example of a direction, one behind the other."""
    repeats = data.direction_repeats or {}
    times = np.array([repeats.get(direction, 1) for direction in ColumnView(train, "direction")])
    told.repeated = int((times - 1).sum())
    told.flagged += Counter({"repetitions (data.direction_repeats)": int((times > 1).sum())})
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
