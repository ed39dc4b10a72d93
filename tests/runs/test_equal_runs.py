"""Runs that must be equal: one micro-batch or four, one process or two."""

import json
import os
from pathlib import Path

import pytest
import torch
from support.processes import in_processes
from support.runs import losses, rewind, weights

from kit import load_recipe, train


def relative_distance(run: Path, other: Path) -> float:
    """Largest difference of any weight, relative to the largest weight of its tensor."""
    mine, theirs = weights(run), weights(other)
    assert mine.keys() == theirs.keys()
    return max(float((mine[k] - theirs[k]).abs().max() / mine[k].abs().max().clamp(min=1e-30)) for k in mine)


def run(recipe: Path, output: Path, *overrides: str) -> Path:
    return train(load_recipe(recipe, overrides), output).folder


def test_gradient_accumulation_is_exact_in_float64(tiny_recipe: Path, tmp_path: Path) -> None:
    same = ["train.dtype=float64", "model.dropout=0", "train.max_steps=30", "eval.steps=0", "eval.metrics=[]"]
    same += ["eval.metric_for_best_model=loss", "train.label_smoothing_factor=0.1"]
    whole = run(tiny_recipe, tmp_path / "one", *same)
    accumulated = run(tiny_recipe, tmp_path / "four", *same, "train.micro_batches=4")
    assert losses(accumulated) == pytest.approx(losses(whole), rel=1e-9)
    assert relative_distance(whole, accumulated) < 1e-9
    assert weights(whole)["lm_head.weight"].dtype == torch.float64


@pytest.mark.soak
def test_gradient_accumulation_in_float32_for_fifty_steps(tiny_recipe: Path, tmp_path: Path) -> None:
    same = ["model.dropout=0", "train.max_steps=50", "eval.steps=0", "train.normalize_by=sequences"]
    whole = run(tiny_recipe, tmp_path / "one", *same)
    accumulated = run(tiny_recipe, tmp_path / "four", *same, "train.micro_batches=4")
    assert losses(accumulated) == pytest.approx(losses(whole), rel=1e-5)


@pytest.mark.slow
def test_two_processes_equal_one_with_dropout(tiny_recipe: Path, tmp_path: Path, kit) -> None:  # type: ignore[no-untyped-def]
    same = ["train.micro_batches=2", "train.max_steps=20", "eval.steps=10", "train.save_steps=10"]
    single = run(tiny_recipe, tmp_path / "one", *same)
    done = kit("train", tiny_recipe, *same, "--output", "two", "--processes", "2")
    assert done.returncode == 0, done.stderr
    parallel = tmp_path / "two"
    assert json.loads((parallel / "results.json").read_text())["train"]["processes"] == 2
    assert losses(parallel) == pytest.approx(losses(single), rel=1e-5)
    figures = [json.loads((folder / "results.json").read_text())["test"] for folder in (single, parallel)]
    assert figures[0]["exact_match"] == figures[1]["exact_match"]
    assert figures[0]["loss"] == pytest.approx(figures[1]["loss"], rel=1e-4)
    # every example was predicted once, in the order of the data
    rows = [
        (folder / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines()
        for folder in (single, parallel)
    ]
    sources = [[json.loads(line)["source"] for line in lines] for lines in rows]
    assert sources[0] == sources[1]


def test_run_resumes_with_another_number_of_processes(tiny_recipe: Path, tmp_path: Path) -> None:
    recipe = load_recipe(tiny_recipe, ["train.micro_batches=2", "train.save_steps=4", "train.save_total_limit=9"])
    unbroken = train(recipe, tmp_path / "unbroken").folder
    for first, second in ((2, 1), (1, 2)):
        moved = tmp_path / f"from_{first}_to_{second}"
        in_processes(first, train, recipe, moved)
        rewind(moved, 4)
        in_processes(second, train, recipe, moved, True)
        assert losses(moved) == pytest.approx(losses(unbroken), rel=1e-5)


def test_too_few_processes_are_rejected(tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kit import RunError

    monkeypatch.setitem(os.environ, "KIT_PROCESSES", "2")
    with pytest.raises(RunError, match="2 processes were requested, but Accelerate runs 1"):
        train(load_recipe(tiny_recipe), tmp_path / "run")
    assert not (tmp_path / "run").exists()
