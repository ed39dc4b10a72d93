"""Metrics of the user: a plain function or an `evaluate` module becomes a name that recipes accept."""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, get_args

from kit.errors import KitError, did_you_mean
from kit.evaluation.metrics.base import check_pairs
from kit.evaluation.metrics.registry import ACCURACIES, METRICS, MODEL_METRICS, Kind, Metric

_RESERVED = (*MODEL_METRICS, *ACCURACIES, "examples", "count", "by")
"""Names of other figures of an evaluation."""


def register_metric(
    name: str,
    metric: Callable[[Sequence[Any], Sequence[Any]], Any] | Any,
    *,
    greater_is_better: bool = True,
    kind: Kind = "text",
    title: str | None = None,
) -> None:
    """Add a metric, whose name recipes of tasks that predict `kind` then accept in `eval.metrics`.

        kit.register_metric("length_ratio", lambda predictions, references: …)
        kit.register_metric("wer", evaluate.load("wer"), greater_is_better=False)

    `metric` is a function of predictions and references, or a loaded `evaluate` module. It returns a finite number, or
    a mapping that holds it as "score", under `name`, or as the only number; other numbers and texts of the mapping are
    reported as `<name>_<key>`. `kind` decides what it receives, and which tasks accept it:

    - text (translation, captioning, dialogue, instruction tuning): lists of texts. References are lists of texts if the
      data has several for some example.
    - variety (dialogue): the same.
    - labels (classification): label names; lists of names if examples have several labels. A module whose features are
      integers, as those of `evaluate` are, receives indices into the model's labels. `eval.positive_label` does not
      reach the metric.
    - scores (classification): a list of probabilities per example, one for each label; references as for labels.
    - numbers (regression): lists of numbers.
    - tags (tagging): a list of tags per sentence.
    - answers (question answering): mappings as in SQuAD, {"id", "prediction_text"} and {"id", "answers"}; predictions
      are empty where the model gives no answer.

    A registration lasts as long as the process: register before `load_recipe`, and again in each process that trains or
    evaluates. A script that registers and then calls `train` does so under `accelerate launch` and `torchrun`; the
    command `kit`, and so `kit train --processes`, knows only the built-in metrics. Commands that only read a finished
    run accept a recipe with any metric. Registering a name again replaces the earlier metric. Raises KitError for the
    name of a built-in metric or of another figure, and for anything that is neither a function nor a module.
    """
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise KitError(f'"{name}" cannot name a metric: use letters, digits and underscores, and begin with a letter.')
    if name in _RESERVED or (name in METRICS and not METRICS[name].registered):
        raise KitError(f'"{name}" is the name of a built-in figure: register the metric under another name.')
    if kind not in get_args(Kind):
        kinds = ", ".join(get_args(Kind))
        raise KitError(f'"{kind}" is not a kind of metric.{did_you_mean(kind, get_args(Kind))} Choose from: {kinds}.')
    if not callable(metric) and not is_evaluate_module(metric):
        raise KitError(f"{metric!r} is not a metric: pass a function or a module of the library evaluate.")
    METRICS[name] = Metric(title or name, RegisteredMetric(name, kind, metric), kind, greater_is_better)


@dataclass(frozen=True)
class RegisteredMetric:
    """A user's metric behind the interface of kit's own: `metric(predictions, references, **options)`."""

    name: str
    kind: Kind
    metric: Any
    """A function or an `evaluate` module."""

    def __call__(
        self,
        predictions: Sequence[Any],
        references: Sequence[Any],
        labels: Sequence[str] | None = None,
        positive: str | None = None,
        null_threshold: float | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """The result with its value as "score"; options that kit's own metrics take are not passed on."""
        check_pairs(predictions, references)
        if self.kind in ("text", "variety"):
            references = _plain_if_single(references)
        elif self.kind == "answers":
            predictions = [_with_threshold(row, null_threshold) for row in predictions]
            references = [_squad_reference(row) for row in references]
        if not is_evaluate_module(self.metric):
            return self._as_figures(self.metric(predictions, references, **options))
        if self.kind in ("labels", "scores") and labels is not None and _has_integer_references(self.metric):
            references = _label_ids(references, labels)
            predictions = _label_ids(predictions, labels) if self.kind == "labels" else predictions
        return self._as_figures(self.metric.compute(predictions=predictions, references=references, **options))

    def _as_figures(self, result: Any) -> dict[str, Any]:
        """The value as a finite "score", and the other numbers and texts of a dict.

        Raises KitError if a dict has several numbers, none of which is named "score" or like the metric.
        """
        if not isinstance(result, Mapping):
            return {"score": self._finite(result)}
        numbers = [key for key, value in result.items() if isinstance(value, Real)]
        named = [key for key in ("score", self.name) if key in numbers]
        if not named and len(numbers) != 1:
            raise KitError(
                f'The metric "{self.name}" returned {", ".join(map(str, result)) or "nothing"}: expected a number, or '
                f'one under "score" or "{self.name}". Register a function that returns the one to use.'
            )
        key = (named or numbers)[0]
        others = {
            name: value if isinstance(value, str) else float(value)
            for name, value in result.items()
            if name != key and isinstance(value, str | Real)
        }
        return {**others, "score": self._finite(result[key])}

    def _finite(self, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise KitError(f'The metric "{self.name}" returned {value!r}: expected a finite number.')
        return number


def is_evaluate_module(metric: Any) -> bool:
    """Whether this is a module of `evaluate`, without importing the library: whoever has a module has imported it."""
    library = sys.modules.get("evaluate")
    return library is not None and isinstance(metric, library.EvaluationModule)


def _plain_if_single(references: Sequence[Any]) -> Sequence[Any]:
    """Texts instead of lists of one text each: what most metrics expect."""
    lists = [[row] if isinstance(row, str) else list(row) for row in references]
    return [row[0] for row in lists] if all(len(row) == 1 for row in lists) else lists


def _with_threshold(row: Mapping[str, Any], threshold: float | None) -> dict[str, Any]:
    """A predicted answer in evaluate's form, empty if the score of no answer exceeds the threshold."""
    unanswered = threshold is not None and row["null_score"] > threshold
    return {"id": str(row["id"]), "prediction_text": "" if unanswered else row["prediction_text"]}


def _squad_reference(row: Mapping[str, Any]) -> dict[str, Any]:
    """A reference in evaluate's form, which has a position for each answer; no metric reads it."""
    texts = list(row["answers"]["text"])
    return {"id": str(row["id"]), "answers": {"text": texts, "answer_start": [0] * len(texts)}}


def _has_integer_references(module: Any) -> bool:
    features = module.features[0] if isinstance(module.features, list) else module.features
    column = features["references"]
    return str(getattr(getattr(column, "feature", column), "dtype", "")).startswith("int")


def _label_ids(rows: Sequence[Any], labels: Sequence[str]) -> list[Any]:
    """Names of labels, or lists of them, as indices."""
    ids = {str(label): index for index, label in enumerate(labels)}
    return [[ids[name] for name in row] if isinstance(row, list) else ids[row] for row in rows]
