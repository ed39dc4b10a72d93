"""Several machines must see one run folder, and train on the same data."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.processes import in_processes
from support.recipes import write_recipe
from support.runs import losses

from kit import KitError, load_recipe, train
from kit.training.loop import Loop


def train_on_own_disk(recipe: Any, disks: Path, resume: bool) -> None:
    """Train as on machines without a shared disk, and record the outcome."""
    disk = disks / f"disk-{os.environ['RANK']}"
    disk.mkdir(exist_ok=True)
    steps: list[int] = []
    plain = Loop._step
    Loop._step = lambda self, *rest: steps.append(self.progress.step) or plain(self, *rest)  # type: ignore
    try:
        train(recipe, disk / "run", resume)
    except KitError as error:
        message = str(error)
    else:
        message = "trained"
    (disk / "message.txt").write_text(f"{message}\nsteps: {steps}", encoding="utf-8")


def messages(disks: Path) -> list[str]:
    return [(disks / f"disk-{rank}" / "message.txt").read_text(encoding="utf-8") for rank in (0, 1)]


@pytest.mark.parametrize("resume", [False, True])
def test_processes_that_do_not_share_the_run_folder_fail_before_the_first_step(resume: bool, tmp_path: Path) -> None:
    """On separate disks, processes would resume from different steps without an error."""
    recipe = load_recipe(write_recipe(tmp_path, "causal_lm"), ["train.micro_batches=2"])
    if resume:
        done = train(recipe, tmp_path / "disk-0" / "run").folder
        (done / "results.json").unlink()
        shutil.copytree(done, tmp_path / "disk-1" / "run")
        shutil.rmtree(tmp_path / "disk-1" / "run" / "checkpoints" / "step-12")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.glob("disk-*/**/*"))
    in_processes(2, train_on_own_disk, recipe, tmp_path, resume)
    for message in messages(tmp_path):
        assert "is not visible to process 1" in message
        assert "disk that all machines share" in message
        assert message.endswith("steps: []")
    after = {path.relative_to(tmp_path) for path in tmp_path.glob("disk-*/**/*")} - {Path("disk-0"), Path("disk-1")}
    assert {path for path in after if path.name != "message.txt"} == set(before) - {Path("disk-0"), Path("disk-1")}


def test_processes_with_different_data_fail_before_the_first_step(tmp_path: Path) -> None:
    """Each machine reads its own copy of the data."""
    recipe = load_recipe(write_recipe(tmp_path, "classification"), ["train.micro_batches=2"])
    in_processes(2, train_on_other_data, recipe, tmp_path)
    for message in messages(tmp_path):
        assert "process 1 has different data" in message
        assert "train" in message
        assert message.endswith("steps: []")


def train_on_other_data(recipe: Any, folder: Path) -> None:
    from kit.data.splits import Splits
    from kit.tasks.classification.task import Classification

    rank, plain = os.environ["RANK"], Classification.load_splits

    def load(self: Classification) -> Splits:
        splits = plain(self)
        if rank == "1":
            splits.fingerprints["train"] = "another"
        return splits

    Classification.load_splits = load  # type: ignore[method-assign]
    (folder / f"disk-{rank}").mkdir()
    try:
        train(recipe, folder / "run")
    except KitError as error:
        (folder / f"disk-{rank}" / "message.txt").write_text(f"{error}\nsteps: []", encoding="utf-8")


def test_a_shared_run_folder_holds_no_trace_of_the_check(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path, "causal_lm"), ["train.micro_batches=2", "train.max_steps=2"])
    in_processes(2, train, recipe, tmp_path / "run")
    assert len(losses(tmp_path / "run")) == 2
    hidden = [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]
    assert hidden in ([], [".lock"])
