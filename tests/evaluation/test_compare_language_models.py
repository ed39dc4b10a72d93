"""Comparison of language models: by the losses of documents, blocks and pairs, from which their figures add up."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import RunKit
from support.runs import results

from kit import evaluate, train
from kit.errors import KitError, RunError
from kit.evaluation.compare import compare_runs
from kit.evaluation.losses import COMPARED, MIN_DOCUMENTS, loss_figures, read_losses, total_sums
from kit.recipe.base import Recipe

WORDS = ["stream", "of", "tokens", "is", "read", "once", "and", "then", "closed"]


def make_run(folder: Path, seed: int, shift: float = 0.0, tokens_per_word: int = 1, documents: int = 60) -> Path:
    """A run folder with the losses of documents that all runs share; each token has a loss of about 2 + shift."""
    data, noise = np.random.default_rng(0), np.random.default_rng([seed, 1])
    rows = []
    for number in range(documents):
        text = " ".join(data.choice(WORDS, size=data.integers(5, 40)))
        words = len(text.split())
        loss = words * (2 + shift + 0.3 * noise.standard_normal())
        rows.append(
            {"document": number + 1, "text": text[:80], "loss": loss, "tokens": tokens_per_word * words + 1,
             "words": words, "bytes": len(text)}
        )  # fmt: skip
    (folder / "losses").mkdir(parents=True)
    (folder / "losses" / "test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def test_differences_are_those_of_an_independent_bootstrap(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "one", 1), make_run(tmp_path / "two", 2, shift=0.05)
    comparison = compare_runs([one, two], samples=200, seed=3)
    assert comparison.metrics == ("loss", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
    assert comparison.unit == "document"
    rows = [read_losses(run / "losses" / "test.jsonl") for run in (one, two)]
    loss, tokens, size = (
        np.array([[row[name] for row in run] for run in rows]) for name in ("loss", "tokens", "bytes")
    )
    drawn = np.random.default_rng(3).choice(60, size=(200, 60), replace=True)
    for name, values in {
        "loss": [loss[run][drawn].sum(1) / tokens[run][drawn].sum(1) for run in (0, 1)],
        "bits_per_byte": [loss[run][drawn].sum(1) / size[run][drawn].sum(1) / math.log(2) for run in (0, 1)],
    }.items():
        differences = np.sort(values[1] - values[0])
        difference = comparison.difference("two", name)
        assert (difference.low, difference.high) == pytest.approx((differences[5], differences[194]))
        tail = min((differences <= 0).sum(), (differences >= 0).sum())
        assert difference.p_value == pytest.approx(min(1, 2 * (tail + 1) / 201))
    perplexity = comparison.score("two", "perplexity")
    assert perplexity.value == pytest.approx(math.exp(comparison.score("two", "loss").value))
    assert perplexity.low < perplexity.value < perplexity.high


def test_a_worse_model_is_named_over_several_seeds(tmp_path: Path) -> None:
    good = [make_run(tmp_path / f"good_{seed}", seed) for seed in range(3)]
    bad = [make_run(tmp_path / f"bad_{seed}", 9 + seed, shift=0.3) for seed in range(2)]
    comparison = compare_runs([good, bad], metrics=["bits_per_byte"], samples=200)
    (difference,) = comparison.differences
    assert difference.better is False
    assert 0 < difference.low < difference.value < difference.high
    assert comparison.draws_runs
    same = compare_runs([good[0], good[0]], samples=50)
    assert all((item.value, item.low, item.high, item.p_value) == (0, 0, 0, 1) for item in same.differences)


def test_tokenizers_that_differ_are_compared_per_word_and_byte_only(tmp_path: Path) -> None:
    words, parts = make_run(tmp_path / "words", 1), make_run(tmp_path / "parts", 2, tokens_per_word=2)
    comparison = compare_runs([words, parts], samples=20)
    assert comparison.metrics == ("word_perplexity", "byte_perplexity", "bits_per_byte")
    with pytest.raises(KitError, match=r"loss is per token.*bits_per_byte"):
        compare_runs([words, parts], metrics=["loss"])
    with pytest.raises(KitError, match=r"cannot be compared by bleu\. Choose from: loss, perplexity"):
        compare_runs([words, words], metrics=["bleu"])


def test_other_texts_and_broken_files_are_refused(tmp_path: Path) -> None:
    one, fewer = make_run(tmp_path / "one", 1), make_run(tmp_path / "fewer", 1, documents=50)
    with pytest.raises(RunError, match="row 51 is only in one of them"):
        compare_runs([one, fewer])
    with pytest.raises(RunError, match="no losses of the split validation: use --split test"):
        compare_runs([one, one], split="validation")
    (tmp_path / "text" / "predictions").mkdir(parents=True)
    with pytest.raises(RunError, match="compare finished language models with each other only"):
        compare_runs([one, tmp_path / "text"])
    with pytest.raises(RunError, match="compare finished language models with each other only"):
        compare_runs([tmp_path / "text", one])
    with pytest.raises(RunError, match="typo does not exist"):
        compare_runs([one, tmp_path / "typo"])
    file = fewer / "losses" / "test.jsonl"
    for broken, message in (('{"document": 1, "loss": "x", "tokens": 2}', "line 1 is not the loss"), ("", "is empty")):
        file.write_text(broken)
        with pytest.raises(RunError, match=message):
            compare_runs([fewer, fewer])


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_two_runs_on_the_command_line(
    task: str, run_of_task: Callable[[str], Path], make_recipe: Callable[..., Recipe], kit_here: RunKit, tmp_path: Path
) -> None:
    """A split of few documents is compared by its blocks; what the runs report is what is compared."""
    run = run_of_task(task)
    other = train(make_recipe(task, overrides=["train.max_steps=6", "eval.steps=0"]), tmp_path / "other", quiet=True)
    done = kit_here("compare", run, other.folder, "--samples", 50, "--json")
    assert done.returncode == 0, done.stderr
    comparison = json.loads(done.stdout)
    assert comparison["unit"] == "block"
    assert {"loss", "perplexity"} <= {*comparison["metrics"]} <= {*COMPARED}
    reported = {run.name: results(run)["test"], "other": other.results["test"]}
    for score in comparison["scores"]:
        assert score["value"] == pytest.approx(reported[score["run"]][score["metric"]], rel=1e-6)
        assert score["low"] <= score["value"] <= score["high"]
    assert "bootstrap samples" in kit_here("compare", run, other.folder, "--samples", 50).stdout


def test_losses_of_documents_add_up_to_the_figures(run_of_task: Callable[[str], Path], tmp_path: Path) -> None:
    """Each token of the text belongs to one document, also where a block holds parts of several."""
    file = tmp_path / "lines.txt"
    lines = [" ".join(WORDS[: 1 + number % 9]) for number in range(MIN_DOCUMENTS)]
    file.write_text("".join(f"{line}\n" for line in lines))
    run = run_of_task("causal_lm")
    evaluation = evaluate(run, overrides=[f"data.path={file}"])
    assert [row["text"] for row in evaluation.losses] == lines
    assert [row["bytes"] for row in evaluation.losses] == [len(line) for line in lines]
    assert [row["words"] for row in evaluation.losses] == [len(line.split()) for line in lines]
    assert [row["tokens"] for row in evaluation.losses] == [len(line) + 1 for line in lines]  # characters, and the end
    figures = loss_figures(total_sums(evaluation.losses))
    assert figures == pytest.approx({name: evaluation.figures[name] for name in figures}, rel=1e-5)
    file.write_text(f"{lines[0]}\n")  # nothing precedes the first one
    alone = evaluate(run, overrides=[f"data.path={file}"]).losses
    assert sum(row["loss"] for row in alone) == pytest.approx(evaluation.losses[0]["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("task", "overrides"),
    [
        ("masked_lm", ["data.pairs=next_sentence"]),
        ("causal_lm", ["model={type: rnn_lm, hidden_size: 16, embedding_size: 8}", "data.carry_state=true"]),
    ],
)
def test_pairs_and_carried_states_add_up_too(
    task: str, overrides: list[str], make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    short: list[Any] = ["train.max_steps=2", "eval.steps=0", *overrides]
    run = train(make_recipe(task, overrides=short), tmp_path / "run", quiet=True)
    losses = read_losses(run.folder / "losses" / "test.jsonl")
    figures, reported = loss_figures(total_sums(losses)), run.results["test"]
    shared = figures.keys() & reported.keys()
    assert {"loss", "perplexity"} <= shared
    assert ("pair_loss" in shared) == (task == "masked_lm")
    assert {name: figures[name] for name in shared} == pytest.approx({name: reported[name] for name in shared})
    assert len(losses) == reported["examples"]


def test_a_sample_without_masked_tokens_has_no_loss(tmp_path: Path) -> None:
    """A short example may have no masked token, and a sample of few examples only such ones."""
    for name, loss in (("one", 3.0), ("two", 4.0)):
        rows = [
            {"block": 1, "text": "a", "loss": 0.0, "tokens": 0, "correct": 0, "unigram_loss": 0.0},
            {"block": 2, "text": "b", "loss": loss, "tokens": 2, "correct": 1, "unigram_loss": 5.0},
        ]
        (tmp_path / name / "losses").mkdir(parents=True)
        (tmp_path / name / "losses" / "test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    comparison = compare_runs([tmp_path / "one", tmp_path / "two"], samples=50)
    score = comparison.score("two", "masked_loss")
    assert (score.low, score.value, score.high) == (2.0, 2.0, 2.0)
    assert comparison.difference("two", "masked_loss").value == 0.5
