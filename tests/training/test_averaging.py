"""Weight averages: over checkpoints, exponential moving averages, and which of them a run exports."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import RunKit
from safetensors.torch import load_file
from torch import nn

from kit.training.averaging import MovingAverage, mean_weights
from kit.training.checkpoint import Checkpoint, Checkpoints


def test_the_mean_of_checkpoints_is_the_arithmetic_mean(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    generator = torch.Generator().manual_seed(0)
    saved = [
        checkpoints.save(n, {"w": torch.randn(50, 30, generator=generator), "n": torch.tensor(n)}, {}, {})
        for n in (1, 2, 3, 4, 5)
    ]
    arrays = [load_file(checkpoint.folder / "model.safetensors")["w"].numpy() for checkpoint in saved]
    expected = np.mean([array.astype(np.float64) for array in arrays], axis=0).astype(np.float32)
    mean = mean_weights(saved)
    assert np.array_equal(mean["w"].numpy(), expected)
    assert int(mean["n"]) == 5


def test_the_moving_average_follows_its_definition() -> None:
    model = nn.Linear(3, 2)
    average = MovingAverage(model, 0.9)
    expected = model.weight.detach().double()
    for step in range(1, 200):
        with torch.no_grad():
            model.weight.add_(torch.randn(2, 3))
        average.update(model, step)
        decay = min(0.9, step / (step + 10))
        expected = decay * expected + (1 - decay) * model.weight.detach().double()
    assert torch.allclose(average.tensors["weight"].double(), expected, atol=1e-4)
    before = model.weight.detach().clone()
    with average.in_place(model):
        assert torch.equal(model.weight, average.tensors["weight"])
    assert torch.equal(model.weight, before)


SMALL = ["train.max_steps=12", "train.save_steps=2", "eval.steps=4", "train.logging_steps=4"]


def weights_of(folder: Path, name: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return load_file(folder / name)


def equal_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_kit_average_writes_a_run_with_the_mean_of_the_last_checkpoints(
    kit_here: RunKit, tiny_recipe: Path, tmp_path: Path
) -> None:
    run, averaged = tmp_path / "run", tmp_path / "run_average"
    assert not kit_here("train", tiny_recipe, *SMALL, "train.save_total_limit=4", "--output", run).returncode
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    assert not kit_here("average", run, "--last", 3).returncode
    assert before == {path: path.stat().st_mtime_ns for path in before}
    results = json.loads((averaged / "results.json").read_text())
    assert results["averaging"] == {"steps": [8, 10, 12], "run": "run"}
    parts = [weights_of(run / f"checkpoints/step-{n}") for n in (8, 10, 12)]
    saved = weights_of(averaged / "model")
    assert all(torch.equal(saved[name], (sum(p[name].double() for p in parts) / 3).float()) for name in saved)
    evaluated = kit_here("eval", averaged, "--json")
    assert json.loads(evaluated.stdout)["loss"] == pytest.approx(results["test"]["loss"])


def test_average_refuses_a_folder_in_use_and_too_few_checkpoints(
    kit_here: RunKit, trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    failed = kit_here("average", trained, "--last", 2, "--output", tmp_path / "full")
    assert failed.returncode == 2
    assert "not empty" in failed.stderr
    failed = kit_here("average", trained, "--last", 50, "--output", tmp_path / "new")
    assert failed.returncode == 2
    number = len(list((trained / "checkpoints").glob("step-*")))
    assert f"has {number} valid checkpoints, not 50: average them with `kit average {trained} --last {number}`" in (
        failed.stderr
    )
    assert "train.save_total_limit=50" in failed.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("rate", [1e-2, 3.0])  # calm, where the last step is the best; and so wild that it is not
def test_the_better_of_mean_and_best_step_is_kept(
    kit_here: RunKit, tiny_recipe: Path, tmp_path: Path, rate: float
) -> None:
    run = tmp_path / "run"
    done = kit_here("train", tiny_recipe, *SMALL, f"train.learning_rate={rate}", "eval.average=3", "--output", run)
    assert not done.returncode, done.stderr
    results = json.loads((run / "results.json").read_text())
    averaging = results["averaging"]
    better = "average" if averaging["average"]["loss"] < averaging["best_step"]["loss"] else "best_step"
    assert averaging["chosen"] == better
    assert results["validation"] == averaging[better]
    best = weights_of(run / f"checkpoints/step-{results['train']['best_step']}")
    mean = mean_weights([Checkpoint(run / f"checkpoints/step-{step}") for step in averaging["steps"]])
    assert equal_weights(weights_of(run / "model"), mean if better == "average" else best)


def test_a_run_with_a_moving_average_keeps_it_and_resumes_exactly(
    kit_here: RunKit, tiny_recipe: Path, tmp_path: Path
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    arguments = [tiny_recipe, *SMALL, "train.ema_decay=0.8"]
    assert not kit_here("train", *arguments, "--output", whole).returncode
    # as if the run had been killed after its first checkpoint
    shutil.copytree(whole, resumed)
    (resumed / "results.json").unlink()
    shutil.rmtree(resumed / "checkpoints/step-12")
    assert not kit_here("train", *arguments, "--resume", "--output", resumed).returncode
    assert equal_weights(weights_of(whole / "model"), weights_of(resumed / "model"))
    last = whole / "checkpoints/step-12"
    assert equal_weights(
        weights_of(last, "average.safetensors"), weights_of(resumed / "checkpoints/step-12", "average.safetensors")
    )
    assert not equal_weights(weights_of(last, "average.safetensors"), weights_of(last))
    best = json.loads((whole / "results.json").read_text())["train"]["best_step"]
    assert equal_weights(
        weights_of(whole / "model"), weights_of(whole / f"checkpoints/step-{best}", "average.safetensors")
    )
