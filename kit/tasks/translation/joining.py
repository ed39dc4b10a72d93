"""Longer examples out of short ones: consecutive ones joined, on both sides alike."""

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from kit.data.columns import needed_columns, note_once
from kit.data.report import DataReport
from kit.data.rows import Texts, in_memory

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.tasks.translation.recipe import TranslationData


def join_examples(dataset: "Dataset", data: "TranslationData", split: str, report: DataReport) -> "Dataset":
    """The split with 1 to `data.join` consecutive examples in each of its own; every example is in exactly one.

    Examples of different directions are not joined, and all directions are joined alike. Other columns are left out,
    since a joined example has several values of them.
    """
    kept = needed_columns(data)
    if others := [name for name in dataset.column_names if name not in kept]:
        note_once(report, f"left out, since joined examples have several of it: column {', '.join(others)}")
    columns = {name: list(Texts(dataset, name)) for name in kept}
    directions = columns.get("direction", [""] * len(dataset))
    changes = [place for place in range(1, len(dataset)) if directions[place] != directions[place - 1]]
    starts = [
        first + start
        for first, last in pairwise([0, *changes, len(dataset)])
        for start in starts_of_parts(last - first, data.join, f"join/{data.seed}/{split}")
    ]
    parts = list(pairwise([*starts, len(dataset)]))
    for role in data.roles:
        columns[role] = [" ".join(filter(None, columns[role][first:last])) for first, last in parts]
    for name in kept[len(data.roles) :]:
        columns[name] = [columns[name][start] for start in starts]
    told = report.splits[split]
    told.joined = len(dataset) - len(parts)
    told.noted["others joined to them"] = sum(last - first > 1 for first, last in parts)
    return in_memory(pa.table({name: pa.array(cells, pa.string()) for name, cells in columns.items()}))


def starts_of_parts(length: int, most: int, seed: str) -> list[int]:
    """Where the parts of 1 to `most` begin that a row of `length` is cut into; the last may be cut short.

    Parts of each size have the same share of the row: short ones are drawn more often, as they hold less.
    """
    chance = random.Random(seed)
    sizes = range(1, most + 1)
    starts = []
    place = 0
    while place < length:
        starts.append(place)
        (size,) = chance.choices(sizes, [1 / size for size in sizes])
        place += size
    return starts
