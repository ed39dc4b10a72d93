"""Kit's metrics as modules of the library `evaluate`, which this file imports: nothing else in kit does."""

from collections.abc import Sequence
from inspect import getdoc
from typing import Any

import evaluate
from datasets import Features, List, Value

from kit.evaluation.metrics.base import check_pairs
from kit.evaluation.metrics.custom import RegisteredMetric, is_evaluate_module
from kit.evaluation.metrics.registry import Kind, Metric, find_metric

_TEXT, _NUMBER, _NAMES = Value("string"), Value("float64"), List(Value("string"))
_FEATURES: dict[Kind, tuple[Any, Any]] = {
    "text": (_TEXT, _NAMES),
    "variety": (_TEXT, _TEXT),
    "labels": (_NAMES, _NAMES),
    "scores": (List(_NUMBER), _NAMES),
    "numbers": (_NUMBER, _NUMBER),
    "tags": (_NAMES, _NAMES),
    "answers": (
        {"id": _TEXT, "prediction_text": _TEXT, "null_score": _NUMBER},
        {"id": _TEXT, "answers": {"text": _NAMES}},
    ),
}
"""Features of a prediction and of a reference; the metric's function accepts more forms, and checks them."""


def load_metric(name: str) -> evaluate.EvaluationModule:
    """A metric as a module of `evaluate`, offline; for a registered module, that module itself.

        kit.load_metric("chrf").compute(predictions=["the cat"], references=["a cat"])
        {"score": …, "signature": …}

    Raises KitError for an unknown name.
    """
    metric = find_metric(name)
    if isinstance(metric.source, RegisteredMetric) and is_evaluate_module(metric.source.metric):
        return metric.source.metric
    return _Module(name, metric)


class _Module(evaluate.Metric):
    """A metric of kit behind the interface of `evaluate`.

    Examples stay in a list: evaluate writes them to Arrow tables, whose types would turn a label 0.5 into "0.5", in a
    cache folder that it creates.
    """

    def __init__(self, name: str, metric: Metric) -> None:
        self._metric = metric
        self._examples: list[tuple[Any, Any]] = []
        super().__init__(keep_in_memory=True)
        self.info.module_name = name

    def __len__(self) -> int:
        return len(self._examples)

    def _info(self) -> evaluate.MetricInfo:
        prediction, reference = _FEATURES[self._metric.kind]
        return evaluate.MetricInfo(
            description=_description(self._metric),
            citation="",
            inputs_description=f"Compares {self._metric.kind}.",
            features=Features({"predictions": prediction, "references": reference}),
        )

    def _build_data_dir(self) -> str:
        return self._data_dir_root  # the base class would create a folder in it

    def add(self, *, prediction: Any = None, reference: Any = None) -> None:
        """Add one prediction and its reference."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Any = None, references: Any = None) -> None:
        """Add predictions and their references."""
        check_pairs(predictions, references)
        self._examples += zip(_rows(predictions), _rows(references), strict=True)

    def compute(self, *, predictions: Any = None, references: Any = None, **options: Any) -> dict[str, Any]:
        """The result for these and all added examples, which are then forgotten; the value is "score"."""
        if predictions is not None or references is not None:
            self.add_batch(predictions=predictions, references=references)
        examples, self._examples = self._examples, []
        return self._metric.compute([row[0] for row in examples], [row[1] for row in examples], **options)


def _description(metric: Metric) -> str:
    function = metric.function
    return getdoc(getattr(function, "func", function)) or metric.title


def _rows(values: Any) -> Sequence[Any]:
    """The rows of a list, of a column of `datasets`, or of an array or tensor."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
