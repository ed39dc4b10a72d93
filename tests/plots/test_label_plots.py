"""Plots of label errors: confused pairs and worst labels, with all numbers in files."""

import csv
import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
from conftest import RunKit
from sklearn.metrics import precision_recall_fscore_support
from support.labeling_runs import recipe, write_rows

from kit import train
from kit.evaluation.errors import confused_pairs, label_table, number_of_errors
from kit.plots.fonts import MISSING_NOTE
from kit.plots.labels import (
    MAX_LABELS,
    confusion_matrix_figure,
    confusions_figure,
    predicted_label_figures,
    predicted_label_tables,
    shown,
)

pytestmark = pytest.mark.figures

NAMES = [f"label {number:03d}" for number in range(150)]


def predictions(count: int = 3000) -> tuple[list[str], list[str]]:
    """150 labels, of which the last is always taken for the first, and others rarely for their neighbors."""
    drawn = random.Random(0)
    true = drawn.choices(NAMES, k=count)
    return true, [
        NAMES[0] if label == NAMES[-1] else drawn.choice(NAMES) if drawn.random() < 0.05 else label for label in true
    ]


def test_the_table_equals_that_of_scikit_learn() -> None:
    true, predicted = predictions(500)
    table = label_table([[label] for label in true], [[label] for label in predicted])
    expected = precision_recall_fscore_support(true, predicted, labels=list(table), zero_division=0)
    for column, name in enumerate(("precision", "recall", "f1", "examples")):
        np.testing.assert_allclose([row[name] for row in table.values()], expected[column])
    assert sum(map(number_of_errors, table.values())) == 2 * sum(a != b for a, b in zip(true, predicted, strict=True))


def test_a_label_is_counted_once_for_each_example_that_has_it() -> None:
    table = label_table([["a", "b"], []], [["b"], ["b"]])
    assert table["a"] == {"precision": 0, "recall": 0, "f1": 0, "examples": 1, "predictions": 0}
    assert table["b"] == {"precision": 0.5, "recall": 1, "f1": pytest.approx(2 / 3), "examples": 1, "predictions": 2}


def test_many_labels_show_the_most_confused_pairs_and_the_worst_labels() -> None:
    true, predicted = predictions()
    pairs = confused_pairs(true, predicted)
    assert pairs[0][:2] == (NAMES[-1], NAMES[0])
    axes = confusions_figure(pairs).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [count for _, _, count in pairs[:MAX_LABELS]]
    assert axes.get_yticklabels()[0].get_text() == f"{NAMES[-1]} → {NAMES[0]}"
    errors = sum(count for _, _, count in pairs)
    assert axes.get_title().endswith(f"of {errors:,} errors")
    table = label_table([[label] for label in true], [[label] for label in predicted])
    worst = list(shown(table))
    assert {NAMES[0], NAMES[-1]} <= set(worst)
    assert len(worst) == MAX_LABELS
    assert min(number_of_errors(table[name]) for name in worst) >= max(
        number_of_errors(table[name]) for name in table.keys() - set(worst)
    )


def test_labels_without_a_font_are_explained() -> None:
    names = ["ok", "\U000e0e0f\U00012345"]
    for figure in predicted_label_figures(names, names[::-1]).values():
        assert MISSING_NOTE in [text.get_text() for text in figure.texts]


def test_few_labels_are_the_same_in_every_figure() -> None:
    figures = predicted_label_figures(list("bbca"), list("bcca"))
    assert [label.get_text() for label in figures["confusion"].axes[0].get_yticklabels()] == ["a", "b", "c"]
    assert [label.get_text()[0] for label in figures["labels"].axes[0].get_yticklabels()] == ["a", "b", "c"]
    confusions = predicted_label_tables(list("bbca"), list("bcca"))["confusions.csv"]
    assert list(csv.reader(io.StringIO(confusions))) == [["true", "predicted", "count"], ["b", "c", "1"]]
    matrix = confusion_matrix_figure(list("bbca"), list("bcca"), list("abc"))
    assert [axes.get_ylabel() for axes in matrix.axes] == ["true label", "share of the true label"]


def test_a_regression_has_a_scatter_plot_and_a_classifier_its_tables(tmp_path: Path, kit_here: RunKit) -> None:
    rows = [{"text": text, "label": len(text)} for text in ("a", "bb", "ccc", "dddd")]
    data = {"path": str(write_rows(tmp_path / "numbers", train=rows, validation=rows)), "problem_type": "regression"}
    run = train(recipe(tmp_path, "classification", data), tmp_path / "regression", quiet=True)
    assert (run.folder / "plots" / "predictions.png").is_file()
    rows = [{"text": row["text"], "label": "xy"[row["label"] % 2]} for row in rows]
    data = {"path": str(write_rows(tmp_path / "names", train=rows, validation=rows))}
    run = train(recipe(tmp_path, "classification", data), tmp_path / "classes", quiet=True)
    figures = json.loads((run.folder / "results.json").read_text())["validation"]
    assert figures["labels"].keys() == {"x", "y"}
    assert sum(count for _, _, count in figures["confusions"]) == sum(
        row["label"] != row["prediction"]
        for row in map(json.loads, (run.folder / "predictions" / "validation.jsonl").read_text().splitlines())
    )
    assert {"labels.csv", "confusions.csv"} <= {path.name for path in (run.folder / "plots").iterdir()}
    printed = kit_here("eval", run.folder, "--split", "validation").stdout
    assert "most frequent confusions" in printed
    assert "precision" in printed
