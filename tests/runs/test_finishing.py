"""After the last step: nonfinite weights are never saved as a model, and failures lose no model."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import RunKit
from safetensors.torch import load_file, save_file
from support.runs import weight_bytes

from kit import KitError
from kit.runs import finish
from kit.system.files import file_sha256
from kit.training.checkpoint import Checkpoints
from kit.training.loop import Loop
from kit.training.progress import Progress

SHORT = ["train.max_steps=2", "train.save_steps=1", "eval.steps=0", "eval.metrics=[]"]


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    return fail


def test_failure_after_training_keeps_the_model(
    tiny_recipe: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is named, and `--resume` finishes the rest; only results.json marks a run as finished."""
    run = tmp_path / "run"
    command = ("train", tiny_recipe, *SHORT, "--output", run, "--resume")
    evaluate = finish.run_final_evaluation

    def no_test(prepared: Any, loop: Any, split: str, *rest: Any) -> Any:
        if split == "test":
            raise OSError(28, "No space left on device", "test.jsonl")
        return evaluate(prepared, loop, split, *rest)

    stages: list[tuple[str, Callable[..., Any], str, int]] = [
        ("run_final_evaluation", no_test, "the evaluation on test failed", 2),
        ("curve_figures", failing(ZeroDivisionError("a mistake")), "plotting failed", 1),
        ("to_json", failing(KitError("a row is odd")), "writing the predictions failed", 2),
        ("copytree", failing(OSError(30, "Read-only file system")), "writing the model card failed", 2),
    ]
    saved = None
    for name, replacement, message, code in stages:
        with monkeypatch.context() as patch:
            patch.setattr(shutil if name == "copytree" else finish, name, replacement)
            failed = kit_here(*command)
        shown = " ".join(failed.stderr.split())
        assert failed.returncode == code, shown
        assert f"{message}. The trained model is saved in {run}/model; `kit train {run} --resume`" in shown
        assert ("Traceback" in shown) == (code == 1)
        assert not (run / "results.json").exists()
        assert saved in (None, weight_bytes(run))
        saved = weight_bytes(run)
    done = kit_here(*command)
    assert done.returncode == 0, done.stderr
    assert weight_bytes(run) == saved
    assert kit_here("eval", run).returncode == 0


def test_weights_that_overflow_at_the_last_step_reach_no_file(
    tiny_recipe: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss and its gradient are those before the update. The checkpoint before it remains, and continues."""
    run, step = tmp_path / "run", Loop._step

    def overflowing(self: Loop, *arguments: Any) -> Any:
        result = step(self, *arguments)
        if self.progress.step == 1:
            with torch.no_grad():
                next(self.objective.model.parameters()).view(-1)[0] = float("inf")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", overflowing)
        failed = kit_here("train", tiny_recipe, *SHORT, "train.save_total_limit=1", "--output", run)
    assert failed.returncode == 1
    assert "are not finite numbers after step 2" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert [checkpoint.step for checkpoint in Checkpoints(run / "checkpoints").all()] == [1]
    assert not (run / "model").exists()
    assert not (run / "results.json").exists()
    done = kit_here("train", run, "--resume")
    assert done.returncode == 0, done.stderr


def test_figures_that_are_not_finite_are_null(
    tiny_recipe: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A perplexity can be too large for a float; a loss on validation must be a number."""
    evaluate = finish.run_final_evaluation

    def huge(prepared: Any, loop: Any, split: str, *rest: Any) -> Any:
        evaluation = evaluate(prepared, loop, split, *rest)
        evaluation.figures["perplexity"] = float("inf")
        return evaluation

    monkeypatch.setattr(finish, "run_final_evaluation", huge)
    done = kit_here("train", tiny_recipe, *SHORT, "--output", "run")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "run" / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["test"]["perplexity"] is None
    assert "perplexity not finite" in kit_here("train", tiny_recipe, *SHORT, "--output", "run").stdout
    card = (tmp_path / "run" / "README.md").read_text()
    assert re.search(r"\| Perplexity[^|]* \| not finite \|", card)


def spoil(weights: Path) -> None:
    """Put a NaN into the last tensor of a file."""
    tensors = load_file(weights)
    list(tensors.values())[-1].view(-1)[0] = float("nan")
    save_file(tensors, weights, {"format": "pt"})


def test_weights_that_are_not_finite_are_neither_averaged_nor_pushed(
    trained: Path, tmp_path: Path, kit_here: RunKit
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    checkpoint = Checkpoints(run / "checkpoints").all()[-1].folder
    spoil(checkpoint / "model.safetensors")
    sums = json.loads((checkpoint / "checksums.json").read_text())
    sums["model.safetensors"] = file_sha256(checkpoint / "model.safetensors")
    (checkpoint / "checksums.json").write_text(json.dumps(sums))
    refused = kit_here("average", run, "--last", 2)
    assert refused.returncode == 2
    assert "of the model are not finite numbers (NaN or infinite): nothing was written" in refused.stderr
    assert not (tmp_path / "run_average").exists()
    spoil(run / "model" / "model.safetensors")
    refused = kit_here("push", run, "owner/name", "--dry-run")
    assert refused.returncode == 2
    assert "of the model are not finite numbers (NaN or infinite): nothing was published" in refused.stderr


def test_a_run_without_a_finite_loss_has_no_model(
    tiny_recipe: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Progress, "record", lambda *arguments: False)
    failed = kit_here("train", tiny_recipe, *SHORT, "--output", "run")
    assert failed.returncode == 1
    assert "no evaluation had a finite loss, so there is no model to keep" in failed.stderr
    assert not (tmp_path / "run" / "model").exists()
