"""What a task does to rows while its data is loaded, between reading the files and counting what is left."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kit.data.report import SplitReport
from kit.data.rows import row_digests

if TYPE_CHECKING:
    from datasets import Dataset

    from kit.recipe.data import DataSection


@dataclass(frozen=True)
class ExampleColumns:
    """The columns of an example by their role, in which examples are compared."""

    inputs: tuple[str, ...]
    """What the model reads."""
    targets: tuple[str, ...] = ()
    """What it learns to write; empty for labels and the like, which all splits share."""
    others: tuple[str, ...] = ()
    """What else makes two examples equal, such as the label."""

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.inputs, *self.targets, *self.others)


class RowSteps:
    """What happens to the rows of a task while they are loaded. The steps of this class suit a task whose rows are its
    examples; other tasks override some of them."""

    expands: ClassVar[bool] = False
    """Whether `expand` turns a row into several, so that rows must be held out before."""

    def __init__(self, data: "DataSection"):
        self.data = data

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that kit reads; other columns of these names are dropped."""
        return self.data.roles

    @property
    def identity(self) -> list[str]:
        """The columns that make two rows equal."""
        return [*self.data.identity_roles]

    @property
    def example_columns(self) -> ExampleColumns:
        """The columns in which the loaded examples are compared with those of other splits."""
        data = self.data
        others = tuple(name for name in data.identity_roles if name not in (*data.input_roles, *data.target_roles))
        return ExampleColumns(data.input_roles, data.target_roles, others)

    @property
    def examples_per_row(self) -> int:
        """Number of examples that `expand` makes of a row."""
        return 1

    def tables_in(self, folder: Path) -> Mapping[str, Path]:
        """One table per split, where a folder is laid out in a way that only this task knows."""
        return {}

    def adapt(self, rows: "Dataset", table: Path | None = None) -> "Dataset":
        """Rows as read from a table, before their columns are named."""
        return rows

    def expand(self, rows: "Dataset", report: SplitReport) -> "Dataset":
        """The examples of each row; incomplete ones are dropped afterwards."""
        return rows

    def merge(self, rows: "Dataset", split: str, report: SplitReport) -> "Dataset":
        """One row for each example, where several rows make one."""
        return rows

    def missing_examples(self, rows: "Dataset") -> str | None:
        """Which examples of the recipe this split lacks, to complete "no example …": "in the direction de-en"; None if
        it lacks none."""
        return None

    def holdout_sizes(self, rows: int) -> dict[str, int | None]:
        """The number of rows to hold out for validation and for test, given the number of rows of train; None for a
        split without a hold-out size in the recipe."""
        return {"validation": self.data.validation_size, "test": self.data.test_size}

    def holdout_groups(self, train: "Dataset") -> np.ndarray:
        """A group number for each row. Rows of the same group are held out together, or not at all."""
        return row_digests(train, self.data.held_out_by, self.data.seed)

    def limit(self, train: "Dataset", report: SplitReport) -> "Dataset":
        """The training rows within the limits of the recipe, before `data.max_examples`."""
        return train

    def repeat(self, train: "Dataset", report: SplitReport) -> "Dataset":
        """The training rows with the repetitions that the recipe asks for."""
        return train
