"""Metrics of labels, scores, numbers and tags equal counts by hand, and name invalid input."""

import math
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import load_metric
from kit.errors import DataError, KitError
from kit.evaluation.compare import compare_runs
from kit.evaluation.metrics import METRICS, by_kind, compute_metrics, metrics_of
from kit.evaluation.metrics.base import Statistics

LABELS = st.sampled_from(["joy", "anger", "Größe", "7"])
PAIRS = st.lists(st.tuples(LABELS, LABELS), min_size=1, max_size=15)
SETS = st.lists(st.tuples(st.sets(LABELS), st.sets(LABELS)), min_size=1, max_size=15)


def measures(pairs: list[tuple[set[str], set[str]]], label: str) -> tuple[float, float, float, int]:
    """Precision, recall and F1 of one label, and how often it is right."""
    both = sum(label in predicted and label in right for predicted, right in pairs)
    predicted = sum(label in labels for labels, _ in pairs)
    right = sum(label in labels for _, labels in pairs)
    return (
        both / predicted if predicted else 0.0,
        both / right if right else 0.0,
        2 * both / (predicted + right) if predicted + right else 0.0,
        right,
    )


def check_averages(pairs: list[tuple[set[str], set[str]]], values: dict[str, Any]) -> None:
    """Every average against plain counting."""
    names = sorted(set.union(*(labels for pair in pairs for labels in pair)))
    each = [measures(pairs, name) for name in names]
    reference_count = sum(row[3] for row in each)
    hits = sum(len(predicted & right) for predicted, right in pairs)
    predicted_count = sum(len(predicted) for predicted, _ in pairs)
    micro = (
        hits / predicted_count if predicted_count else 0,
        hits / reference_count if reference_count else 0,
        2 * hits / (predicted_count + reference_count) if predicted_count + reference_count else 0,
    )
    for index, name in enumerate(("precision", "recall", "f1")):
        column = [row[index] for row in each]
        assert values[f"{name}_macro"] == pytest.approx(sum(column) / len(names) if names else 0)
        weighted = sum(row[index] * row[3] for row in each) / reference_count if reference_count else 0
        assert values[f"{name}_weighted"] == pytest.approx(weighted)
        assert values[f"{name}_micro"] == pytest.approx(micro[index])


AVERAGES = [name for name in METRICS if name.endswith(("_macro", "_micro", "_weighted"))]


@given(PAIRS)
@settings(max_examples=15, deadline=None)
def test_single_labels_are_counted(pairs: list[tuple[str, str]]) -> None:
    predictions, references = map(list, zip(*pairs, strict=True))
    values = compute_metrics(["accuracy", *AVERAGES], predictions, references)
    assert values["accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    check_averages([({a}, {b}) for a, b in pairs], values)
    assert values["f1_macro"] == pytest.approx(sklearn.metrics.f1_score(references, predictions, average="macro"))


@given(SETS)
@settings(max_examples=15, deadline=None)
def test_several_labels_are_counted(pairs: list[tuple[set[str], set[str]]]) -> None:
    predictions, references = [list(pair[0]) for pair in pairs], [sorted(pair[1]) for pair in pairs]
    values = compute_metrics(["accuracy", *AVERAGES], predictions, references)
    assert values["accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    check_averages(pairs, values)


def test_two_labels_by_hand() -> None:
    predictions, references = [1, 1, 0, 1, 0], [1, 0, 0, 1, 1]
    values = compute_metrics(["precision", "recall", "f1", "matthews"], predictions, references)
    assert values["precision"] == values["recall"] == values["f1"] == pytest.approx(2 / 3)
    # (TP·TN − FP·FN) / √((TP+FP)(TP+FN)(TN+FP)(TN+FN))
    assert values["matthews"] == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    named = [["no", "yes"][label] for label in predictions], [["no", "yes"][label] for label in references]
    assert compute_metrics(["f1"], *named, positive="yes") == compute_metrics(["f1"], *named, labels=["no", "yes"])
    assert compute_metrics(["f1"], *named, positive="no")["f1"] == pytest.approx(0.5)
    assert compute_metrics(["f1"], np.array(predictions), ["1", "0", "0", "1", "1"])["f1"] == values["f1"]


def test_labels_that_are_missing_on_one_side_or_on_both() -> None:
    """A label never predicted, one never right, one class only: a value, and the one that counting gives."""
    values = compute_metrics(["accuracy", "f1_macro", "matthews"], ["a", "a", "c"], ["a", "b", "a"])
    assert values["f1_macro"] == pytest.approx((0.5 + 0 + 0) / 3)
    assert values["accuracy"] == pytest.approx(1 / 3)
    single_class = compute_metrics(
        ["accuracy", "f1_macro", "f1_micro", "matthews"], ["a", "a"], ["a", "a"], labels=["a", "b"]
    )
    assert single_class == {"accuracy": 1.0, "f1_macro": 1.0, "f1_micro": 1.0, "matthews": 0.0}
    assert compute_metrics(["f1", "recall"], [0, 0], [0, 0]) == {"f1": 0.0, "recall": 0.0}
    assert compute_metrics(["f1_macro", "accuracy"], [[], []], [[], []]) == {"f1_macro": 0.0, "accuracy": 1.0}


def test_ten_thousand_labels() -> None:
    right = list(range(10_000))
    values = compute_metrics(["accuracy", "f1_macro", "f1_weighted"], [*right[:-1], 0], right)
    assert values["accuracy"] == pytest.approx(0.9999)
    assert values["f1_macro"] == pytest.approx((9998 + 2 / 3) / 10_000)


@pytest.mark.parametrize(
    ("name", "predictions", "references", "options", "message"),
    [
        ("accuracy", ["a", None], ["a", "b"], {}, r"Prediction 2 is missing \(None\)"),
        ("f1_macro", ["a", "b"], ["a", float("nan")], {}, r"Reference 2 is missing \(nan\)"),
        ("accuracy", [0.5], [1], {}, "Prediction 1 is 0.5: a label is a text or a whole number"),
        ("accuracy", ["a"], ["jy"], {"labels": ["a", "joy"]}, 'Reference 1 has the label "jy".*Did you mean "joy"'),
        ("f1", ["a", "b"], ["b", "b"], {}, "which label is positive: none of a, b is 1"),
        ("f1", ["a", "b"], ["b", "c"], {}, 'there are 3. Use "f1_macro"'),
        ("recall", [["a"], []], [["a"], ["b"]], {"positive": "a"}, "Prediction 2 has 0 labels"),
        ("matthews", [["a", "b"]], [["a"]], {}, "Prediction 1 has 2 labels, but matthews"),
        ("accuracy", [], [], {}, "No predictions"),
        ("mse", [1.0], [1.0, 2.0], {}, "1 predictions and 2 references"),
        ("mse", [1.0, float("nan")], [1, 2], {}, "Prediction 2 is nan"),
        ("pearson", [1.0, "x"], [1, 2], {}, "Prediction 2 is not a number: 'x'"),
        ("pearson", [1.0, 2.0], [3, 3], {}, r"needs references that differ; these 2 have the same value \(3\)"),
        ("spearman", [1.0], [3], {}, "references that differ"),
        ("roc_auc", [[0.2, 0.8], [0.4, 0.6]], [1, 1], {}, "all references are the same"),
        ("roc_auc", [[0.2, 0.8], [float("nan"), 0.6]], [1, 0], {}, "Prediction 2, score 1 is nan"),
        ("roc_auc", [[0.2, 0.8], [0.4]], [1, 0], {}, "Some examples have 1 scores, others 2"),
        ("roc_auc", [[0.2, 0.8]], [2], {}, 'Reference 1 has the label "2", for which there is no score'),
        ("roc_auc", [[0.2, 0.8]], ["yes"], {"labels": ["yes"]}, "2 scores per example, but 1 labels"),
        ("entity_f1", [["O"]], [["O", "O"]], {}, "Prediction 1 has 1 tags and its reference 2"),
        ("entity_f1", [["NOUN"]], [["O"]], {}, 'Prediction 1: "NOUN" is not a span tag.*tag_accuracy'),
        ("entity_f1", ["O"], [["O"]], {}, "Prediction 1 is not a list of tags"),
        ("tag_accuracy", [[]], [[]], {}, "no sentence has words"),
    ],
)
def test_invalid_input_is_named(
    name: str, predictions: list[Any], references: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(KitError, match=message):
        compute_metrics([name], predictions, references, **options)


def test_numbers_by_hand() -> None:
    predictions, references = [1.0, 2.0, 4.0], [1.0, 3.0, 2.0]
    values = compute_metrics(["mse", "pearson", "spearman"], predictions, references)
    assert values["mse"] == pytest.approx((0 + 1 + 4) / 3)
    # deviations (-4/3, -1/3, 5/3) and (-1, 1, 0)
    assert values["pearson"] == pytest.approx((4 / 3 - 1 / 3) / math.sqrt(42 / 9 * 2))
    assert values["spearman"] == pytest.approx(0.5)  # ranks 1 2 3 and 1 3 2: 1 − 6·2 / (3·8)
    assert compute_metrics(["mse"], [[1.0], [2.0], [4.0]], references)["mse"] == values["mse"]
    assert compute_metrics(["pearson", "spearman"], [5, 5, 5], references) == {"pearson": 0.0, "spearman": 0.0}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=12))
@settings(max_examples=15, deadline=None)
def test_roc_auc_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, bool]]) -> None:
    scores, right = [row[0] / 5 for row in rows], [int(row[1]) for row in rows]
    pairs = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high, positive in zip(scores, right, strict=True)
        for low, other in zip(scores, right, strict=True)
        if positive and not other
    ]
    if not pairs:
        with pytest.raises(DataError, match="all references are the same"):
            compute_metrics(["roc_auc"], scores, right)
        return
    expected = pytest.approx(sum(pairs) / len(pairs))
    both = [[1 - score, score] for score in scores]
    assert compute_metrics(["roc_auc"], scores, right)["roc_auc"] == expected
    assert compute_metrics(["roc_auc"], both, right)["roc_auc"] == expected
    named = ["no" if label == 0 else "yes" for label in right]
    assert compute_metrics(["roc_auc"], both, named, labels=["no", "yes"])["roc_auc"] == expected
    assert compute_metrics(["roc_auc"], both, named, labels=["no", "yes"], positive="no")["roc_auc"] == expected


def test_roc_auc_of_many_labels() -> None:
    drawn = np.random.default_rng(0)
    scores = drawn.dirichlet([1, 1, 1], size=30)
    right = [0, 1, 2] * 10
    expected = sklearn.metrics.roc_auc_score(right, scores, multi_class="ovr")
    assert compute_metrics(["roc_auc"], scores, right) == {
        "roc_auc": pytest.approx(expected),
        "roc_auc_labels_left_out": 0,
    }
    without = [label % 2 for label in right]  # label 2 is missing
    result = compute_metrics(["roc_auc"], scores, without)
    each = [sklearn.metrics.roc_auc_score([label == n for label in without], scores[:, n]) for n in (0, 1)]
    assert result == {"roc_auc": pytest.approx(sum(each) / 2), "roc_auc_labels_left_out": 1}
    several = [[0], [1, 2], [], [0, 1]]
    result = compute_metrics(["roc_auc"], [[0.9, 0.1, 0.1], [0.2, 0.8, 0.3], [0.1, 0.2, 0.7], [0.3, 0.4, 0.2]], several)
    assert result["roc_auc"] == pytest.approx((1 + 1 + 2 / 3) / 3)


# ---- tags ------------------------------------------------------------------------------------------------------------


def test_entities_by_hand() -> None:
    right = [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "B-PER", "O"], []]
    predicted = [["B-PER", "I-PER", "O", "B-PER"], ["B-PER", "I-PER", "B-ORG"], []]
    result = load_metric("entity_f1").compute(predictions=predicted, references=right)
    assert result["score"] == pytest.approx(2 * 1 / (4 + 4))  # one of four predicted, and one of four in the reference
    assert result["by_type"] == {
        "LOC": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 1},
        "ORG": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 0},
        "PER": {
            "precision": pytest.approx(1 / 3),
            "recall": pytest.approx(1 / 3),
            "f1": pytest.approx(1 / 3),
            "number": 3,
        },
    }
    values = compute_metrics(["entity_precision", "entity_recall", "tag_accuracy"], predicted, right)
    assert values == {"entity_precision": 0.25, "entity_recall": 0.25, "tag_accuracy": pytest.approx(4 / 7)}
    nothing = load_metric("entity_f1").compute(predictions=[["O"]], references=[["O"]])
    assert nothing == {"score": 0.0, "by_type": {}}


def test_entities_are_the_same_in_every_scheme() -> None:
    right = [["B-PER", "I-PER", "O", "B-PER", "B-PER"]]
    for same in (
        ["I-PER", "I-PER", "O", "I-PER", "B-PER"],
        ["B-PER", "E-PER", "O", "S-PER", "S-PER"],
        ["B-PER", "L-PER", "O", "U-PER", "U-PER"],
    ):
        assert compute_metrics(["entity_f1"], [same], right)["entity_f1"] == 1.0


# ---- the table -------------------------------------------------------------------------------------------------------


EXAMPLES: dict[str, tuple[Any, Any]] = {
    "text": ("a b", "a b"),
    "variety": ("a b", "c d"),
    "labels": (1, 1),
    "scores": ([0.2, 0.8], 1),
    "numbers": (2.0, 2.0),
    "tags": (["B-X"], ["B-X"]),
    "answers": ({"id": "q1", "prediction_text": "x"}, {"id": "q1", "answers": {"text": ["x"]}}),
}
OTHERS: dict[str, tuple[Any, Any]] = EXAMPLES | {
    "labels": (0, 0),
    "scores": ([0.8, 0.2], 0),
    "numbers": (1.0, 1.0),
    "answers": ({"id": "q2", "prediction_text": "y"}, {"id": "q2", "answers": {"text": ["y"]}}),
}


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_computes_by_its_function_and_as_a_module(name: str) -> None:
    kind = METRICS[name].kind
    predictions, references = map(list, zip(EXAMPLES[kind], OTHERS[kind], strict=True))
    values = compute_metrics([name], predictions, references)
    assert isinstance(METRICS[name].function(predictions, references), Statistics) == (kind == "text")
    module = load_metric(name)
    assert module.name == name
    module.add(prediction=predictions[0], reference=references[0])
    assert len(module) == 1
    module.add_batch(predictions=predictions[1:], references=references[1:])
    assert module.compute()["score"] == values[name]
    assert len(module) == 0
    assert module.compute(predictions=predictions, references=references)["score"] == values[name]


def test_names_and_kinds() -> None:
    assert set(by_kind(list(METRICS))) == set(EXAMPLES)
    assert metrics_of("answers") == ("squad_exact_match", "squad_f1")
    with pytest.raises(KitError, match=r"do not compare the same predictions \(bleu: text; accuracy: labels\)"):
        compute_metrics(["accuracy", "bleu"], ["a"], ["a"])
    with pytest.raises(KitError, match=r'"f1_marco".*Did you mean "f1_macro"'):
        by_kind(["f1_marco"])


def test_a_label_with_a_fraction_is_no_label_for_a_module_either() -> None:
    metric = load_metric("accuracy")
    metric.add(prediction=0.5, reference=1)
    with pytest.raises(DataError, match=r"Prediction 1 is 0\.5"):
        metric.compute()
    assert metric.compute(predictions=np.array([1, 0]), references=np.array([1, 1])) == {"score": 0.5}


def test_runs_without_labels_are_not_compared_by_labels(tmp_path: Any) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "predictions").mkdir(parents=True)
        row = '{"source": "x", "target": "y", "prediction": "y"}\n'
        (tmp_path / name / "predictions" / "test.jsonl").write_text(row, encoding="utf-8")
    with pytest.raises(
        KitError, match=r"by accuracy: it compares labels, and the predictions of .* have source, target"
    ):
        compare_runs([tmp_path / "a", tmp_path / "b"], metrics=["accuracy"])
