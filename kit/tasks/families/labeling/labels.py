"""Labels: their names in the cells of a column, in order, and in the configuration of a model."""

import copy
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from kit.data.rows import ColumnView
from kit.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedConfig

THRESHOLDS = "label_thresholds"
"""Field of a model's configuration with the probability above which each label is predicted."""

DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
"""A number with decimals, in a file whose cells are text."""

MAX_DIGITS = 9
"""Digits of a label number."""


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
        """Make the reader of a column. Raises DataError if the data set names some labels as the recipe does and
        others differently: then a number could mean two labels."""
        dataset_names = feature_names(rows, column)
        if label_names is None or dataset_names is None or set(dataset_names) == set(label_names):
            return cls(
                where, dataset_names or (None if label_names is None else list(label_names)), dataset_names is not None
            )
        if shared := [name for name in label_names if name in dataset_names]:
            raise DataError(
                f"{where}: the dataset names its labels {', '.join(dataset_names[:8])}, and data.label_names has "
                f'"{shared[0]}" among other names. Name the same labels, in any order, or leave data.label_names out.'
            )
        return cls(where, list(label_names), True)

    def name(self, cell: Any, row: int) -> str:
        """Read the name of a label. Raises DataError, with the row, if the cell holds none."""
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
        # the length first, since Python refuses to convert thousands of digits
        is_number = text.isdecimal() and len(text) < MAX_DIGITS and int(text) < len(self.names)
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
            f'{self.where}, row {row}: the label "{text}" is not one of the {len(self.names)} labels '
            f"({', '.join(self.names[:8])}{', …' if len(self.names) > 8 else ''}).{did_you_mean(text, self.names)}"
        )

    def _whole_number(self, cell: float | str, row: int) -> int:
        """Read a number with decimals as a label number: tables write whole numbers so in a column with missing
        ones. Raises DataError unless the labels have names: such numbers may be the targets of a regression, for
        which transformers' run_classification takes them."""
        if self.names is not None and float(cell).is_integer():
            return int(float(cell))
        raise DataError(
            f"{self.where}, row {row}: the label is {cell}, a number with decimals. To predict numbers, set "
            "data.problem_type: regression. For classes, write names or whole numbers, or give the names of the labels "
            "0, 1, … in data.label_names."
        )

    def number(self, cell: Any, row: int) -> float:
        """Read a label as a number. Raises DataError, with the row, if it is not finite."""
        try:
            value = float(cell)
        except (TypeError, ValueError):
            value = math.nan
        if isinstance(cell, bool) or not math.isfinite(value):
            raise DataError(f"{self.where}, row {row}: the label is {cell!r}, not a finite number.")
        return value

    def listed(self, cell: Any, row: int, separator: str | None = None) -> list[str]:
        """Read the names of a list of labels. Raises DataError, with the row, if the cell is not a list."""
        if isinstance(cell, str) and separator is not None:
            cell = [part.strip() for part in cell.split(separator) if part.strip()]
        if not isinstance(cell, list):
            raise DataError(
                f"{self.where}, row {row}: expected a list of labels, got {cell!r}. If they are in one text, set "
                "their separator (data.label_separator)."
            )
        return [self.name(label, row) for label in cell]

    def distinct(self, cell: Any, row: int, separator: str | None = None) -> list[str]:
        """Read the names of a list of labels in any order. Raises DataError, with the row, if a label is listed
        twice."""
        names = self.listed(cell, row, separator)
        for name in names:
            if names.count(name) > 1:
                raise DataError(
                    f'{self.where}, row {row}: the label "{name}" is listed twice. Expected the labels of the text, '
                    "not a 0 or 1 for each possible label."
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
    """Sort distinct names: as numbers if all are numbers, otherwise as text."""
    distinct = sorted(set(names))  # 1 and 01 are equal numbers: the sort as text gives every process the same order
    return sorted(distinct, key=int) if all(name.isdecimal() for name in distinct) else distinct


def with_labels(config: "PreTrainedConfig", labels: Sequence[str]) -> "PreTrainedConfig":
    """A copy of the configuration with these labels."""
    config = copy.deepcopy(config)
    config.num_labels = len(labels)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    return config


def label_names(config: "PreTrainedConfig") -> tuple[str, ...]:
    """The labels of a model, in order."""
    return tuple(config.id2label[index] for index in range(config.num_labels))
