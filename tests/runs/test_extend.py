"""`--resume train.max_steps=…`: an extended run equals one that was longer from the start."""

import json
import shutil
from pathlib import Path

import pytest
from support.runs import results, rewind, weight_bytes

from kit import RunError, load_recipe, train

CONSTANT = {"train.lr_scheduler_type": "constant_with_warmup", "train.warmup_steps": 4}
SQRT = {"train.lr_scheduler_type": "inverse_sqrt", "train.warmup_steps": 4, "train.ema_decay": 0.9}


def validations(run: Path) -> list[dict]:
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [entry for entry in entries if "validation" in entry]


@pytest.mark.parametrize(
    ("schedule", "short", "long"),
    [
        (CONSTANT, {"train.max_steps": 12}, {"train.max_steps": 24}),
        pytest.param(SQRT, {"train.max_steps": 12}, {"train.num_train_epochs": 3}, marks=pytest.mark.soak),
    ],
)
def test_an_extended_run_equals_one_that_was_longer(
    schedule: dict, short: dict, long: dict, tiny_recipe: Path, tmp_path: Path
) -> None:
    whole = train(tiny_recipe, tmp_path / "whole", overrides=schedule | long, quiet=True)
    run = train(tiny_recipe, tmp_path / "run", overrides=schedule | short, quiet=True)
    assert run.results["train"]["steps"] == 12 < whole.results["train"]["steps"]
    extended = train(run.folder, resume=True, overrides=long, quiet=True)
    assert extended.results["train"]["steps"] == whole.results["train"]["steps"]
    assert extended.results["train"]["best_step"] == whole.results["train"]["best_step"]
    assert weight_bytes(extended.folder) == weight_bytes(whole.folder)
    assert validations(extended.folder) == validations(whole.folder)
    assert {**extended.results, "train": None} == {**whole.results, "train": None}
    # the recipe of the run has its new length, so that it can be resumed or returned as it is
    assert train(run.folder).already_finished


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 8 steps whose schedule does not depend on them."""
    from support.recipes import write_recipe

    folder = tmp_path_factory.mktemp("finished")
    overrides = {**CONSTANT, "train.max_steps": 8, "eval.steps": 4}
    return train(write_recipe(folder, "translation"), folder / "run", overrides=overrides, quiet=True).folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_an_unfinished_run_can_be_made_longer_or_shorter(run: Path) -> None:
    rewind(run, 4)
    with pytest.raises(RunError, match=r"has completed 4 steps, but the recipe asks for 3\. Ask for more"):
        train(run, resume=True, overrides=["train.max_steps=3"])
    assert train(run, resume=True, overrides=["train.max_steps=6"], quiet=True).results["train"]["steps"] == 6


def test_run_that_cannot_be_extended_is_unchanged(run: Path) -> None:
    before = results(run)
    with pytest.raises(RunError, match=r"finished run of another length\. Extend it with --resume"):
        train(run, overrides=["train.max_steps=12"])
    assert train(run, resume=True, overrides=["train.max_steps=8"]).already_finished
    with pytest.raises(RunError, match="has completed 8 steps, but the recipe asks for 4"):
        train(run, resume=True, overrides=["train.max_steps=4"])
    shutil.rmtree(run / "checkpoints" / "step-8")
    with pytest.raises(RunError, match="it has no intact checkpoint of step 8, its last"):
        train(run, resume=True, overrides=["train.max_steps=12"])
    assert results(run) == before


def test_a_schedule_that_depends_on_the_length_fixes_it(trained: Path) -> None:
    with pytest.raises(RunError) as refused:
        train(trained, resume=True, overrides=["train.max_steps=90"])
    assert "train.max_steps was 60, now 90" in str(refused.value)
    assert "With train.lr_scheduler_type: linear, the learning rate of every step depends on" in str(refused.value)
    assert f"start a new run from it: model.pretrained={trained}" in str(refused.value)


def test_another_schedule_is_reported_without_a_wrong_length(run: Path) -> None:
    saved = load_recipe(run / "recipe.yaml")
    linear = load_recipe(saved, {"train.lr_scheduler_type": "linear", "train.max_steps": 16})
    change = 'train.lr_scheduler_type was "constant_with_warmup", now "linear"'
    with pytest.raises(RunError, match=f"{change}. Nothing was touched"):
        train(linear, run, resume=True)
    back = saved.changes_since(linear.fixed_values())
    assert back == 'train.lr_scheduler_type was "linear", now "constant_with_warmup"'


def test_a_run_that_stopped_early_is_not_extended(tiny_recipe: Path, tmp_path: Path) -> None:
    overrides = [*(f"{key}={value}" for key, value in CONSTANT.items()), "train.early_stopping_patience=1"]
    overrides += ["train.learning_rate=1e-9", "eval.steps=2", "eval.metric_for_best_model=exact_match"]
    run = train(tiny_recipe, tmp_path / "run", overrides=overrides, quiet=True)
    assert run.results["train"]["steps"] < 12
    with pytest.raises(RunError, match="stopped early, after 1 evaluations without improvement"):
        train(run.folder, resume=True, overrides=["train.max_steps=30"])
