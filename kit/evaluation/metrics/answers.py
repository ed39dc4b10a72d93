"""Exact match and F1 of answers to questions, as SQuAD 1.1 and 2.0 define them, with the threshold for no answer.

Texts are compared in lower case, without ASCII punctuation and without the words a, an, the; F1 compares bags of
white-space-separated words. These are SQuAD's rules, kept so that figures compare with published ones: a text in a
script without spaces is a single word. transformers 5 no longer ships its SQuAD metrics.

A prediction is `{"id": …, "prediction_text": …}`, optionally with a `null_score`: any number that grows with the belief
that there is no answer. A reference is `{"id": …, "answers": {"text": […]}}`; without texts the question is
unanswerable, and the right prediction is the empty text.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from kit.errors import DataError
from kit.evaluation.metrics.base import check_pairs

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_exact_match(
    predictions: Sequence[Any], references: Sequence[Any], null_threshold: float | None = None
) -> dict[str, float]:
    """Share, 0 to 100, of questions whose normalized prediction equals a normalized answer; see `squad_f1`."""
    return _score(predictions, references, null_threshold, answer_exact_match)


def squad_f1(
    predictions: Sequence[Any], references: Sequence[Any], null_threshold: float | None = None
) -> dict[str, float]:
    """Mean word F1, 0 to 100, of predictions and answers; of several answers to a question, the best match counts.

    If some questions are unanswerable, the result also has the score of those with an answer (`has_answer`), of those
    without (`no_answer`), and of always predicting none (`always_null`). With null scores, `best` and `best_threshold`
    are the best score that a threshold reaches on these examples, and that threshold. `null_threshold` replaces
    predictions with a greater null score by the empty text: choose it on data that is not evaluated.
    """
    return _score(predictions, references, null_threshold, answer_f1)


def normalize_answer(text: str) -> str:
    """The form in which SQuAD compares texts."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_exact_match(prediction: str, reference: str) -> float:
    """1 if two texts are equal in their normal form, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(reference))


def answer_f1(prediction: str, reference: str) -> float:
    """F1, 0 to 1, of the words of two texts; if either has none, 1 if both have none, else 0."""
    predicted, expected = normalize_answer(prediction).split(), normalize_answer(reference).split()
    if not predicted or not expected:
        return float(predicted == expected)
    shared = (Counter(predicted) & Counter(expected)).total()
    return 2 * shared / (len(predicted) + len(expected))


def best_value(measure: Callable[[str, str], float], prediction: str, texts: Sequence[str]) -> float:
    """The best value, 0 to 1, of a prediction by any of the reference texts; none of them stands for no answer."""
    # An answer that normalizes to nothing ("the") cannot be distinguished from no answer.
    usable = [text for text in texts if normalize_answer(text)] or [""]
    return max(measure(prediction, text) for text in usable)


def best_threshold(null_scores: np.ndarray, answered: np.ndarray, unanswered: np.ndarray) -> tuple[float, float]:
    """The highest mean, 0 to 100, that a threshold can reach, and that threshold.

    `answered` and `unanswered` are the values of each question if its text is predicted, and if the empty text is. The
    threshold lies midway between two null scores, so that rounding moves no question across it; at either end it is
    1 beyond the last score.
    """
    order = np.argsort(null_scores, kind="stable")
    ranked = null_scores[order]
    # (questions + 1) the total if the first n questions are answered
    totals = np.concatenate([[0.0], np.cumsum(answered[order])]) + np.concatenate(
        [np.cumsum(unanswered[order][::-1])[::-1], [0.0]]
    )
    # No threshold separates questions with equal null scores.
    possible = np.concatenate([[True], ranked[1:] > ranked[:-1], [True]])
    best = int(np.argmax(np.where(possible, totals, -np.inf)))
    if best == 0:
        threshold = ranked[0] - 1
    elif best == len(ranked):
        threshold = ranked[-1] + 1
    else:
        threshold = (ranked[best - 1] + ranked[best]) / 2
        if not ranked[best - 1] <= threshold < ranked[best]:  # adjacent floats: their mean rounds to the upper one
            threshold = ranked[best - 1]
    return float(100 * totals[best] / len(ranked)), float(threshold)


def _score(
    predictions: Sequence[Any],
    references: Sequence[Any],
    null_threshold: float | None,
    measure: Callable[[str, str], float],
) -> dict[str, float]:
    check_pairs(predictions, references)
    predicted = _by_id([_prediction(row, number) for number, row in enumerate(predictions, start=1)], "Prediction")
    expected = _by_id([_reference(row, number) for number, row in enumerate(references, start=1)], "Reference")
    for key in expected:
        if key not in predicted:
            raise DataError(f'There is no prediction for the question "{key}".')
    null_scores = np.array([predicted[key]["null_score"] for key in expected], dtype=np.float64)
    answerable = np.array([bool(row["texts"]) for row in expected.values()])
    # What each question scores with the predicted text, and with the empty text.
    answered = np.array([best_value(measure, predicted[key]["text"], row["texts"]) for key, row in expected.items()])
    unanswered = np.array([best_value(measure, "", row["texts"]) for row in expected.values()])
    has_null_scores = not np.isnan(null_scores).any()
    if null_threshold is not None and not has_null_scores:
        raise DataError("A null_threshold needs a null_score in every prediction.")
    values = answered if null_threshold is None else np.where(null_scores > null_threshold, unanswered, answered)
    result = {"score": _percent(values)}
    if not answerable.all():
        if answerable.any():
            result["has_answer"] = _percent(values[answerable])
        result["no_answer"] = _percent(values[~answerable])
        result["always_null"] = _percent((~answerable).astype(np.float64))
        if has_null_scores:
            result["best"], result["best_threshold"] = best_threshold(null_scores, answered, unanswered)
    return result


def _percent(values: np.ndarray) -> float:
    return float(100 * values.mean())


def _prediction(row: Any, number: int) -> dict[str, Any]:
    if not isinstance(row, Mapping) or not isinstance(row.get("prediction_text"), str) or "id" not in row:
        raise DataError(f'Prediction {number} is not {{"id": …, "prediction_text": …}}: {row!r}.')
    score = row.get("null_score")
    if score is not None and (not isinstance(score, Real) or not math.isfinite(score)):
        raise DataError(f"Prediction {number} has the null_score {score!r}: expected a finite number.")
    null_score = math.nan if score is None else float(score)
    return {"id": str(row["id"]), "text": row["prediction_text"], "null_score": null_score}


def _reference(row: Any, number: int) -> dict[str, Any]:
    answers = row.get("answers") if isinstance(row, Mapping) else None
    texts = answers.get("text") if isinstance(answers, Mapping) else None
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts) or "id" not in row:
        raise DataError(f'Reference {number} is not {{"id": …, "answers": {{"text": [texts]}}}}: {row!r}.')
    return {"id": str(row["id"]), "texts": list(texts)}


def _by_id(rows: list[dict[str, Any]], side: str) -> dict[str, dict[str, Any]]:
    by_id: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows, start=1):
        if row["id"] in by_id:
            raise DataError(f'{side} {number} is for the question "{row["id"]}", which already has one.')
        by_id[row["id"]] = row
    return by_id
