"""Exact match and F1 of answers to questions, as SQuAD 1.1 and 2.0 define them, with the threshold for no answer.

Texts are compared in lower case, without ASCII punctuation and without the words a, an, the; F1 is that of the bags of
words that white space separates. These are the rules of SQuAD, kept for the sake of comparison: a text in a script
without spaces is one word.
"""

import math
import re
import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import datasets
import numpy as np

from kit.errors import DataError
from kit.evaluation.metrics.local_metric import LocalMetric, check_pairs

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """The text as it is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_f1(prediction: str, reference: str) -> float:
    """F1, 0 to 1, of the words of two texts; if one of them has none, whether the other has none, too."""
    predicted, right = normalize_answer(prediction).split(), normalize_answer(reference).split()
    if not predicted or not right:
        return float(predicted == right)
    same = (Counter(predicted) & Counter(right)).total()
    return 2 * same / (len(predicted) + len(right))


class AnswerMetric(LocalMetric):
    """Compares predicted answers with right ones, by the ids of their questions: 0 to 100.

    Of several right answers the one that fits best counts; a question without any is unanswerable, and the right
    prediction is the empty text. If some are, there is also the score of the questions that have an answer
    (`has_answer`), of those that have none (`no_answer`), and what always predicting none would score (`always_null`).

    A prediction may have a `null_score`: any number that grows with the belief that there is no answer. Then
    `null_threshold=…` makes all predictions empty whose null score is greater, and `best` and `best_threshold` tell
    what the best threshold would give on these examples. Choose a threshold on other data than it is judged by.
    """

    inputs = """
    predictions: {"id": …, "prediction_text": …}, and optionally "null_score", for each question.
    references: {"id": …, "answers": {"text": […], "answer_start": […]}} for each question; no texts if there is none.
    """

    @abstractmethod
    def value(self, prediction: str, reference: str) -> float:
        """How right a prediction is, 0 to 1."""

    def columns(self) -> dict[str, Any]:
        text, number = datasets.Value("string"), datasets.Value("float64")
        return {
            "predictions": {"id": text, "prediction_text": text, "null_score": number},
            "references": {"id": text, "texts": datasets.List(text)},
        }

    def add_batch(self, *, predictions: Sequence[Any], references: Sequence[Any], **kwargs: Any) -> None:
        """Add predicted answers and the right ones, in any order."""
        check_pairs(predictions, references)
        super().add_batch(
            predictions=[_prediction(row, number) for number, row in enumerate(predictions, start=1)],
            references=[_reference(row, number) for number, row in enumerate(references, start=1)],
            **kwargs,
        )

    def add(self, *, prediction: Mapping[str, Any], reference: Mapping[str, Any], **kwargs: Any) -> None:
        """Add the predicted answer of one question and the right ones."""
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def _compute(
        self,
        predictions: list[dict[str, Any]],
        references: list[dict[str, Any]],
        null_threshold: float | None = None,
    ) -> dict[str, Any]:
        predicted = _by_id(predictions, "Prediction")
        right = _by_id(references, "Reference")
        for key in right:
            if key not in predicted:
                raise DataError(f'There is no prediction for the question "{key}".')
        null_scores = np.array([predicted[key]["null_score"] for key in right], dtype=np.float64)
        answerable = np.array([bool(row["texts"]) for row in right.values()])
        # What each question scores if the text is given, and if nothing is.
        given = np.array([self._best(predicted[key]["prediction_text"], row["texts"]) for key, row in right.items()])
        silent = np.array([self._best("", row["texts"]) for row in right.values()])
        scored = not np.isnan(null_scores).any()
        if null_threshold is not None and not scored:
            raise DataError("A null_threshold needs a null_score in every prediction.")
        values = given if null_threshold is None else np.where(null_scores > null_threshold, silent, given)
        result: dict[str, Any] = {"score": _percent(values)}
        if not answerable.all():
            if answerable.any():
                result["has_answer"] = _percent(values[answerable])
            result["no_answer"] = _percent(values[~answerable])
            result["always_null"] = _percent((~answerable).astype(np.float64))
            if scored:
                result["best"], result["best_threshold"] = best_threshold(null_scores, given, silent)
        return result

    def _best(self, prediction: str, texts: Sequence[str]) -> float:
        # A right answer that has no words of its own ("the") cannot be told from none.
        usable = [text for text in texts if normalize_answer(text)] or [""]
        return max(self.value(prediction, text) for text in usable)


def best_threshold(null_scores: np.ndarray, given: np.ndarray, silent: np.ndarray) -> tuple[float, float]:
    """The highest mean, 0 to 100, that a threshold can reach, and that threshold.

    `given` and `silent` are the values of each question if its text is predicted, and if nothing is. The threshold lies
    in the middle between two null scores, so that rounding does not move a question over it; beyond the first and the
    last by 1.
    """
    order = np.argsort(null_scores, kind="stable")
    ranked = null_scores[order]
    # (questions + 1) the total if the first n questions are answered
    totals = np.concatenate([[0.0], np.cumsum(given[order])]) + np.concatenate(
        [np.cumsum(silent[order][::-1])[::-1], [0.0]]
    )
    # Questions of equal null score cannot be told apart.
    possible = np.concatenate([[True], ranked[1:] > ranked[:-1], [True]])
    place = int(np.argmax(np.where(possible, totals, -np.inf)))
    if place == 0:
        threshold = ranked[0] - 1
    elif place == len(ranked):
        threshold = ranked[-1] + 1
    else:
        threshold = (ranked[place - 1] + ranked[place]) / 2
        if not ranked[place - 1] <= threshold < ranked[place]:  # neighbours with nothing between them
            threshold = ranked[place - 1]
    return float(100 * totals[place] / len(ranked)), float(threshold)


def _percent(values: np.ndarray) -> float:
    return float(100 * values.mean())


def _prediction(row: Any, number: int) -> dict[str, Any]:
    if not isinstance(row, Mapping) or not isinstance(row.get("prediction_text"), str) or "id" not in row:
        raise DataError(f'Prediction {number} is not {{"id": …, "prediction_text": …}}: {row!r}.')
    score = row.get("null_score")
    if score is not None and (not isinstance(score, Real) or not math.isfinite(score)):
        raise DataError(f"Prediction {number} has the null_score {score!r}: expected a finite number.")
    return {
        "id": str(row["id"]),
        "prediction_text": row["prediction_text"],
        "null_score": math.nan if score is None else float(score),
    }


def _reference(row: Any, number: int) -> dict[str, Any]:
    answers = row.get("answers") if isinstance(row, Mapping) else None
    texts = answers.get("text") if isinstance(answers, Mapping) else None
    listed = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
    if not listed or "id" not in row:
        raise DataError(f'Reference {number} is not {{"id": …, "answers": {{"text": [texts]}}}}: {row!r}.')
    return {"id": str(row["id"]), "texts": list(texts or ())}


def _by_id(rows: list[dict[str, Any]], side: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows, start=1):
        if row["id"] in found:
            raise DataError(f'{side} {number} is for the question "{row["id"]}", which has one already.')
        found[row["id"]] = row
    return found


class SquadExactMatch(AnswerMetric):
    """Share, 0 to 100, of questions whose predicted answer is a right one, as SQuAD compares texts."""

    def value(self, prediction: str, reference: str) -> float:
        return float(normalize_answer(prediction) == normalize_answer(reference))


class SquadF1(AnswerMetric):
    """Mean F1, 0 to 100, of the words of predicted and right answers, as SQuAD compares texts."""

    def value(self, prediction: str, reference: str) -> float:
        return answer_f1(prediction, reference)
