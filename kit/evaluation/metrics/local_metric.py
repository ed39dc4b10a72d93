"""The base of all metrics: an `evaluate.Metric` that needs no network and leaves no files."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from kit.errors import DataError


class LocalMetric(ABC, evaluate.Metric):
    """`compute(predictions=…, references=…)` gives `{"score": …}`, and whatever else the metric has to tell."""

    inputs: str
    """What predictions and references are."""

    def __init__(self, config_name: str | None = None, keep_in_memory: bool = True, **kwargs: Any) -> None:
        # In memory by default: all processes of a user share a cache folder, and a crash leaves litter.
        super().__init__(config_name=config_name, keep_in_memory=keep_in_memory, **kwargs)

    @abstractmethod
    def columns(self) -> dict[str, Any]:
        """What a prediction and a reference are made of, as features of `datasets`."""

    def _build_data_dir(self) -> str:
        # evaluate makes this folder even when it keeps everything in memory.
        return super()._build_data_dir() if not self.keep_in_memory else self._data_dir_root

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__,
            citation="",
            inputs_description=self.inputs,
            features=datasets.Features(self.columns()),
        )


def check_pairs(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    """Raise DataError unless there are as many predictions as references, and at least one."""
    if isinstance(predictions, str) or isinstance(references, str):
        raise DataError("A single text was given: a metric takes a list of predictions and a list of references.")
    if len(predictions) != len(references):
        raise DataError(
            f"{len(predictions)} predictions and {len(references)} references: each prediction needs its own."
        )
    if len(predictions) == 0:
        raise DataError("No predictions: a metric needs at least one prediction and its reference.")
