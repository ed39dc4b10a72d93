"""Data sets that need no download, generated from a seed: `data.path: builtin:NAME`.

They come from what every installation has (the CLDR tables of Babel, the standard library, a formula), and each has
exactly one right answer per example and disjoint splits, so that a score means what it seems to mean.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kit.errors import DataError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

DATE_TASKS = ("date_language", "date_pairs", "date_tags", "date_questions")
WITH_LANGUAGES = ("dates", *DATE_TASKS, "date_instructions")
MODULES = {
    "dates": "dates",
    **dict.fromkeys(DATE_TASKS, "date_tasks"),
    **{name: name for name in ("date_instructions", "docstrings", "pydocs", "shapes", "dialogues", "pendulum")},
}
"""Names of the sets, and the modules of this package that generate them."""
SPLITS = ("train", "validation", "test")


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
    if name not in MODULES:
        raise DataError(
            f'data.path: there is no built-in data set "{name}".{did_you_mean(name, MODULES)} '
            f"Available: {', '.join(f'builtin:{known}' for known in MODULES)}."
        )
    for split, size in (sizes or {}).items():
        if split not in SPLITS:
            raise DataError(
                f'data.sizes: built-in data has no split "{split}".{did_you_mean(split, SPLITS)} '
                f"The splits are {', '.join(SPLITS)}."
            )
        if size < 1:
            raise DataError(f"data.sizes.{split}: expected at least 1 row, got {size}.")
    arguments: dict[str, Any] = {"sizes": sizes, "seed": seed}
    if name in WITH_LANGUAGES:
        arguments["languages"] = languages
    elif languages is not None:
        raise DataError(f"data.languages: builtin:{name} has no languages to choose from. Remove it.")
    if name in DATE_TASKS:
        arguments["name"] = name
    if name == "docstrings":
        arguments["columns"] = columns
    # imported on demand: Babel and Pillow load only for the sets that need them
    return import_module(f"{__name__}.{MODULES[name]}").generate(**arguments)
