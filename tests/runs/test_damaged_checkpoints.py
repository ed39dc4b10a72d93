"""Damaged checkpoints, logs and results: a run continues from what is intact, and preserves it."""

import shutil
from pathlib import Path

import pytest
from accelerate import Accelerator
from support.recipes import make_recipe
from support.runs import flip, losses, rewind, weight_bytes

from kit import RunError, train
from kit.recipe.base import Recipe
from kit.system.files import TEMPORARY_PREFIX
from kit.training.checkpoint import Checkpoints
from kit.training.metrics_log import MetricsLog
from kit.training.progress import Progress

OVERRIDES = ["train.max_steps=6", "train.save_steps=1", "eval.steps=2", "eval.metrics=[]", "eval.examples=0"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return make_recipe(tmp_path_factory.mktemp("recipe"), "translation", overrides=OVERRIDES)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, recipe: Recipe) -> Path:
    """A run that was evaluated at the steps 2, 4 and 6, with a checkpoint of every step; the last one is the best."""
    return train(keeping(recipe, 9), tmp_path_factory.mktemp("finished") / "run").folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def keeping(recipe: Recipe, checkpoints: int) -> Recipe:
    return recipe.with_values("train", save_total_limit=checkpoints)


def steps(run: Path) -> list[int]:
    return [checkpoint.step for checkpoint in Checkpoints(run / "checkpoints").all()]


def set_best(run: Path, step: int, best: int) -> None:
    """Let the checkpoint of a step name another best step, as in a run that became worse again."""
    checkpoint = Checkpoints(run / "checkpoints").at(step)
    state = checkpoint.state()
    state["progress"] |= {"best": 0.001, "best_loss": 0.001, "best_step": best}
    del state["kit_format"], state["kit_version"]
    Checkpoints(run / "checkpoints").save(step, checkpoint.model(), checkpoint.optimizer(), state)


def test_a_corrupt_best_checkpoint_does_not_stop_a_run(
    run: Path, finished: Path, recipe: Recipe, capfd: pytest.CaptureFixture[str]
) -> None:
    """The newest intact one continues, and the best step is chosen among those whose checkpoints are intact."""
    rewind(run, 5)
    set_best(run, 5, best=2)
    flip(run / "checkpoints" / "step-2" / "model.safetensors")
    train(keeping(recipe, 1), run, resume=True)
    shown = " ".join(capfd.readouterr().err.split())
    assert "resuming at step 5" in shown
    assert "step-2, is corrupt (model.safetensors does not match its checksum): the best is now step 4." in shown
    assert weight_bytes(run) == weight_bytes(finished)
    assert losses(run) == losses(finished)
    assert steps(run) == [6]


def test_a_finished_training_with_a_corrupt_best_checkpoint_is_evaluated_again(run: Path, recipe: Recipe) -> None:
    """There is no other checkpoint to choose, and no step left."""
    rewind(run, 6)
    set_best(run, 6, best=2)
    for step in (1, 2, 3, 4, 5):
        shutil.rmtree(run / "checkpoints" / f"step-{step}")
    (run / "metrics.jsonl").unlink()
    results = train(keeping(recipe, 1), run, resume=True).results
    assert results["train"]["best_step"] == 6
    assert steps(run) == [6]


def test_a_corrupt_newest_checkpoint_does_not_replace_an_intact_one(run: Path, finished: Path, recipe: Recipe) -> None:
    """It does not count, and goes with the first checkpoint that is saved after it."""
    (run / "results.json").unlink()
    for step in (5, 6):
        flip(run / "checkpoints" / f"step-{step}" / "optimizer.safetensors")
    shutil.copytree(run / "checkpoints" / "step-6", run / "checkpoints" / "step-99")
    with (run / "metrics.jsonl").open("ab") as log:
        log.write(b'{"step": 7, "note": "\xe2\x80')  # cut inside a character by a full disk
    saved: list[list[int]] = []
    rotate = Checkpoints.rotate

    def observed(self: Checkpoints, *arguments: int) -> None:
        rotate(self, *arguments)
        saved.append(steps(run))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "rotate", observed)
        train(keeping(recipe, 1), run, resume=True)
    assert saved[0] == [4, 5]  # the best and the last
    assert saved[-1] == [6]
    assert losses(run) == losses(finished)
    assert weight_bytes(run) == weight_bytes(finished)


def test_a_kill_while_a_checkpoint_is_replaced_loses_none(run: Path, finished: Path, recipe: Recipe) -> None:
    """Killed between the two renames: the checkpoint that was there is whole, and takes its place again."""
    rewind(run, 6)
    folder = run / "checkpoints"
    (folder / "step-6").rename(folder / f"{TEMPORARY_PREFIX}old-step-6")
    shutil.copytree(folder / "step-5", folder / f"{TEMPORARY_PREFIX}step-6")
    checkpoints = Checkpoints(folder)
    checkpoints.remove_partial()
    assert steps(run) == [1, 2, 3, 4, 5, 6]
    assert checkpoints.at(6).integrity_error() is None
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize(
    "damage",
    [
        b'{"step": 5, "note": "\xe2\x80',
        b'{"step": 5, "train_lo',
        b'["step"]\n{"step": "x"}\n{}\n' + b"\0" * 99,
    ],
)
def test_malformed_entries_are_removed_from_a_log(tmp_path: Path, damage: bytes) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", Accelerator())
    for step in (1, 2, 3):
        log.add(step, note="a\u2028b\x85c\x0bd\x1ce")
    whole = log.path.read_bytes().split(b"\n")
    log.path.write_bytes(b"\n".join([*whole[:2], damage, *whole[2:]]) + damage)
    log.rewind(2)
    assert log.path.read_bytes() == b"\n".join(whole[:2]) + b"\n"


@pytest.mark.parametrize("content", [b"", b'{"test": {"lo', b"[]", b'{"a": "\xe2\x80'])
def test_damaged_results_name_the_remedy(run: Path, finished: Path, recipe: Recipe, content: bytes) -> None:
    (run / "results.json").write_bytes(content)
    with pytest.raises(RunError, match=r"results\.json cannot be read .*[Rr]emove it, .*--resume"):
        train(keeping(recipe, 9), run, resume=True)
    if content:
        return
    (run / "results.json").unlink()
    train(keeping(recipe, 9), run, resume=True)
    assert weight_bytes(run) == weight_bytes(finished)


def test_only_finite_figures_make_a_step_the_best() -> None:
    nan, inf = float("nan"), float("inf")
    progress = Progress()
    assert not progress.record(1, nan, nan, greater=False)
    assert not progress.record(2, 0.5, inf, greater=True)
    assert progress.best_step is None
    assert progress.record(3, nan, 2.0, greater=True)
    assert progress.best is None
    assert progress.record(4, -0.1, 3.0, greater=True)
    assert not progress.record(5, nan, 1.0, greater=True)
    assert progress.record(6, -0.1, 2.5, greater=True)
    assert (progress.best_step, progress.best, progress.stale_evaluations) == (6, -0.1, 0)
