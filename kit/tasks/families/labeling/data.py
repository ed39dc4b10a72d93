"""Encoded inputs of labeled examples, and readers of label columns."""

import math
import re
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

DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
"""A number with decimals, in a file whose cells are text."""

CHUNK_ROWS = 1000
"""Rows that are tokenized at once: bounds the memory of their offsets and word ids."""


@dataclass(frozen=True)
class Inputs:
    """The model inputs of each example."""

    tokens: dict[str, RaggedTokens]
    """`input_ids`, and `token_type_ids` if the model has segments."""
    padding: dict[str, int]
    """The padding value of each."""
    full_lengths: np.ndarray | None = None
    """Number of tokens of each example before truncation, where that differs."""

    @classmethod
    def of(
        cls,
        lists: dict[str, list[list[int]]],
        tokenizer: "PreTrainedTokenizerBase",
        full_lengths: np.ndarray | None = None,
    ) -> Self:
        """The output of a tokenizer by name, without attention masks, which follow from the lengths."""
        padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        tokens = {name: RaggedTokens(lists[name]) for name in padding if name in lists}
        return cls(tokens, {name: padding[name] for name in tokens}, full_lengths)

    def __len__(self) -> int:
        return len(self.tokens["input_ids"])

    @property
    def lengths(self) -> np.ndarray:
        return self.tokens["input_ids"].lengths

    def select(self, indices: np.ndarray) -> Self:
        full_lengths = None if self.full_lengths is None else self.full_lengths[indices]
        tokens = {name: lists.select(indices) for name, lists in self.tokens.items()}
        return replace(self, tokens=tokens, full_lengths=full_lengths)

    def batch(self, indices: np.ndarray) -> dict[str, Tensor]:
        """The inputs of these examples, padded to the longest one, with their attention mask."""
        batch = {name: lists.padded(indices, self.padding[name]) for name, lists in self.tokens.items()}
        lengths = torch.from_numpy(self.lengths[indices])
        mask = torch.arange(batch["input_ids"].shape[1]) < lengths[:, None]  # (batch, longest)
        return batch | {"attention_mask": mask.long()}


def encode_all(
    encode: "Callable[..., BatchEncoding]", rows: Sequence[Any], limit: int | None, truncation: str
) -> "tuple[list[tuple[BatchEncoding, int]], np.ndarray, np.ndarray]":
    """For each row the encoding that contains it and its index there, truncated to `limit` tokens; which rows were too
    long; and the number of tokens of each before truncation."""
    encodings: list[tuple[BatchEncoding, int]] = []
    for start in range(0, len(rows), CHUNK_ROWS):
        chunk = rows[start : start + CHUNK_ROWS]
        encoding = encode(chunk, verbose=False)
        encodings += [(encoding, index) for index in range(len(chunk))]
    lengths = np.array([len(encoding["input_ids"][index]) for encoding, index in encodings], dtype=np.int64)
    too_long = lengths > (np.inf if limit is None else limit)
    selected = np.flatnonzero(too_long)
    strategy = "longest_first" if truncation == "do_not_truncate" else truncation
    for start in range(0, len(selected), CHUNK_ROWS):
        indices = selected[start : start + CHUNK_ROWS]
        encoding = encode([rows[row] for row in indices], truncation=strategy, max_length=limit, verbose=False)
        for index, row in enumerate(indices):
            encodings[row] = (encoding, index)
    return encodings, too_long, lengths


# ---- labels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelReader:
    """Reads the labels of a column as names or numbers."""

    where: str
    """The key and the path of the data, for messages."""
    names: list[str] | None
    """The name of each label number, from the recipe or the dataset."""
    are_numbers: bool = False
    """Whether whole numbers are always label numbers, as in a column of class labels, and never names."""

    @classmethod
    def of(cls, rows: "Dataset", column: str, label_names: Sequence[str] | None, where: str) -> Self:
        """The reader of a column. Raises DataError if the dataset names some of its labels as the recipe does, and
        others differently, so that a number could mean two labels."""
        own = feature_names(rows, column)
        if label_names is None or own is None or set(own) == set(label_names):
            return cls(where, own or (None if label_names is None else list(label_names)), own is not None)
        if shared := [name for name in label_names if name in own]:
            raise DataError(
                f"{where}: the dataset names its labels {', '.join(own[:8])}, and data.label_names has "
                f'"{shared[0]}" among other names. Name the same labels, in any order, or leave data.label_names out.'
            )
        return cls(where, list(label_names), True)

    def name(self, cell: Any, row: int) -> str:
        """The name of a label. Raises DataError, with the row, if the cell holds none."""
        if isinstance(cell, bool):
            cell = str(cell)
        if isinstance(cell, str) and self.names is not None and cell in self.names:
            return cell
        if isinstance(cell, float) or (isinstance(cell, str) and DECIMAL.fullmatch(cell)):
            cell = self._whole_number(cell, row)
        if not isinstance(cell, int | str) or cell == "":
            value = "empty" if cell in ("", None) else f"{cell!r}"
            raise DataError(
                f"{self.where}, row {row}: the label is {value}, not a name or a whole number. "
                "Fill it in, or leave the row out."
            )
        text = str(cell)
        if self.names is None:
            return text
        is_number = text.isdecimal() and int(text) < len(self.names)
        if not self.are_numbers and text in self.names:
            if is_number and self.names[int(text)] != text:
                raise DataError(
                    f"{self.where}, row {row}: the label {text} can be the name {text} or the label with this number, "
                    f"{self.names[int(text)]}. Write labels as text, or choose names that are not numbers."
                )
            return text
        if is_number:
            return self.names[int(text)]
        raise DataError(
            f'{self.where}, row {row}: the label "{text}" is none of the {len(self.names)} labels there are '
            f"({', '.join(self.names[:8])}{', …' if len(self.names) > 8 else ''}).{did_you_mean(text, self.names)}"
        )

    def _whole_number(self, cell: float | str, row: int) -> int:
        """The label number that a number with decimals stands for: tables write whole numbers so in a column with
        missing ones. Raises DataError unless the labels have names: such numbers may be the targets of a regression,
        for which transformers' run_classification takes them."""
        if self.names is not None and float(cell).is_integer():
            return int(float(cell))
        raise DataError(
            f"{self.where}, row {row}: the label is {cell}, a number with decimals. To predict numbers, set "
            "data.problem_type: regression. For classes, write names or whole numbers, or give the names of the labels "
            "0, 1, … in data.label_names."
        )

    def number(self, cell: Any, row: int) -> float:
        """A label as a number. Raises DataError, with the row, if it is not finite."""
        try:
            value = float(cell)
        except (TypeError, ValueError):
            value = math.nan
        if isinstance(cell, bool) or not math.isfinite(value):
            raise DataError(f"{self.where}, row {row}: the label is {cell!r}, not a finite number.")
        return value

    def listed(self, cell: Any, row: int, separator: str | None = None) -> list[str]:
        """The names of several labels. Raises DataError, with the row, if the cell holds no list."""
        if isinstance(cell, str) and separator is not None:
            cell = [part.strip() for part in cell.split(separator) if part.strip()]
        if not isinstance(cell, list):
            raise DataError(
                f"{self.where}, row {row}: expected a list of labels, got {cell!r}. If they are in one text, set "
                "their separator (data.label_separator)."
            )
        return [self.name(label, row) for label in cell]

    def distinct(self, cell: Any, row: int, separator: str | None = None) -> list[str]:
        """The names of several labels in any order. Raises DataError, with the row, if one is listed twice."""
        names = self.listed(cell, row, separator)
        for name in names:
            if names.count(name) > 1:
                raise DataError(
                    f'{self.where}, row {row}: the label "{name}" is listed twice. Expected the labels of the text, '
                    "not a 0 or 1 for each label there is."
                )
        return names


def feature_names(rows: "Dataset", column: str) -> list[str] | None:
    """The label names of a column of a Hub dataset, or of the lists in it; None if it has none."""
    from datasets import ClassLabel

    feature = rows.features[column]
    inner = getattr(feature, "feature", feature)
    return list(inner.names) if isinstance(inner, ClassLabel) else None


def numbered(rows: "Dataset", column: str) -> Iterator[tuple[int, Any]]:
    """The cells of a column with their row numbers, from 1."""
    return enumerate(ColumnView(rows, column), start=1)


def in_order(names: Sequence[str]) -> list[str]:
    """Distinct names in order: by number if all are numbers, otherwise as text."""
    distinct = sorted(set(names))  # 1 and 01 are equal numbers: the sort as text gives every process the same order
    return sorted(distinct, key=int) if all(name.isdecimal() for name in distinct) else distinct
