"""Data sets that need no download, generated from a seed: `data.path: builtin:NAME`.

They come from what every installation has (the CLDR tables of Babel, the standard library, a formula), and each has
exactly one right answer per example and disjoint splits, so that a score means what it seems to mean.
"""

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from kit.errors import DataError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

DATASETS = {
    "dates": "kit.data.builtin.dates:generate",
    "date_language": "kit.data.builtin.date_tasks:date_language",
    "date_pairs": "kit.data.builtin.date_tasks:date_pairs",
    "date_tags": "kit.data.builtin.date_tasks:date_tags",
    "date_questions": "kit.data.builtin.date_tasks:date_questions",
    "date_instructions": "kit.data.builtin.date_instructions:generate",
    "docstrings": "kit.data.builtin.docstrings:generate",
    "pydocs": "kit.data.builtin.pydocs:generate",
    "shapes": "kit.data.builtin.shapes:generate",
    "dialogues": "kit.data.builtin.dialogues:generate",
    "pendulum": "kit.data.builtin.pendulum:generate",
}
"""Module and function of each data set. A module is imported when its set is loaded: only some need Babel or Pillow."""
SPLITS = ("train", "validation", "test")


def register_dataset(name: str, location: str) -> None:
    """Add a built-in data set to this process: `register_dataset("words", "my_package.words:generate")`.

    The function receives `sizes`, the requested rows of some splits or None, and `seed`; also `languages` and
    `columns`, the columns that will be used, if it has parameters of these names. It returns a `pyarrow.Table` for each
    split, and equal rows for equal arguments.
    """
    if DATASETS.get(name, location) != location:
        raise ValueError(f"data set {name!r} is already registered, as {DATASETS[name]}")
    DATASETS[name] = location


def load_builtin(
    name: str,
    languages: Sequence[str] | None = None,
    sizes: dict[str, int] | None = None,
    seed: int = 0,
    columns: Sequence[str] = ("source", "target"),
) -> "dict[str, pa.Table]":
    """The splits train, validation and test of a built-in set. Equal arguments give equal rows.

    `sizes` overrides the number of rows of the splits that it names. `columns` are those that will be used: rows that
    lack them are not generated. Raises DataError if the name, a language or a split is unknown, or if a size cannot be
    reached.
    """
    if name not in DATASETS:
        raise DataError(
            f'data.path: there is no built-in data set "{name}".{did_you_mean(name, DATASETS)} '
            f"Available: {', '.join(f'builtin:{known}' for known in DATASETS)}."
        )
    for split, size in (sizes or {}).items():
        if split not in SPLITS:
            raise DataError(
                f'data.sizes: built-in data has no split "{split}".{did_you_mean(split, SPLITS)} '
                f"The splits are {', '.join(SPLITS)}."
            )
        if size < 1:
            raise DataError(f"data.sizes.{split}: expected at least 1 row, got {size}.")
    module, _, function = DATASETS[name].partition(":")
    generate = getattr(import_module(module), function)
    parameters = inspect.signature(generate).parameters
    if languages is not None and "languages" not in parameters:
        raise DataError(f"data.languages: builtin:{name} has no languages to choose from. Remove it.")
    optional = {"languages": languages, "columns": columns}
    return generate(sizes=sizes, seed=seed, **{key: optional[key] for key in optional.keys() & parameters.keys()})
