"""Registered metrics: accepted in recipes, computed in runs, used for selection, and readable where unknown."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import datasets
import evaluate
import pytest
from support.cards import write_card

import kit
from kit import load_metric, load_recipe, register_metric
from kit.cards.markdown import escape
from kit.errors import KitError, RecipeError
from kit.evaluation.compare import compare_runs
from kit.evaluation.metrics import METRICS, compute_metrics, greater_is_better
from kit.evaluation.metrics.registry import Kind
from kit.runs.folder import RunFolder


@pytest.fixture(autouse=True)
def forget_registrations() -> Iterator[None]:
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)


def length_ratio(predictions: list[str], references: list[str]) -> float:
    return sum(map(len, predictions)) / sum(map(len, references))


class WordErrors(evaluate.Metric):
    """A module as `evaluate.load` returns it, without the download."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo("", "", datasets.Features({"predictions": text, "references": text}))

    def _compute(self, predictions: list[str], references: list[str]) -> float:
        return sum(a != b for a, b in zip(predictions, references, strict=True)) / len(predictions)


class IdAccuracy(evaluate.Metric):
    """A module on integer labels, as those of `evaluate` are."""

    def _info(self) -> evaluate.MetricInfo:
        number = datasets.Value("int32")
        return evaluate.MetricInfo("", "", datasets.Features({"predictions": number, "references": number}))

    def _compute(self, predictions: list[int], references: list[int]) -> dict[str, float]:
        assert all(isinstance(label, int) for label in (*predictions, *references))
        return {"id_accuracy": sum(a == b for a, b in zip(predictions, references, strict=True)) / len(predictions)}


def test_a_function_and_a_module_are_computed_beside_built_in_metrics() -> None:
    register_metric("length_ratio", length_ratio)
    register_metric("word_errors", WordErrors(keep_in_memory=True), greater_is_better=False, title="Word errors")
    predictions, references = ["a b", "a"], ["a b", "abcde"]
    values = compute_metrics(["exact_match", "length_ratio", "word_errors"], predictions, references)
    assert values == {"exact_match": 0.5, "length_ratio": 0.5, "word_errors": 0.5}
    assert greater_is_better("length_ratio")
    assert not greater_is_better("word_errors")
    assert METRICS["word_errors"].title == "Word errors"
    # lists of one reference become texts, which most metrics expect
    assert compute_metrics(["length_ratio"], predictions, [[text] for text in references])["length_ratio"] == 0.5


def test_a_text_metric_receives_several_references_as_lists() -> None:
    received: list[Any] = []
    register_metric("spy", lambda predictions, references: received.append(references) or 1)
    compute_metrics(["spy"], ["a", "b"], [["x"], ["y", "z"]])
    assert received == [[["x"], ["y", "z"]]]


def test_a_module_on_integers_receives_indices_of_labels() -> None:
    register_metric("id_accuracy", IdAccuracy(keep_in_memory=True), kind="labels")
    values = compute_metrics(["accuracy", "id_accuracy"], ["no", "yes"], ["yes", "yes"], labels=["no", "yes"])
    assert values == {"accuracy": 0.5, "id_accuracy": 0.5}
    register_metric("names", lambda predictions, references: float(predictions == ["no", "yes"]), kind="labels")
    assert compute_metrics(["names"], ["no", "yes"], ["yes", "yes"], labels=["no", "yes"], positive="no") == {
        "names": 1.0
    }


def test_answers_are_empty_where_the_threshold_says_so() -> None:
    received: list[Any] = []
    register_metric(
        "spy", lambda predictions, references: received.append((predictions, references)) or 1, kind="answers"
    )
    predictions = [
        {"id": 1, "prediction_text": "x", "null_score": 0.9},
        {"id": 2, "prediction_text": "y", "null_score": 0},
    ]
    references = [{"id": 1, "answers": {"text": []}}, {"id": 2, "answers": {"text": ["y"]}}]
    compute_metrics(["spy"], predictions, references, null_threshold=0.5)
    assert received == [
        (
            [{"id": "1", "prediction_text": ""}, {"id": "2", "prediction_text": "y"}],
            [
                {"id": "1", "answers": {"text": [], "answer_start": []}},
                {"id": "2", "answers": {"text": ["y"], "answer_start": [0]}},
            ],
        )
    ]


@pytest.mark.parametrize(
    ("result", "values"),
    [
        (0.25, {"mine": 0.25}),
        ({"mine": 0.25, "other": 3}, {"mine": 0.25, "mine_other": 3.0}),
        ({"score": 0.25, "note": "v1"}, {"mine": 0.25, "mine_note": "v1"}),
        ({"wer": 0.25, "counts": [1, 2]}, {"mine": 0.25}),
    ],
)
def test_what_a_metric_may_return(result: Any, values: dict[str, Any]) -> None:
    register_metric("mine", lambda predictions, references: result)
    assert compute_metrics(["mine"], ["a"], ["b"]) == values
    assert load_metric("mine").compute(predictions=["a"], references=["b"])["score"] == 0.25


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (float("nan"), "returned nan: expected a finite number"),
        (None, "returned None: expected a finite number"),
        ({"precision": 1.0, "recall": 0.5}, "returned precision, recall: expected a number"),
        ({}, "returned nothing"),
    ],
)
def test_what_a_metric_must_not_return(result: Any, message: str) -> None:
    register_metric("mine", lambda predictions, references: result)
    with pytest.raises(KitError, match=f'The metric "mine" {message}'):
        compute_metrics(["mine"], ["a"], ["b"])


@pytest.mark.parametrize(
    ("name", "metric", "options", "message"),
    [
        ("bleu", length_ratio, {}, '"bleu" is the name of a built-in figure'),
        ("loss", length_ratio, {}, '"loss" is the name of a built-in figure'),
        ("examples", length_ratio, {}, '"examples" is the name of a built-in figure'),
        ("my metric", length_ratio, {}, "letters, digits and underscores"),
        ("mine", "wer", {}, "'wer' is not a metric"),
        ("mine", length_ratio, {"kind": "texts"}, '"texts" is not a kind of metric.*Did you mean "text"'),
    ],
)
def test_what_cannot_be_registered(name: str, metric: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(KitError, match=message):
        register_metric(name, metric, **options)


def test_a_registered_module_is_loaded_as_itself_and_a_name_can_be_registered_again() -> None:
    module = WordErrors(keep_in_memory=True)
    register_metric("mine", module)
    assert load_metric("mine") is module
    register_metric("mine", length_ratio)
    assert load_metric("mine").compute(predictions=["ab"], references=["a"]) == {"score": 2.0}


def test_a_recipe_accepts_it_where_predictions_fit(tiny_recipe: Path) -> None:
    overrides = ["eval.metrics=[chrf,length_ratio]", "eval.metric_for_best_model=length_ratio"]
    with pytest.raises(RecipeError, match=r'a metric added with kit.register_metric, got "length_ratio"'):
        load_recipe(tiny_recipe, overrides)
    register_metric("length_ratio", length_ratio)
    register_metric("label_share", length_ratio, kind="labels")
    recipe = load_recipe(tiny_recipe, overrides)
    assert (recipe.eval.metrics, recipe.eval.metric_for_best_model) == (["chrf", "length_ratio"], "length_ratio")
    with pytest.raises(RecipeError, match=r'got "length_rato"\. Did you mean "length_ratio"'):
        load_recipe(tiny_recipe, ["eval.metrics=[length_rato]"])
    with pytest.raises(RecipeError, match='got "label_share"'):
        load_recipe(tiny_recipe, ["eval.metrics=[label_share]"])


@pytest.mark.parametrize(
    ("recipe", "kinds"),
    [
        ("dates_rnn", {"text"}),
        ("shapes_captioner", {"text"}),
        ("lora_causal_lm", {"text"}),
        ("dialogues_hred", {"text", "variety"}),
        ("dates_language", {"labels", "scores"}),
        ("dates_tags", {"tags"}),
        ("dates_questions", {"answers"}),
        ("pendulum", set()),
        ("shakespeare_rnn", set()),
    ],
)
def test_each_task_accepts_the_kinds_it_predicts(recipe: str, kinds: set[str]) -> None:
    accepted = set()
    for kind in get_args(Kind):
        register_metric(f"my_{kind}", length_ratio, kind=kind)
        with suppress(RecipeError):
            load_recipe(recipe, [f"eval.metrics=[my_{kind}]", f"eval.metric_for_best_model=my_{kind}"])
            accepted.add(kind)
    assert accepted == kinds


def test_a_run_is_selected_by_it_and_its_folder_is_read_without_it(tiny_recipe: Path, tmp_path: Path) -> None:
    calls: list[int] = []
    register_metric("calls", lambda *_: calls.append(1) or len(calls), greater_is_better=False)
    register_metric("length_ratio", length_ratio, greater_is_better=False, title="Length ratio")
    overrides = ["eval.metrics=[calls,length_ratio]", "eval.metric_for_best_model=calls", "eval.group_by=[language]"]
    run = kit.train(load_recipe(tiny_recipe, overrides), tmp_path / "run")
    assert run.results["train"]["best_step"] == 6  # of 6 and 12
    rows = [json.loads(line) for line in (run.folder / "predictions" / "test.jsonl").read_text("utf-8").splitlines()]
    expected = length_ratio([row["prediction"] for row in rows], [row["target"] for row in rows])
    assert run.results["test"]["length_ratio"] == pytest.approx(expected)
    assert "length_ratio" in run.results["test"]["by"]["language"]["de"]
    assert "| Length ratio (lower is better) |" in (run.folder / "README.md").read_text(encoding="utf-8")

    del METRICS["calls"], METRICS["length_ratio"]
    recipe = RunFolder(run.folder).recipe()
    assert recipe.eval.metric_for_best_model == "calls"
    assert f"| {escape('length_ratio')} |" in write_card(run.folder, recipe, run.results)
    with pytest.raises(RecipeError, match=r'a metric added with kit.register_metric, got "calls"'):
        kit.evaluate(run.folder)
    assert "exact_match" in kit.evaluate(run.folder, overrides=["eval.metrics=[exact_match]"]).figures


def test_runs_are_compared_by_it(tmp_path: Path) -> None:
    register_metric("length_ratio", length_ratio)
    for name in ("a", "b"):
        (tmp_path / name / "predictions").mkdir(parents=True)
        row = '{"source": "x", "target": "y", "prediction": "y"}\n'
        (tmp_path / name / "predictions" / "test.jsonl").write_text(row, encoding="utf-8")
        results = '{"test": {"exact_match": 1.0, "length_ratio": 1.0}}'
        (tmp_path / name / "results.json").write_text(results, encoding="utf-8")
    assert compare_runs([tmp_path / "a", tmp_path / "b"], samples=2).metrics == ("exact_match", "length_ratio")


def test_evaluate_is_imported_for_modules_only() -> None:
    code = (
        "import sys, kit; kit.register_metric('m', lambda p, r: 1.0)\n"
        "from kit.evaluation.metrics import compute_metrics\n"
        "compute_metrics(['m', 'chrf'], ['a'], ['a'])\n"
        "assert 'evaluate' not in sys.modules\n"
        "kit.load_metric('m'); assert 'evaluate' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
