"""Data that needs no download: `data.path: builtin:NAME`, made by seed from what is on every machine that has kit."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kit.errors import DataError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

DATE_TASKS = ("date_language", "date_pairs", "date_tags", "date_questions")
WHOLE = ("pydocs", "shapes", "dialogues", "pendulum")
"""Sets that are made in one way only, each in a file of its name."""
NAMES = ("dates", *DATE_TASKS, "date_instructions", "docstrings", *WHOLE)
SPLITS = ("train", "validation", "test")


def load_builtin(
    name: str,
    languages: Sequence[str] | None = None,
    sizes: dict[str, int] | None = None,
    seed: int = 0,
    columns: Sequence[str] = ("source", "target"),
) -> "dict[str, pa.Table]":
    """The splits train, validation and test of a built-in set. Equal arguments give equal rows.

    `sizes` overrides the number of rows of the splits it names. `columns` are those that will be used:
    rows that lack them are not made. Raises DataError if the name, a language or a split is unknown, or if a
    size cannot be met.
    """
    if name not in NAMES:
        raise DataError(
            f'data.path: there is no built-in data "{name}".{did_you_mean(name, NAMES)} '
            f"There is: {', '.join(f'builtin:{known}' for known in NAMES)}."
        )
    for split, size in (sizes or {}).items():
        if split not in SPLITS:
            raise DataError(
                f'data.sizes: built-in data has no split "{split}".{did_you_mean(split, SPLITS)} '
                f"The splits are {', '.join(SPLITS)}."
            )
        if size < 1:
            raise DataError(f"data.sizes.{split}: expected at least 1 row, got {size}.")

    if name == "dates":
        from kit.data.builtin import dates

        return dates.generate(languages, sizes, seed)
    if name in DATE_TASKS:
        from kit.data.builtin import date_tasks

        return date_tasks.generate(name, languages, sizes, seed)
    if name == "date_instructions":
        from kit.data.builtin import date_instructions

        return date_instructions.generate(languages, sizes, seed)
    if languages is not None:
        raise DataError(f"data.languages: builtin:{name} has no languages to choose from. Remove it.")
    if name in WHOLE:
        return importlib.import_module(f"kit.data.builtin.{name}").generate(sizes, seed)
    from kit.data.builtin import docstrings

    return docstrings.generate(columns, sizes, seed)
