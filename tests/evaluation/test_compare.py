"""Comparison of runs equals an independent bootstrap and sacrebleu's draws, and is rejected where unfair."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from rich.console import Console
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.significance import PairedTest

from kit.errors import KitError, RunError
from kit.evaluation.compare import compare_runs
from kit.evaluation.metrics import compute_metrics
from kit.evaluation.metrics.rouge import AllScripts
from kit.evaluation.predictions import read_predictions
from kit.evaluation.resampling import SUMS, resampled_metric

VOCABULARY = ["der", "Hund", "läuft", "über", "die", "Straße", "und", "bellt", "laut", "."]


def make_run(folder: Path, error_rate: float, seed: int, examples: int = 120, **changes: Any) -> Path:
    """A run folder whose predictions have each word wrong with the given probability."""
    data, noise = np.random.default_rng(0), np.random.default_rng(seed)
    lines = []
    for number in range(examples):
        words = data.choice(VOCABULARY, size=data.integers(5, 9)).tolist()
        guess = [word if noise.random() > error_rate else "falsch" for word in words]
        row = {
            "source": f"source {number}",
            "target": " ".join(words),
            "prediction": " ".join(guess),
            "score": -1.0,
        }
        lines.append(json.dumps(row | changes.get(f"row_{number}", {}), ensure_ascii=False))
    (folder / "predictions").mkdir(parents=True)
    (folder / "predictions" / "test.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def rows(folder: Path, key: str) -> list[str]:
    return [row[key] for row in read_predictions(folder / "predictions" / "test.jsonl")]


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_exact_match_equals_an_independent_bootstrap(tmp_path: Path, seed: int) -> None:
    weak, strong = make_run(tmp_path / "weak", 0.12, 1), make_run(tmp_path / "strong", 0.07, 2)
    comparison = compare_runs([weak, strong], metrics=["exact_match"], samples=400, seed=seed)

    hits = [
        np.array([a == b for a, b in zip(rows(run, "prediction"), rows(run, "target"), strict=True)], dtype=float)
        for run in (weak, strong)
    ]
    chosen = np.random.default_rng(seed).choice(120, size=(400, 120), replace=True)
    drawn = np.sort(hits[1][chosen].mean(axis=1) - hits[0][chosen].mean(axis=1))
    difference = comparison.difference("strong", "exact_match")
    assert difference.value == pytest.approx(hits[1].mean() - hits[0].mean())
    assert (difference.low, difference.high) == pytest.approx((drawn[10], drawn[389]))
    tail = min((drawn <= 1e-12).sum(), (drawn >= -1e-12).sum())
    assert difference.p_value == pytest.approx(min(1, 2 * (tail + 1) / 401))


def test_draws_are_those_of_sacrebleu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    weak, strong = make_run(tmp_path / "weak", 0.3, 1), make_run(tmp_path / "strong", 0.2, 2)
    comparison = compare_runs([weak, strong], metrics=["bleu", "chrf", "ter"], samples=200, seed=77)
    systems = [(run.name, rows(run, "prediction")) for run in (weak, strong)]
    scorers = {"BLEU": sacrebleu.BLEU(), "chrF2": sacrebleu.CHRF(), "TER": sacrebleu.TER()}
    _, theirs = PairedTest(systems, scorers, [rows(weak, "target")], test_type="bs", n_samples=200)()
    for name, their_name in [("bleu", "BLEU"), ("chrf", "chrF2"), ("ter", "TER")]:
        for run, their in zip((weak, strong), theirs[their_name], strict=True):
            ours = comparison.score(run.name, name)
            assert ours.value == pytest.approx(their.score)
            assert (ours.high - ours.low) / 2 == pytest.approx(their.ci, rel=1e-3)  # theirs are float32
        difference = comparison.difference("strong", name)
        assert difference.better is True
        assert (difference.value < 0) == (name == "ter")
    assert "bs:200" in comparison.signatures["bleu"]
    assert "seed:77" in comparison.signatures["bleu"]


def test_rouge_is_compared_by_the_mean_of_the_examples_that_are_drawn(tmp_path: Path) -> None:
    weak, strong = make_run(tmp_path / "weak", 0.3, 1), make_run(tmp_path / "strong", 0.2, 2)
    comparison = compare_runs([weak, strong], metrics=["rougeL", "rouge2"], samples=100, seed=5)
    scorer = RougeScorer(["rougeL"], tokenizer=AllScripts())
    means = []
    for run in (weak, strong):
        pairs = zip(rows(run, "target"), rows(run, "prediction"), strict=True)
        scores = np.array([scorer.score(*pair)["rougeL"].fmeasure for pair in pairs]) * 100
        assert comparison.score(run.name, "rougeL").value == pytest.approx(scores.mean())
        chosen = np.random.default_rng(5).choice(120, size=(100, 120), replace=True)
        means.append(scores[chosen].mean(axis=1))
    drawn = np.sort(means[1] - means[0])
    difference = comparison.difference("strong", "rougeL")
    assert (difference.low, difference.high) == pytest.approx((drawn[2], drawn[97]))
    assert difference.better is True
    assert "words:all-scripts" in comparison.signatures["rouge2"]


def test_a_run_against_itself_and_against_its_copy(tmp_path: Path) -> None:
    run, copy = make_run(tmp_path / "a" / "run", 0.2, 1), make_run(tmp_path / "b" / "run", 0.2, 1)
    comparison = compare_runs(
        [run, run, copy], metrics=["bleu", "chrf", "ter", "exact_match", "token_accuracy"], samples=50
    )
    assert len(set(comparison.runs)) == 3
    assert len(comparison.differences) == 10
    for difference in comparison.differences:
        assert (difference.value, difference.low, difference.high) == (0, 0, 0)
        assert difference.p_value == 1
        assert difference.better is None


def test_p_values_are_honest_when_both_runs_are_equally_good(tmp_path: Path) -> None:
    """Many pairs of equal quality: about 5 % of them may look different at the 5 % level, not many more."""
    alarms = 0
    for trial in range(40):
        folder = tmp_path / str(trial)
        a, b = make_run(folder / "a", 0.1, 2 * trial + 10), make_run(folder / "b", 0.1, 2 * trial + 11)
        comparison = compare_runs([a, b], metrics=["token_accuracy"], samples=200)
        alarms += comparison.differences[0].better is not None
    assert alarms <= 7  # more than 7 of 40 has a probability of 0.2 %


def test_same_seed_same_result_and_order_of_runs_only_flips_the_sign(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a", 0.25, 1), make_run(tmp_path / "b", 0.2, 2)
    first = compare_runs([a, b], metrics=["token_accuracy", "bleu"], samples=100, seed=3)
    assert compare_runs([a, b], metrics=["token_accuracy", "bleu"], samples=100, seed=3) == first
    assert compare_runs([a, b], metrics=["token_accuracy", "bleu"], samples=100, seed=4) != first
    flipped = compare_runs([b, a], metrics=["token_accuracy", "bleu"], samples=100, seed=3)
    for name in ("token_accuracy", "bleu"):
        forward, backward = first.difference("b", name), flipped.difference("a", name)
        assert (backward.value, backward.low, backward.high) == pytest.approx(
            (-forward.value, -forward.high, -forward.low)
        )
        assert backward.p_value == forward.p_value


def test_metrics_come_from_the_results_of_all_runs(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a", 0.2, 1), make_run(tmp_path / "b", 0.2, 2)
    (a / "results.json").write_text(json.dumps({"test": {"ter": 1, "chrf": 1, "loss": 2}}))
    assert compare_runs([a, b], samples=2).metrics == ("bleu", "chrf", "exact_match")
    (b / "results.json").write_text(json.dumps({"test": {"chrf": 1, "exact_match": 1, "by": {}}}))
    assert compare_runs([a, b], samples=2).metrics == ("chrf",)
    (b / "results.json").write_text("[1]")
    with pytest.raises(RunError, match=r"results\.json"):
        compare_runs([a, b], samples=2)


def test_the_table_names_every_run_and_metric(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "base[red]", 0.4, 1), make_run(tmp_path / "new", 0.1, 2)
    table = compare_runs([a, b], metrics=["bleu", "ter"], samples=100).table()
    out = io.StringIO()
    Console(file=out, width=160).print(table)
    text = out.getvalue()
    assert all(word in text for word in ("base[red]", "new", "BLEU", "TER", "better", "120 examples"))
    assert "worse" not in text


@pytest.mark.parametrize("key", ["source", "target"])
def test_different_examples_are_refused_with_the_row(tmp_path: Path, key: str) -> None:
    a, b = make_run(tmp_path / "a", 0.2, 1), make_run(tmp_path / "b", 0.2, 2, row_17={key: "something else"})
    with pytest.raises(RunError, match=f'row 18 has the {key} .*"something else"'):
        compare_runs([a, b])


def test_a_different_number_of_examples_is_refused(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a", 0.2, 1), make_run(tmp_path / "b", 0.2, 2, examples=119)
    with pytest.raises(RunError, match=r"120 rows.*119.*row 120 is only in one"):
        compare_runs([a, b])


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "3", "", '{"source": "a", "target": "b"}', '{"source": "a", "target": 1, "prediction": "c"}'],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    a, b = make_run(tmp_path / "a", 0.2, 1), make_run(tmp_path / "b", 0.2, 2)
    file = b / "predictions" / "test.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")
    lines[4] = line
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(RunError, match=r"test\.jsonl, line 5 is not a prediction"):
        compare_runs([a, b])


def test_missing_empty_and_unreadable_files_are_named(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a", 0.2, 1), tmp_path / "b"
    with pytest.raises(RunError, match=r"test\.jsonl does not exist.*kit eval"):
        compare_runs([a, b])
    with pytest.raises(RunError, match=r"validation\.jsonl does not exist"):
        compare_runs([a, a], split="validation")
    (b / "predictions").mkdir(parents=True)
    (b / "predictions" / "test.jsonl").write_bytes(b"")
    with pytest.raises(RunError, match="is empty"):
        compare_runs([a, b])
    (b / "predictions" / "test.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match="cannot be read"):
        compare_runs([a, b])


def test_invalid_arguments_are_rejected(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", 0.2, 1)
    for arguments, message in (
        ({"samples": 0}, "at least one bootstrap sample"),
        ({"seed": -1}, "seed"),
        ({"metrics": ["blue"]}, '"blue"'),
    ):
        with pytest.raises(KitError, match=message):
            compare_runs([a, a], **arguments)
    with pytest.raises(KitError, match="two run folders"):
        compare_runs([a])


def test_line_separators_inside_texts_do_not_break_rows(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", 0.2, 1, row_3={"prediction": "one\u2028two\x85three\x0cfour"})
    assert len(rows(a, "prediction")) == 120
    assert rows(a, "prediction")[3] == "one\u2028two\x85three\x0cfour"


LABELS = ["x", "y", "z"]


def examples(name: str, random: np.random.Generator, count: int = 40) -> tuple[list[Any], list[Any]]:
    """Predictions and references of the kind that a metric compares."""
    if name.startswith("squad"):
        texts = [["the old red house", "red house"], ["a bird"], []]
        chosen = [(texts[index], random.choice(["red house", "bird", ""])) for index in random.integers(3, size=count)]
        predictions = [{"id": n, "prediction_text": str(text)} for n, (_, text) in enumerate(chosen)]
        return predictions, [{"id": n, "answers": {"text": answers}} for n, (answers, _) in enumerate(chosen)]
    if name.startswith(("entity", "tag")):
        tags = ["O", "B-a", "I-a", "B-b", "I-b"]
        lengths = random.integers(1, 6, size=count)
        sides = [[random.choice(tags, size=length).tolist() for length in lengths] for _ in range(2)]
        return sides[0], sides[1]
    if name in ("mse", "mae", "pearson", "spearman"):
        return random.normal(size=count).tolist(), random.normal(size=count).tolist()
    binary = name in ("precision", "recall", "f1")
    labels = LABELS[:2] if binary else LABELS
    return random.choice(labels, size=count).tolist(), random.choice(labels, size=count).tolist()


@pytest.mark.parametrize("name", [*SUMS, "matthews", "pearson", "spearman"])
def test_a_metric_on_a_sample_is_the_metric_of_the_drawn_examples(name: str) -> None:
    random = np.random.default_rng(0)
    predictions, references = examples(name, random)
    options = {"labels": LABELS[:2]} if name in ("precision", "recall", "f1") else {}
    scored = resampled_metric(name, predictions, references, **options)
    assert scored.score() == pytest.approx(compute_metrics([name], predictions, references, **options)[name])
    for _ in range(5):
        drawn = random.choice(len(references), size=len(references))
        sides = [[side[index] for index in drawn] for side in (predictions, references)]
        if name.startswith("squad"):  # every question has its own id
            sides = [[row | {"id": n} for n, row in enumerate(side)] for side in sides]
        expected = compute_metrics([name], *sides, **options)[name]
        assert scored.score(np.bincount(drawn, minlength=len(references))) == pytest.approx(expected)


def test_examples_with_several_labels() -> None:
    predictions, references = [["x"], ["x", "y"], [], ["z", "y"]], [["x", "z"], ["y"], [], ["y", "z"]]
    for name in ("accuracy", "f1_macro", "recall_micro", "precision_weighted"):
        expected = compute_metrics([name], predictions, references)[name]
        assert resampled_metric(name, predictions, references).score() == pytest.approx(expected)


def test_missing_values_of_forecasts_do_not_count() -> None:
    predictions, references = [[[1.0, 2.0], [3.0, 4.0]]], [[[2.0, None], [3.0, 2.0]]]
    assert resampled_metric("mse", predictions, references).score() == pytest.approx((1 + 0 + 4) / 3)


def test_several_seeds_of_a_side_count_with_their_mean(tmp_path: Path) -> None:
    """Samples draw examples and runs: seeds that differ widen the interval that examples alone would have."""
    weak = [make_run(tmp_path / f"weak_{n}", rate, n) for n, rate in enumerate((0.1, 0.3))]
    strong = [make_run(tmp_path / f"strong_{n}", 0.05, n) for n in range(10, 13)]
    comparison = compare_runs([weak, strong], metrics=["token_accuracy"], samples=400)
    means = [np.mean([compare_runs([run, run], metrics=["token_accuracy"], samples=1).scores[0].value for run in side])
             for side in (weak, strong)]  # fmt: skip
    (difference,) = comparison.differences
    assert comparison.runs == ("weak_0 and 1 more", "strong_10 and 2 more")
    assert [score.value for score in comparison.scores] == pytest.approx(means)
    assert difference.value == pytest.approx(means[1] - means[0])
    fixed = compare_runs([weak[0], strong[0]], metrics=["token_accuracy"], samples=400).differences[0]
    assert difference.high - difference.low > fixed.high - fixed.low
    assert comparison.draws_runs
    single = compare_runs([[weak[0]], [strong[0]]], metrics=["token_accuracy"], samples=400)
    assert single.differences == (fixed,)


def test_sides_on_the_command_line(tmp_path: Path, kit_here: Any) -> None:
    runs = [make_run(tmp_path / name, 0.1, seed) for seed, name in enumerate(("a1", "a2", "b1", "b2"))]
    done = kit_here("compare", *runs[:2], "vs", *runs[2:], "--samples", 50, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["runs"] == ["a1 and 1 more", "b1 and 1 more"]
    refused = kit_here("compare", *runs, "vs")
    assert (refused.returncode, "no run on one side of vs" in refused.stderr) == (2, True)


def test_bleu_is_that_of_the_evaluation(tmp_path: Path) -> None:
    """The tokenizer and the case are those of the signature in the results."""
    runs = [make_run(tmp_path / name, rate, 1) for name, rate in (("a", 0.3), ("b", 0.2))]
    signature = "nrefs:1|case:lc|eff:no|tok:zh|smooth:exp|version:2.6.0"
    for run in runs:
        (run / "results.json").write_text(json.dumps({"test": {"bleu": 1.0, "bleu_signature": signature}}))
    comparison = compare_runs(runs, samples=2)
    assert "case:lc" in comparison.signatures["bleu"]
    assert "tok:zh" in comparison.signatures["bleu"]
