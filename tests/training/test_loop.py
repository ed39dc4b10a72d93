"""The training loop beyond equal results: when it stops, which checkpoints it keeps, what it reports."""

import json
from pathlib import Path

import pytest
import torch
from conftest import RunKit

from kit import load_recipe, train
from kit.training.checkpoint import Checkpoints
from kit.training.finite import TrainingFailed
from kit.training.objective import Seq2SeqObjective


def entries(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def run(recipe: Path, output: Path, *overrides: str) -> Path:
    return train(load_recipe(recipe, overrides), output).folder


def test_run_folder_contents(trained: Path) -> None:
    files = {str(path.relative_to(trained)) for path in trained.rglob("*") if path.is_file()}
    expected = [
        "recipe.yaml",
        "results.json",
        "metrics.jsonl",
        "README.md",
        "predictions/test.jsonl",
        "plots/attention.png",
    ]
    expected += ["plots/loss.png", "model/model.safetensors", "model/config.json", "model/generation_config.json"]
    expected += ["model/tokenizer.json", "model/modeling_rnn_seq2seq.py", "model/text_to_text.py", "model/README.md"]
    assert set(expected) <= files
    results = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    assert {"validation", "test", "train", "data", "parameters", "hardware", "versions"} <= results.keys()
    assert set(results["test"]["by"]) == {"language", "length"}
    assert sum(group["count"] for group in results["test"]["by"]["language"].values()) == 20
    recipe = load_recipe(trained / "recipe.yaml")
    assert recipe.data.fingerprints == results["data"]["fingerprints"]
    assert not any(name.endswith((".bin", ".pt", ".pkl")) for name in files)


def test_early_stopping_ends_a_run(tiny_recipe: Path, tmp_path: Path) -> None:
    # a learning rate of nearly nothing gains nothing after the first evaluation: exact match stays where it is, and
    # the loss, which decides between equals, must not fall either
    folder = run(
        tiny_recipe, tmp_path / "run", "train.learning_rate=1e-12", "train.max_steps=50", "eval.steps=2",
        "train.early_stopping_patience=2", "train.optimizer=sgd", "model.dropout=0",
    )  # fmt: skip
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["train"]["steps"] < 50
    evaluated = [entry["step"] for entry in entries(folder) if "validation" in entry]
    assert results["train"]["steps"] - results["train"]["best_step"] == 2 * 2
    assert evaluated[-1] == results["train"]["steps"]


def test_max_minutes_ends_a_run_which_is_evaluated(tiny_recipe: Path, tmp_path: Path) -> None:
    folder = run(tiny_recipe, tmp_path / "run", "train.max_minutes=1e-9", "train.max_steps=1000")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["train"]["steps"] == 0
    assert results["test"]["examples"] == 20


def test_num_train_epochs_become_steps(tiny_recipe: Path, tmp_path: Path) -> None:
    folder = run(tiny_recipe, tmp_path / "run", "train.max_steps=null", "train.num_train_epochs=1.5", "eval.steps=0")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["train"]["epochs"] == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        ("adamw", "linear"),
        ("adafactor", "inverse_sqrt"),
        pytest.param("adam", "inverse_sqrt", marks=pytest.mark.soak),
        pytest.param("sgd", "linear", marks=pytest.mark.soak),
    ],
)
def test_optimizers_learn_and_resume(tiny_recipe: Path, tmp_path: Path, optimizer: str, schedule: str) -> None:
    settings = [f"train.optimizer={optimizer}", f"train.lr_scheduler_type={schedule}", "train.warmup_steps=3"]
    settings += ["eval.metrics=[]", "eval.examples=0"]
    if optimizer == "sgd":
        settings += ["train.momentum=0.9", "train.learning_rate=0.5"]
    whole = run(tiny_recipe, tmp_path / "whole", *settings)
    losses = [entry["train_loss"] for entry in entries(whole) if "train_loss" in entry]
    assert losses[-1] < losses[0]
    # go back to the checkpoint before the last, as if the rest had been lost
    results = whole / "results.json"
    results.unlink()
    for checkpoint in Checkpoints(whole / "checkpoints").all():
        if checkpoint.step == 12:
            checkpoint.folder.rename(tmp_path / "lost")
    again = train(load_recipe(tiny_recipe, settings), whole, resume=True)
    assert [entry["train_loss"] for entry in entries(again.folder) if "train_loss" in entry] == losses


def test_the_best_checkpoint_is_kept_and_exported(tiny_recipe: Path, tmp_path: Path) -> None:
    folder = run(
        tiny_recipe, tmp_path / "run", "train.learning_rate=0.3", "train.max_steps=30", "eval.steps=3",
        "train.save_total_limit=1", "train.save_steps=3", "eval.metrics=[]", "model.dropout=0",
    )  # fmt: skip
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    validation = {entry["step"]: entry["validation"]["loss"] for entry in entries(folder) if "validation" in entry}
    best = min(validation, key=lambda step: validation[step])
    assert results["train"]["best_step"] == best
    assert results["validation"]["loss"] == pytest.approx(validation[best], rel=1e-6)
    steps = {checkpoint.step for checkpoint in Checkpoints(folder / "checkpoints").all()}
    assert steps == {best, 30}


def test_nonfinite_loss_stops_with_its_batch(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Seq2SeqObjective.forward

    def broken(self: Seq2SeqObjective, batch: dict, totals: torch.Tensor) -> torch.Tensor:
        loss = plain(self, batch, totals)
        broken.calls += 1  # type: ignore[attr-defined]
        return loss * float("nan") if broken.calls == 6 else loss  # type: ignore[attr-defined]

    broken.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(Seq2SeqObjective, "forward", broken)
    with pytest.raises(TrainingFailed, match="step 6 has a non-finite loss or gradient"):
        train(load_recipe(tiny_recipe), tmp_path / "run")
    saved = list((tmp_path / "run" / "nonfinite").iterdir())
    assert {path.suffix for path in saved} == {".json", ".safetensors"}
    # the last checkpoint is intact, and the run continues from it
    monkeypatch.setattr(Seq2SeqObjective, "forward", plain)
    assert train(load_recipe(tiny_recipe), tmp_path / "run", resume=True).results["train"]["steps"] == 12


def test_bf16_trains(tiny_recipe: Path, tmp_path: Path) -> None:
    folder = run(tiny_recipe, tmp_path / "run", "train.mixed_precision=bf16", "train.max_steps=30", "eval.metrics=[]")
    losses = [entry["train_loss"] for entry in entries(folder) if "train_loss" in entry]
    assert losses[-1] < 0.9 * losses[0]


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    tensors = {"w": torch.arange(4.0)}
    checkpoints.save(1, tensors, {}, {"progress": {}})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kit.training.checkpoint.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(2, tensors, {}, {"progress": {}})
    assert [checkpoint.step for checkpoint in checkpoints.all()] == [1]
    assert checkpoints.all()[0].integrity_error() is None
    assert not list((tmp_path / "checkpoints").glob(".tmp-*"))


def test_a_run_is_repeated_from_its_own_recipe(trained: Path, tmp_path: Path) -> None:
    again = train(load_recipe(trained / "recipe.yaml"), tmp_path / "again")
    first = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    assert again.results["test"] == first["test"]


def test_tensorboard_is_used_or_its_absence_reported(tiny_recipe: Path, tmp_path: Path, kit_here: RunKit) -> None:
    done = kit_here("train", tiny_recipe, "train.max_steps=2", "train.report_to=[tensorboard]")
    try:
        import tensorboard  # noqa: F401
    except ModuleNotFoundError:
        assert done.returncode == 2
        assert "tensorboard, which is not installed" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert list(tmp_path.rglob("events.out.tfevents.*"))


def test_the_loop_is_reusable_in_a_thread(tiny_recipe: Path, tmp_path: Path) -> None:
    """Signals are the main thread's: elsewhere, as in a notebook server, training works without them."""
    from threading import Thread

    done: list[Path] = []
    thread = Thread(target=lambda: done.append(run(tiny_recipe, tmp_path / "run", "train.max_steps=2")))
    thread.start()
    thread.join()
    assert done
