"""Real failures: full disks, damaged files, memory, signals. A run ends with one message; complete files are intact."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from conftest import RunKit
from support.recipes import make_recipe
from support.runs import flip, weights

from kit import load_recipe, train
from kit.training.checkpoint import Checkpoints
from kit.training.objective import Seq2SeqObjective

SHORT = ["train.max_steps=8", "train.save_steps=1", "train.save_total_limit=99", "eval.steps=0", "eval.metrics=[]"]


def whole_checkpoints(run: Path) -> list[int]:
    checkpoints = Checkpoints(run / "checkpoints").all()
    assert [checkpoint.integrity_error() for checkpoint in checkpoints] == [None] * len(checkpoints)
    return [checkpoint.step for checkpoint in checkpoints]


def assert_same(run: Path, other: Path) -> None:
    mine, theirs = weights(run), weights(other)
    assert all(mine[name].equal(theirs[name]) for name in theirs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with checkpoints of several steps."""
    folder = tmp_path_factory.mktemp("finished")
    return train(make_recipe(folder, "translation", overrides=SHORT), folder / "run").folder


# ---- disks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A small file system: `small_disk("size=300k")` mounts it or changes its options; skipped without permission."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not shutil.which("mount") or os.geteuid():
        pytest.skip("only root can mount a file system")

    def mount(options: str) -> Path:
        again = ["-o", f"remount,{options}"] if disk.is_mount() else ["-t", "tmpfs", "-o", options]
        if subprocess.run(["mount", *again, "tmpfs", str(disk)], check=False, capture_output=True).returncode:
            pytest.skip("this system lets nobody mount a file system")
        return disk

    yield mount
    if disk.is_mount():
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_leaves_what_was_complete(
    tiny_recipe: Path, finished: Path, small_disk: Callable[..., Path], kit_here: RunKit
) -> None:
    run = small_disk("size=512k") / "run"
    full = kit_here("train", tiny_recipe, *SHORT, "--output", run)
    assert full.returncode == 2, full.stderr
    assert full.stderr.count("kit: cannot write") == 1
    assert "No space left on device. Completed files are untouched" in full.stderr
    assert "Traceback" not in full.stderr
    assert 0 < len(whole_checkpoints(run)) < 8
    assert not list(run.rglob(".tmp-*"))
    small_disk("size=20m")
    done = kit_here("train", tiny_recipe, *SHORT, "--output", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(run, finished)


def test_file_size_limit_is_reported_like_a_full_disk(tiny_recipe: Path, tmp_path: Path, kit_here: RunKit) -> None:
    """Where nothing can be mounted, a quota has the same effect: the write fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, limits[1]))
    try:
        full = kit_here("train", tiny_recipe, *SHORT, "--output", "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert full.returncode == 2, full.stderr
    assert "File too large. Completed files are untouched" in full.stderr
    assert whole_checkpoints(tmp_path / "run") == []
    assert not list((tmp_path / "run").rglob(".tmp-*"))


def test_a_folder_that_cannot_be_written_to(
    tiny_recipe: Path, small_disk: Callable[..., Path], kit_here: RunKit
) -> None:
    disk = small_disk("size=20m")
    assert kit_here("train", tiny_recipe, *SHORT, "--output", disk / "run").returncode == 0
    (disk / "run" / "results.json").unlink()
    small_disk("ro")
    for output, more in ((disk / "new", []), (disk / "run", ["--resume"])):
        refused = kit_here("train", tiny_recipe, *SHORT, "--output", output, *more)
        assert refused.returncode == 2, refused.stderr
        assert refused.stderr.count("kit: cannot write") == 1
        assert "Read-only file system" in refused.stderr
        assert "Traceback" not in refused.stderr


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda newest: flip(newest / "optimizer.safetensors"), "optimizer.safetensors does not match its checksum"),
        (lambda newest: flip(newest / "state.json"), "state.json does not match its checksum"),
        (lambda newest: (newest / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda newest: (newest / "checksums.json").unlink(), "checksums.json is missing"),
        (lambda newest: (newest / "checksums.json").write_text("[]"), "expected a JSON object"),
        (lambda newest: (newest / "checksums.json").write_text("{}"), "checksums.json does not list all files"),
        (lambda newest: (newest / "checksums.json").write_text('{"model'), "Unterminated string"),
    ],
)
def test_checkpoint_damage_is_detected(
    finished: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    shutil.copytree(finished / "checkpoints", tmp_path / "checkpoints")
    damage(tmp_path / "checkpoints" / "step-8")
    (newest, wrong), (before, fine), *_ = Checkpoints(tmp_path / "checkpoints").newest_first()
    assert (newest.step, before.step) == (8, 7)
    assert wrong is not None
    assert message in wrong
    assert fine is None


def test_incomplete_checkpoint_is_skipped(finished: Path, tmp_path: Path, tiny_recipe: Path, kit_here: RunKit) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "results.json").unlink()
    (run / "checkpoints" / "step-8" / "optimizer.safetensors").unlink()
    done = kit_here("train", tiny_recipe, *SHORT, "--output", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert "step-8 is corrupt (optimizer.safetensors is missing); using the previous one." in done.stderr
    assert "resuming at step 7" in done.stderr
    assert_same(run, finished)


def test_run_killed_before_writing_its_recipe_resumes(tmp_path: Path, tiny_recipe: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()
    (run / ".tmp-recipe.yaml").write_text("task: trans", encoding="utf-8")
    (run / ".tmp-old-model").mkdir()  # and one that was killed while the model took its place
    train(load_recipe(tiny_recipe, ["train.max_steps=1", "eval.steps=0", "eval.metrics=[]"]), run, resume=True)
    assert not list(run.rglob(".tmp-*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kit_format": 7, "kit_version": "9.1"}, r"written by kit 9.1 in format 7; kit .* reads"),
        ({"kit_format": 0, "kit_version": "0.0.1"}, r"written by kit 0.0.1 in format 0"),
        ({"schedule": None}, "state.json lacks schedule"),
    ],
)
def test_a_run_of_another_version_is_named_and_not_touched(
    finished: Path, tmp_path: Path, tiny_recipe: Path, change: dict[str, object], message: str
) -> None:
    from kit import RunError
    from kit.system.files import file_sha256

    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "results.json").unlink()
    newest = run / "checkpoints" / "step-8"
    state = json.loads((newest / "state.json").read_text(encoding="utf-8")) | change
    state = {key: value for key, value in state.items() if value is not None or key == "scaler"}
    (newest / "state.json").write_text(json.dumps(state), encoding="utf-8")
    sums = json.loads((newest / "checksums.json").read_text(encoding="utf-8"))
    sums["state.json"] = file_sha256(newest / "state.json")
    (newest / "checksums.json").write_text(json.dumps(sums), encoding="utf-8")
    with pytest.raises(RunError, match=message):
        train(load_recipe(tiny_recipe, SHORT), run, resume=True)
    assert (newest / "state.json").is_file()


def test_recipe_of_another_version_is_reported_with_its_folder(
    finished: Path, tmp_path: Path, tiny_recipe: Path, kit_here: RunKit
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    text = (run / "recipe.yaml").read_text(encoding="utf-8")
    (run / "recipe.yaml").write_text(text.replace("train:\n", "train:\n  future_key: 3\n", 1), encoding="utf-8")
    done = kit_here("train", tiny_recipe, *SHORT, "--output", run, "--resume")
    assert done.returncode == 2
    assert "future_key" in done.stderr
    assert "was written by another version of kit, or edited by hand" in done.stderr
    assert kit_here("eval", run).returncode == 2


# ---- numbers and memory ----------------------------------------------------------------------------------------------


def test_diverging_training_stops_with_its_batch(tiny_recipe: Path, tmp_path: Path, kit_here: RunKit) -> None:
    wild = ["train.optimizer=sgd", "train.learning_rate=1e38", "train.max_grad_norm=null", "train.save_steps=1"]
    done = kit_here("train", tiny_recipe, *wild, "--output", "run")
    assert done.returncode == 1
    assert "has a non-finite loss or gradient" in done.stderr
    assert "Traceback" not in done.stderr
    saved = {path.suffix for path in (tmp_path / "run" / "nonfinite").iterdir()}
    assert saved == {".json", ".safetensors"}
    assert whole_checkpoints(tmp_path / "run")


def test_out_of_memory(tiny_recipe: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step allocates more than the system has; then the run continues with smaller micro-batches."""
    plain = Seq2SeqObjective.summed_loss

    def greedy(self: Seq2SeqObjective, batch: dict, label_smoothing: float = 0.0) -> torch.Tensor:
        if self.training and len(batch["labels"]) > 12:
            torch.empty(2**50)  # a petabyte times four
        return plain(self, batch, label_smoothing)

    monkeypatch.setattr(Seq2SeqObjective, "summed_loss", greedy)
    done = kit_here("train", tiny_recipe, *SHORT, "--output", "run", "model.dropout=0")
    assert done.returncode == 1
    assert "memory ran out after step" in done.stderr
    assert "train.micro_batches=2, also with --resume. Or lower train.tokens_per_batch (now 512)" in done.stderr
    assert "Traceback" not in done.stderr
    more = ["model.dropout=0", "train.micro_batches=4", "--resume"]
    done = kit_here("train", tiny_recipe, *SHORT, "--output", "run", *more)
    assert done.returncode == 0, done.stderr


def test_micro_batches_may_increase_but_never_decrease(finished: Path, tmp_path: Path, tiny_recipe: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "results.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step-8")
    recipe = load_recipe(tiny_recipe, [*SHORT, "train.micro_batches=2"])
    train(recipe, run, resume=True)
    assert load_recipe(run / "recipe.yaml").train.micro_batches == 2
    (run / "results.json").unlink()
    train(load_recipe(tiny_recipe, SHORT), run, resume=True)
    assert load_recipe(run / "recipe.yaml").train.micro_batches == 2


# ---- processes -------------------------------------------------------------------------------------------------------

LONG = ["train.max_steps=100000", "eval.steps=0", "train.save_steps=20", "train.micro_batches=2"]


def start(recipe: Path, output: Path, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "kit", "train", str(recipe), *LONG, "--output", str(output), "--processes", "2"]
    process = subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True, cwd=output.parent)
    newest = -1
    while newest < 20:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.1)
        newest = max(steps_of(output), newest)
    return process


def steps_of(run: Path) -> int:
    return max((int(path.name[5:]) for path in run.glob("checkpoints/step-*")), default=-1)


def workers(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The processes of a group, the first one first."""
    children = psutil.Process(process.pid).children(recursive=True)
    ranked = [(child.environ().get("RANK"), child) for child in children]
    return [child for rank, child in sorted(ranked, key=lambda pair: str(pair[0])) if rank is not None]


MESSAGE = {"is_message": True, "text": "kit: a.tsv is empty", "code": 2}
FAILURE = {"is_message": False, "text": "Traceback …\nZeroDivisionError", "code": 1}
LOST = {"is_message": False, "text": "Traceback …\nRuntimeError: [gloo] Connection closed by peer", "code": 1}


@pytest.mark.parametrize(
    ("codes", "failures", "message", "code"),
    [
        ({0: 2, 1: 2}, {1: MESSAGE, 0: MESSAGE}, "kit: a.tsv is empty\n", 2),
        ({0: 1, 1: 2}, {0: LOST, 1: MESSAGE}, "kit: a.tsv is empty\n", 2),
        (
            {0: 1, 1: -9},
            {0: LOST},
            "kit: process 1 was ended by SIGKILL; the system does that when memory runs out",
            137,
        ),
        ({0: -15, 1: -11}, {}, "kit: process 1 was ended by SIGSEGV. The others were stopped\n", 139),
        ({0: 1, 1: 1}, {0: LOST, 1: FAILURE}, "kit: process 1 failed, the others were stopped:\nTraceback …\nZero", 1),
        ({0: -9, 1: 1}, {1: FAILURE}, "kit: process 1 failed", 1),  # the other process ignored the signal
        ({0: 143, 1: 143}, {}, "", 143),  # both were asked to stop, and did
    ],
)
def test_first_failure_is_reported_once(
    codes: dict[int, int], failures: dict[int, dict], message: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    from kit.training.launch import show_failure

    assert show_failure(codes, failures) == code
    shown = capsys.readouterr().err
    assert shown.startswith(message)
    assert shown.count("kit: ") == bool(message)


@pytest.mark.soak
def test_a_process_that_dies_ends_the_run(tiny_recipe: Path, tmp_path: Path) -> None:
    """The other process does not wait for it, the launcher names it, and the last checkpoint is complete."""
    run = tmp_path / "run"
    process = start(tiny_recipe, run)
    group = workers(process)
    assert len(group) == 2
    group[1].kill()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGKILL
    assert "processes: 2, on cpu by gloo" in stderr
    assert "kit: process 1 was ended by SIGKILL" in stderr
    assert f"resume with: kit train {run} --resume" in stderr
    assert "Traceback" not in stderr
    psutil.wait_procs(group, timeout=30)
    assert not any(member.is_running() for member in group)
    assert whole_checkpoints(run)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_launcher_saves_and_prints_how_to_resume(
    tiny_recipe: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    process = start(tiny_recipe, run)
    group = workers(process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert stderr.count(f"resume with: kit train {run} --resume") == 1
    assert "Traceback" not in stderr
    psutil.wait_procs(group, timeout=30)
    assert not any(member.is_running() for member in group)
    assert str(whole_checkpoints(run)[-1]) in stderr


@pytest.mark.soak
def test_killed_launcher_ends_its_processes(tiny_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(tiny_recipe, run)
    group = workers(process)
    process.kill()
    process.communicate()
    psutil.wait_procs(group, timeout=30)
    assert not any(member.is_running() for member in group)
    assert whole_checkpoints(run)


@pytest.mark.soak
def test_mistake_in_several_processes_is_reported_once(tiny_recipe: Path, kit: RunKit) -> None:
    data = ["data.path=nowhere.tsv", "data.sizes=null", "data.languages=null"]
    done = kit("train", tiny_recipe, *data, "--processes", 2)
    assert done.returncode == 2
    assert done.stderr.count("nowhere.tsv") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_two_runs_in_one_folder(tiny_recipe: Path, tmp_path: Path, kit: RunKit) -> None:
    """Both with two processes: the second is rejected while the first continues."""
    run = tmp_path / "run"
    process = start(tiny_recipe, run)
    second = kit("train", tiny_recipe, *LONG, "--output", run, "--processes", 2, "--resume")
    assert second.returncode == 2
    assert "another process is training in" in second.stderr
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert whole_checkpoints(run)
