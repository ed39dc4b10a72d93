"""`--checkpoint`: a checkpoint in place of the model, also of an unfinished run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support.recipes import RECIPES
from support.runs import rewind

from kit import RunError, train
from kit.recipe.base import Recipe
from kit.runs.checkpoints import at_checkpoint


def model_bytes(folder: Path) -> dict[str, bytes]:
    return {
        name: tensor.numpy().tobytes() for name, tensor in load_file(folder / "model" / "model.safetensors").items()
    }


QUICK = ("translation", "question_answering", "causal_lm", "forecasting")


@pytest.mark.parametrize(
    "task", [task if task in QUICK else pytest.param(task, marks=pytest.mark.soak) for task in RECIPES]
)
def test_the_best_checkpoint_of_a_run_without_a_model_is_the_model(
    task: str, make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    """Of every task: the weights, the configuration, and the tokenizer are those of the finished run."""
    overrides = ["train.max_steps=4", "train.save_steps=2", "eval.steps=2", "train.save_total_limit=9"]
    run = train(make_recipe(task, overrides=overrides), tmp_path / "run", quiet=True)
    expected, files = model_bytes(run.folder), {path.name for path in (run.folder / "model").iterdir()}
    unfinished = Path(shutil.copytree(run.folder, tmp_path / "unfinished"))
    shutil.rmtree(unfinished / "model")
    for folder in (run.folder, unfinished):
        with at_checkpoint(str(folder), "best") as copy:
            assert model_bytes(Path(copy)) == expected
            assert {path.name for path in (Path(copy) / "model").iterdir()} == files - {"README.md", "plots"}
            configs = [json.loads((path / "model" / "config.json").read_text()) for path in (Path(copy), run.folder)]
            if folder == unfinished:  # the final evaluation tunes a threshold for questions without answer
                configs = [{**config, "question_answering": None} for config in configs]
            assert configs[0] == configs[1]
        assert not Path(copy).exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after step 8 of 12, the best of which is step 4."""
    from support.recipes import write_recipe

    folder = tmp_path_factory.mktemp("checkpoints")
    overrides = ["eval.steps=4", "train.learning_rate=0.1", "train.save_total_limit=9", "eval.metrics=[]"]
    overrides += ["eval.metric_for_best_model=loss"]
    run = train(write_recipe(folder, "translation"), folder / "run", overrides=overrides, quiet=True).folder
    rewind(run, 8)
    for name in ("model", "predictions", "plots"):
        shutil.rmtree(run / name)
    return run


def test_commands_use_checkpoints_of_an_unfinished_run(run: Path, kit_here: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("3 maj 1984\n", encoding="utf-8")
    generated = kit_here("generate", run, "in.txt", "--checkpoint", "step-4")
    assert (generated.returncode, generated.stdout.count("\n")) == (0, 1)
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = {entry["step"]: entry["validation"]["loss"] for entry in entries if "validation" in entry}
    for name, step in (("last", 8), ("step-4", 4), ("8", 8)):
        done = kit_here("eval", run, "--checkpoint", name, "--split", "validation", "--json")
        assert json.loads(done.stdout)["loss"] == pytest.approx(losses[step], rel=1e-5)
    plotted = kit_here("plot", run, "--checkpoint", "last", "--sentence", "3 maj 1984")
    assert plotted.returncode == 0, plotted.stderr
    assert list((run / "plots" / "last").glob("*.png"))
    without = kit_here("generate", run, "in.txt")
    assert "has no model yet" in without.stderr


def test_missing_checkpoint_lists_those_that_exist(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"--checkpoint step-7: .* has no such checkpoint, only last, step-4.*, step-8"):
        at_checkpoint(str(run), "step-7").__enter__()
    broken = Path(shutil.copytree(run, tmp_path / "run"))
    (broken / "checkpoints" / "step-8" / "model.safetensors").write_bytes(b"")
    with at_checkpoint(str(broken), "last") as copy:
        assert copy.endswith("run-step-4")
    shutil.rmtree(broken / "checkpoints")
    with pytest.raises(RunError, match=r"--checkpoint last: .* has no intact checkpoint"):
        at_checkpoint(str(broken), "last").__enter__()
