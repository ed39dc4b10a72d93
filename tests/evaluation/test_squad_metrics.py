"""Exact match and F1 of answers equal results by hand; thresholds equal exhaustive search."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import load_metric
from kit.errors import DataError
from kit.evaluation.metrics import compute_metrics
from kit.evaluation.metrics.answers import answer_f1, best_threshold, normalize_answer

NAMES = ("squad_exact_match", "squad_f1")


def prediction(key: str, text: str, null_score: float | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"id": key, "prediction_text": text}
    return row if null_score is None else row | {"null_score": null_score}


def reference(key: str, *texts: str) -> dict[str, Any]:
    return {"id": key, "answers": {"text": list(texts), "answer_start": [0] * len(texts)}}


@pytest.mark.parametrize(
    ("predicted", "right", "exact", "f1"),
    [
        ("The Eiffel Tower", ["Eiffel Tower"], 1, 1),  # articles
        ("an  apple,\na pear", ["apple pear"], 1, 1),
        ("Denver Broncos!", ["denver broncos"], 1, 1),  # punctuation and case
        ("U.S.A.", ["usa"], 1, 1),
        ("state-of-the-art", ["stateoftheart"], 1, 1),  # hyphens are removed, so "the" is not a word
        ("theory", ["ory"], 0, 0),  # nor is it at the beginning of one
        ("in Paris", ["Paris", "in the city of Paris"], 0, 2 / 3),  # several: the best one counts
        ("Paris", ["Lyon", "Paris"], 1, 1),
        ("red red blue", ["red blue blue"], 0, 2 / 3),  # bags of words, not sets
        ("", ["Paris"], 0, 0),
        ("", [], 1, 1),
        ("Paris", [], 0, 0),
        ("the", [], 1, 1),  # normalizes to nothing, like no answer
        ("", ["the"], 1, 1),
        ("", ["...", "Paris"], 0, 0),
        ("Größe", ["größe"], 1, 1),
        ("STRASSE", ["straße"], 0, 0),  # lower case, not folded
        ("東京", ["東京"], 1, 1),
        ("東京 タワー", ["東京"], 0, 2 / 3),
        ("«Москва»", ["москва"], 0, 0),  # only ASCII punctuation is removed
        ("cafe\u0301", ["caf\u00e9"], 0, 0),
        ("दिल्ली में", ["दिल्ली"], 0, 2 / 3),
    ],
)
def test_answers_by_hand(predicted: str, right: list[str], exact: int, f1: float) -> None:
    values = compute_metrics(NAMES, [prediction("q", predicted)], [reference("q", *right)])
    assert values["squad_exact_match"] == 100 * exact
    assert values["squad_f1"] == pytest.approx(100 * f1)


def test_normal_form() -> None:
    assert normalize_answer("  The  U.S. (of A) ") == "us of"
    assert answer_f1("a b c", "b c d") == pytest.approx(2 * 2 / (2 + 3))  # "a" is an article


def test_answerable_and_unanswerable_questions() -> None:
    right = [reference("1", "Paris"), reference("2"), reference("3", "red fox"), reference("4")]
    predicted = [prediction("4", "x"), prediction("3", "fox"), prediction("2", ""), prediction("1", "Paris")]
    values = compute_metrics(NAMES, predicted, right)
    assert values == {
        "squad_exact_match": 50.0,
        "squad_exact_match_has_answer": 50.0,
        "squad_exact_match_no_answer": 50.0,
        "squad_exact_match_always_null": 50.0,
        "squad_f1": pytest.approx(100 * (1 + 1 + 2 / 3 + 0) / 4),
        "squad_f1_has_answer": pytest.approx(100 * (1 + 2 / 3) / 2),
        "squad_f1_no_answer": 50.0,
        "squad_f1_always_null": 50.0,
    }
    only = compute_metrics(["squad_f1"], [prediction("2", "")], [reference("2")])
    assert only == {"squad_f1": 100.0, "squad_f1_no_answer": 100.0, "squad_f1_always_null": 100.0}


def test_null_scores_and_thresholds() -> None:
    right = [reference("1", "Paris"), reference("2"), reference("3", "fox"), reference("4")]
    predicted = [
        prediction("1", "Paris", -2.0),
        prediction("2", "x", 1.0),
        prediction("3", "fox", 0.0),
        prediction("4", "y", -1.0),
    ]
    metric = load_metric("squad_f1")
    result = metric.compute(predictions=predicted, references=right)
    assert result["score"] == 50.0
    assert result["best"] == 75.0  # 1, 4 and 3 answered, or 1 alone
    thresholded = metric.compute(predictions=predicted, references=right, null_threshold=result["best_threshold"])
    assert thresholded["score"] == 75.0
    silent = metric.compute(predictions=predicted, references=right, null_threshold=-5)
    assert (silent["score"], silent["has_answer"], silent["no_answer"]) == (50.0, 0.0, 100.0)
    assert silent["score"] == silent["always_null"]


@given(
    st.lists(
        st.tuples(st.sampled_from([-1.5, 0.0, 0.1, 2.0]), st.sampled_from([0.0, 0.5, 1.0]), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_best_threshold_is_optimal(rows: list[tuple[float, float, bool]]) -> None:
    scores, answered, silent = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    best, threshold = best_threshold(scores, answered, silent)
    assert np.where(scores > threshold, silent, answered).mean() * 100 == pytest.approx(best)
    for tried in (-9, -1.5, -0.5, 0.0, 0.05, 0.1, 1.0, 2.0, 9):
        assert np.where(scores > tried, silent, answered).mean() * 100 <= best + 1e-9


@pytest.mark.parametrize(
    ("predictions", "references", "options", "message"),
    [
        ([{"id": "1"}], [reference("1")], {}, "Prediction 1 is not"),
        ([prediction("1", "x")], [{"id": "1", "answers": ["x"]}], {}, "Reference 1 is not"),
        ([prediction("1", "x")], [{"answers": {"text": ["x"]}}], {}, "Reference 1 is not"),
        ([prediction("1", "x")], [reference("2", "x")], {}, 'no prediction for the question "2"'),
        ([prediction("1", "x")] * 2, [reference("1", "x"), reference("2")], {}, 'Prediction 2 is for the question "1"'),
        ([prediction("1", "x", float("nan"))], [reference("1", "x")], {}, "null_score nan: expected a finite number"),
        ([prediction("1", "x")], [reference("1")], {"null_threshold": 0}, "needs a null_score in every prediction"),
        ([], [], {}, "No predictions"),
    ],
)
def test_invalid_input_is_named(predictions: Any, references: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        compute_metrics(["squad_f1"], predictions, references, **options)
