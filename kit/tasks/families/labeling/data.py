"""Encoded examples with labels, and the labels themselves: from whatever a column holds to names, numbers and ids."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from kit.data.batching.ragged import RaggedTokens
from kit.data.rows import ColumnView
from kit.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import BatchEncoding, PreTrainedTokenizerBase

AT_ONCE = 1000


@dataclass(frozen=True)
class Inputs:
    """What a model reads, example by example."""

    tokens: dict[str, RaggedTokens]
    """`input_ids`, and `token_type_ids` where the model has segments."""
    fillers: dict[str, int]
    """What each is padded with."""

    @classmethod
    def of(cls, lists: dict[str, list[list[int]]], tokenizer: "PreTrainedTokenizerBase") -> Self:
        """The lists of a tokenizer by name; masks are not kept, since lengths say the same."""
        fillers = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        kept = {name: RaggedTokens(lists[name]) for name in fillers if name in lists}
        return cls(kept, {name: fillers[name] for name in kept})

    def __len__(self) -> int:
        return len(self.tokens["input_ids"])

    @property
    def lengths(self) -> np.ndarray:
        return self.tokens["input_ids"].lengths

    def select(self, indices: np.ndarray) -> Self:
        return replace(self, tokens={name: lists.select(indices) for name, lists in self.tokens.items()})

    def batch(self, indices: np.ndarray) -> dict[str, Tensor]:
        """The inputs of these examples, as long as the longest of them, and their mask."""
        batch = {name: lists.padded(indices, self.fillers[name]) for name, lists in self.tokens.items()}
        lengths = torch.from_numpy(self.lengths[indices])
        mask = torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]  # (batch, longest)
        return batch | {"attention_mask": mask.long()}


def encode_all(
    encode: "Callable[..., BatchEncoding]", rows: Sequence[Any], limit: int | None, truncation: str
) -> "tuple[list[tuple[BatchEncoding, int]], np.ndarray]":
    """Each row as the encoding and the place in it where it is, none longer than the limit; and which had to be cut."""
    found: list[tuple[BatchEncoding, int]] = []
    for start in range(0, len(rows), AT_ONCE):
        portion = rows[start : start + AT_ONCE]
        encoded = encode(portion, verbose=False)
        found += [(encoded, place) for place in range(len(portion))]
    long = np.array([limit is not None and len(encoded["input_ids"][at]) > limit for encoded, at in found], dtype=bool)
    places = np.flatnonzero(long)
    how = "longest_first" if truncation == "do_not_truncate" else truncation
    for start in range(0, len(places), AT_ONCE):
        portion = [rows[place] for place in places[start : start + AT_ONCE]]
        encoded = encode(portion, truncation=how, max_length=limit, verbose=False)
        for at, place in enumerate(places[start : start + AT_ONCE]):
            found[place] = (encoded, at)
    return found, long


# ---- labels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelReader:
    """Makes names of the labels in a column."""

    where: str
    """The key and the path of the data, for messages."""
    names: list[str] | None
    """What numbers mean: those of the recipe, or of the dataset."""

    def name(self, cell: Any, row: int) -> str:
        """The name of a label. Raises DataError, with the row, if it is not one."""
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)
        if isinstance(cell, bool) or (not isinstance(cell, int | str)) or cell == "":
            shown = "empty" if cell in ("", None) else f"{cell!r}"
            if not isinstance(cell, bool):
                raise DataError(f"{self.where}, row {row}: the label is {shown}, not a name or a whole number.")
        text = str(cell)
        if self.names is None or text in self.names:
            return text
        if text.isdecimal() and int(text) < len(self.names):
            return self.names[int(text)]
        raise DataError(
            f'{self.where}, row {row}: the label "{text}" is none of the {len(self.names)} labels there are '
            f"({', '.join(self.names[:8])}{', …' if len(self.names) > 8 else ''}).{did_you_mean(text, self.names)}"
        )

    def number(self, cell: Any, row: int) -> float:
        """A label as a finite number."""
        try:
            value = float(cell)
        except (TypeError, ValueError):
            value = math.nan
        if isinstance(cell, bool) or not math.isfinite(value):
            raise DataError(f"{self.where}, row {row}: the label is {cell!r}, not a finite number.")
        return value

    def listed(self, cell: Any, row: int, separator: str | None = None) -> list[str]:
        """The names of several labels."""
        if isinstance(cell, str) and separator is not None:
            cell = [part.strip() for part in cell.split(separator) if part.strip()]
        if not isinstance(cell, list):
            raise DataError(
                f"{self.where}, row {row}: expected a list of labels, got {cell!r}. If they stand in one text, name "
                "what separates them (data.label_separator)."
            )
        return [self.name(label, row) for label in cell]


def feature_names(rows: "Dataset", column: str) -> list[str] | None:
    """The names that a Hub dataset has for the numbers of a column, or of the lists in it."""
    from datasets import ClassLabel

    feature = rows.features[column]
    inner = getattr(feature, "feature", feature)
    return list(inner.names) if isinstance(inner, ClassLabel) else None


def numbered(rows: "Dataset", column: str) -> Iterator[tuple[int, Any]]:
    """The cells of a column, counted from 1."""
    return enumerate(ColumnView(rows, column), start=1)


def in_order(names: Sequence[str]) -> list[str]:
    """Different names in order: by number if all are numbers, and as text."""
    distinct = sorted(set(names))  # 1 and 01 are different names of equal numbers: every process must order them alike
    return sorted(distinct, key=int) if all(name.isdecimal() for name in distinct) else distinct
