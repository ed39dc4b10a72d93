"""Predictors for the rows of a table: what `kit predict` runs."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kit.prediction.engine import I, O, Predictor, U


@dataclass(frozen=True)
class PredictOptions:
    """Options of `kit predict`."""

    file: Path
    overrides: tuple[str, ...] = ()
    """Recipe keys that differ for this file, such as `data.text=review`."""
    horizon: int | None = None
    top_k: int | None = None
    """Number of predictions of a row to write with their scores."""


class RowPredictor(Predictor[I, U, O]):
    """A model that predicts something for each row or series of a file."""

    noun: ClassVar[str] = "row"

    @abstractmethod
    def read(self) -> Sequence[I]:
        """The rows of the file. Raises DataError if they do not fit the model."""

    @abstractmethod
    def columns(self) -> list[str]:
        """The columns of a csv file of predictions."""

    @abstractmethod
    def json_row(self, item: I, output: O) -> dict[str, Any]:
        """A row with its prediction."""

    def csv_rows(self, item: I, output: O) -> Iterable[dict[str, Any]]:
        """An item with its prediction as rows of a csv file: one row, unless a task writes several per item."""
        return [self.json_row(item, output)]

    def notes(self) -> list[str]:
        """Messages about the file and its predictions, to be printed when all predictions are made."""
        return []
