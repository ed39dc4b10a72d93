"""What a sample of data looks like, and the recipe that a task suggests for it.

`kit.data.guess` describes the data; each recipe class answers with `suggest` how well its task fits. Nothing here reads
files.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from kit.recipe.document import parse_override

MAX_LABELS = 300
"""More distinct values than this are texts or ids, rather than labels; BANKING77 has 77, iNaturalist's genera 300."""
MAX_LABEL_WORDS = 4
"""Labels have few words on average."""
FEW_ROWS = 100
"""In fewer rows than this, labels may occur only twice on average."""
SEPARATED = 0.05
"""Share of the cells that hold several labels in a column of such cells."""
SERIES_STEPS = 4
"""Shorter lists of numbers are vectors rather than series."""
IMAGE_NAME = re.compile(r".+\.(png|jpe?g|gif|bmp|webp|tiff?)", re.IGNORECASE)
ID_NAMES = re.compile(r"(.*_)?(id|idx|index|guid|uuid|key)(_?\w{1,4})?|unnamed: 0", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """A column of a sample."""

    name: str
    values: Sequence[Any]
    """The values of the first rows that have one."""
    rows: int
    """Number of rows with a value."""
    distinct: int
    """Number of distinct values among them; of lists, of their items."""
    class_labels: bool = False
    """Whether the data itself names the classes that the numbers of the column stand for."""

    def _all(self, kind: type | tuple[type, ...]) -> bool:
        return bool(self.values) and all(
            isinstance(value, kind) and not isinstance(value, bool) for value in self.values
        )

    @cached_property
    def is_text(self) -> bool:
        """Whether the cells are texts, and neither all numbers nor all dates."""
        return self._all(str) and not self.is_number and not self.is_date

    @cached_property
    def is_number(self) -> bool:
        """Whether the cells are numbers, as values or as text."""
        return self._all((int, float)) or (self._all(str) and all(map(_is_number, self.values)))

    @cached_property
    def is_integer(self) -> bool:
        """Whether the cells are whole numbers."""
        return self.is_number and all(re.fullmatch(r"[+-]?\d+", str(value)) for value in self.values)

    @cached_property
    def is_date(self) -> bool:
        """Whether the cells are dates or times."""
        return bool(self.values) and all(map(_is_date, self.values))

    @cached_property
    def is_id(self) -> bool:
        """Whether the column only identifies rows."""
        named = not self.name or ID_NAMES.fullmatch(self.name) is not None  # pandas gives the index no name
        return named and not self.is_label and (self.is_integer or self.words < 2)

    @cached_property
    def words(self) -> float:
        """Mean number of words of a text."""
        return sum(len(str(value).split()) for value in self.values) / max(1, len(self.values))

    @cached_property
    def is_label(self) -> bool:
        """Whether the cells are labels: few distinct short values that occur again and again."""
        if self.class_labels:
            return True
        limit = max(2, min(MAX_LABELS, self.rows // 2 if self.rows < FEW_ROWS else self.rows // 5))
        scalar = self.is_text or self.is_integer or all(isinstance(value, bool) for value in self.values)
        return scalar and 2 <= self.distinct <= limit and self.distinct < self.rows and self.words <= MAX_LABEL_WORDS

    @cached_property
    def is_prose(self) -> bool:
        """Whether the cells are texts that differ from row to row."""
        other = self.is_label or self.is_id or self.is_image or self.has_decimal_commas or self.separator
        return self.is_text and self.distinct > 1 and not other

    @cached_property
    def has_decimal_commas(self) -> bool:
        """Whether the cells are numbers that kit does not read: with a comma before the decimals."""
        return (
            self._all(str)
            and all(re.fullmatch(r"\s*[+-]?\d+(,\d+)?\s*", value) for value in self.values)
            and not (self.is_number)
        )

    @cached_property
    def separator(self) -> str | None:
        """What separates labels, if cells hold several: a mark that divides them into few short ones."""
        # a comma also occurs within labels, such as "Berlin, Germany"
        for mark in ("|", ";", ",") if self.name.lower().endswith("s") else ("|", ";"):
            if self._all(str) and sum(mark in value for value in self.values) >= SEPARATED * len(self.values):
                items = self.items_between(mark)
                words = sum(len(item.split()) for item in items) / max(1, len(items))
                if 2 <= len(items) <= min(MAX_LABELS, len(self.values) // 5) and words <= MAX_LABEL_WORDS:
                    return mark
        return None

    def items_between(self, mark: str) -> set[str]:
        """The distinct items of cells that a mark separates."""
        return {item.strip() for value in self.values for item in value.split(mark)} - {""}

    @cached_property
    def is_image(self) -> bool:
        """Whether the cells are images, or names of image files."""
        if self._all(dict):
            return all("bytes" in value and "path" in value for value in self.values)
        return self._all(str) and all(IMAGE_NAME.fullmatch(value) for value in self.values)

    @cached_property
    def items(self) -> list[Any]:
        """The items of the lists in the cells; empty for other columns."""
        return [item for value in self.values for item in value] if self._all(list) else []

    @cached_property
    def lists_text(self) -> bool:
        """Whether the cells are lists of texts."""
        return bool(self.items) and all(isinstance(item, str) for item in self.items)

    @cached_property
    def item_words(self) -> float:
        """Mean number of words of the texts in lists: words of a sentence have one, paragraphs many."""
        return sum(len(item.split()) for item in self.items) / max(1, len(self.items)) if self.lists_text else 0.0

    @cached_property
    def lists_numbers(self) -> bool:
        """Whether the cells are lists of numbers, or of lists of numbers."""
        flat = [part for item in self.items for part in (item if isinstance(item, list) else [item])]
        return bool(flat) and all(isinstance(part, int | float) or part is None for part in flat)

    @property
    def is_series(self) -> bool:
        """Whether the lists are long enough for a series of steps."""
        return all(len(value) >= SERIES_STEPS for value in self.values)

    @property
    def kind(self) -> str:
        """What the column holds, in words."""
        kinds = {
            "images": self.is_image, "several labels": self.separator is not None, "labels": self.is_label,
            "numbers with decimal commas": self.has_decimal_commas, "dates": self.is_date,
            "whole numbers": self.is_integer,
            "numbers": self.is_number, "text": self.is_text, "lists of text": self.lists_text,
            "lists of numbers": self.lists_numbers, "lists": bool(self.items), "nested values": self._all(dict),
            "true or false": bool(self.values) and all(isinstance(value, bool) for value in self.values),
        }  # fmt: skip
        return next((kind for kind, matches in kinds.items() if matches), "mixed values")


@dataclass(frozen=True)
class DataSample:
    """What is known about data without a recipe."""

    source: Mapping[str, Any]
    """The keys of the section `data` with which it is read: path, columns, delimiter, names of splits, …"""
    format: str
    """The format in words: "csv", "parallel text"."""
    columns: Sequence[Column]
    splits: Mapping[str, int]
    """Number of rows by split: train, validation, test."""
    is_parallel: bool = False
    """Whether the columns are files of parallel text."""
    documents: str = "row"
    """What a document is in a file of plain text, as `data.documents`."""

    def find(self, *names: str, among: Sequence[Column] | None = None) -> Column | None:
        """The column with the first of `names` that occurs, in upper or lower case; None if none does."""
        by_name = {column.name.lower(): column for column in (self.columns if among is None else among)}
        return next((by_name[name] for name in names if name in by_name), None)

    @property
    def prose(self) -> list[Column]:
        """The columns of texts that differ from row to row."""
        return [column for column in self.columns if column.is_prose]

    @property
    def labels(self) -> list[Column]:
        """The columns that can be labels."""
        return [column for column in self.columns if column.is_label]

    def held_out(self, share: float = 0.1, limit: int = 1000) -> dict[str, int]:
        """The sizes to hold out of train for the splits that the data lacks, by key: `share` of the rows, at most
        `limit`."""
        rows = self.splits.get("train", 0)
        size = max(1, min(limit, int(rows * share)))
        wanted = ("validation", "test") if rows >= FEW_ROWS else ("validation",)
        return {f"{split}_size": size for split in wanted if split not in self.splits}


@dataclass(frozen=True)
class Suggestion:
    """How a task would learn from a sample."""

    score: float
    """How well the task fits the columns, from 0 to 1."""
    what: str
    """What a model would learn, in words: "text → label"."""
    recipe: str
    """The shipped recipe to start from."""
    data: Mapping[str, Any]
    """Values of the section `data`, in addition to the `source` of the sample."""
    others: Mapping[str, Any] | None = None
    """Values of other sections, by dotted key."""


_PLAIN = re.compile(r"[\w.-]+( [\w.-]+)*")
"""Texts that need no quotation marks in a list of YAML, unless they read as something else."""


def override(key: str, value: Any) -> str:
    """A `key=value` argument that `kit train` reads as this value.

    Unlike `write_override`, it writes lists as JSON, whose double quotes need no escapes in a shell's single quotes.
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        text = value.replace("\t", r"\t") if key == "data.delimiter" else value
        if parse_override(f"{key}={text}")[1] != text:
            text = json.dumps(text, ensure_ascii=False)
    elif isinstance(value, list) and all(isinstance(item, str) and _PLAIN.fullmatch(item) for item in value):
        plain = f"[{', '.join(value)}]"
        text = plain if parse_override(f"{key}={plain}")[1] == value else text
    return f"{key}={text}"


def _is_number(text: str) -> bool:
    # Possessive: with \d+\.?\d*, a text of n digits and a letter would be tried in n² ways, for hours if n is 100,000.
    return re.fullmatch(r"\s*+[+-]?(\d++\.?\d*+|\.\d++)(e[+-]?\d++)?\s*", text, re.IGNORECASE) is not None


def _is_date(value: Any) -> bool:
    if not isinstance(value, str):
        return hasattr(value, "isoformat")
    if re.match(r"\d{4}-\d\d", value) is None:  # fromisoformat also takes 20240101, a number
        return False
    try:
        datetime.fromisoformat(value.strip())
    except ValueError:
        return False
    return True
