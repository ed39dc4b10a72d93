"""Kills at random moments, run by `make soak`: nothing is lost, and the same command then succeeds.

`KIT_KILLS` is their number, 200 by default, spread over the training of every task and over all commands that write.
"""

import hashlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support.processes import ForkedKit, kit_command
from support.recipes import RECIPES, write_recipe
from support.runs import losses, weight_bytes

from kit.training.checkpoint import Checkpoints

pytestmark = pytest.mark.soak

TASKS = sorted(RECIPES)
TRAINING = ["train.max_steps=12", "train.save_steps=2", "train.save_total_limit=2", "eval.steps=6", "train.seed=5"]
LINES = "".join(f"{day} May 20{year:02}\n" for day in range(1, 29) for year in range(12))

COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "average": (("average", "run", "--last", "2", "--output", "out"), "out"),
    "merge": (("merge", "adapter", "--output", "out"), "out"),
    "push": (("push", "run", "owner/name", "--dry-run", "--keep", "out"), "out"),
    "generate": (("generate", "run", "lines.txt", "--output", "out.txt"), "out.txt"),
    "predict": (("predict", "base", "lines.txt", "--output", "out.csv"), "out.csv"),
    "embed": (("embed", "base", "lines.txt", "--output", "out.npy"), "out.npy"),
    "eval": (("eval", "run", "--predictions", "out.jsonl"), "out.jsonl"),
    "plot": (("plot", "run", "--kind", "curves", "--output", "out"), "out"),
    "copy": (("copy", "dates_rnn", "out.yaml"), "out.yaml"),
}
"""Arguments of each command, and what it writes."""

TIMED = {"results.json", "README.md", "run.json"}
"""Files that have durations in them, or the place of the run."""

KILLS = -(-int(os.environ.get("KIT_KILLS", "200")) // (len(TASKS) + len(COMMANDS)))
"""Of each training and each command."""


@dataclass
class Killer:
    """Runs commands of kit in a folder, and kills them."""

    folder: Path
    chance: random.Random
    seconds: float = 0.0
    """What the command takes if nothing kills it."""

    def start(self, *arguments: object) -> ForkedKit:
        return ForkedKit(kit_command(*arguments), folder=self.folder, log=self.folder / "log.txt")

    def complete(self, *arguments: object) -> None:
        began = time.monotonic()
        code = self.start(*arguments).wait()
        self.seconds = time.monotonic() - began
        assert code == 0, (self.folder / "log.txt").read_text()

    def kill(self, *arguments: object) -> bool:
        """Start a command and kill it, with its children, at a random moment: of its time, or of its first unfinished
        file. Returns False if it was done before."""
        process = self.start(*arguments)
        writes, began = self.chance.random() < 0.5, time.monotonic()
        moment = self.chance.uniform(0, 0.05 if writes else self.seconds)
        while process.poll() is None:
            if writes and self.unfinished():
                writes, began = False, time.monotonic()
            if not writes and time.monotonic() - began >= moment:
                break
            time.sleep(0.001)
        if process.returncode is None:
            for child in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                child.send_signal(signal.SIGKILL)
            process.wait()
        assert process.returncode in (0, -signal.SIGKILL), (self.folder / "log.txt").read_text()
        return process.returncode != 0

    def unfinished(self) -> bool:
        """True if the command has begun to write."""
        names = (name for _, folders, files in os.walk(self.folder) for name in (*folders, *files))
        return any(name.startswith(".tmp-") for name in names)


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what the commands need once: they run in forks of this process, which itself starts no threads."""
    import datasets  # noqa: F401
    import matplotlib.figure  # noqa: F401
    from transformers import BertModel, GPT2LMHeadModel  # noqa: F401

    import kit.inference.embed
    import kit.inference.generate
    import kit.inference.plot
    import kit.inference.predict
    import kit.runs.average
    import kit.runs.merge
    import kit.runs.train
    import kit.sharing.push  # noqa: F401
    from kit.tasks.registry import recipe_classes

    recipe_classes()


@pytest.fixture
def killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Killer]:
    seed = random.randrange(10**6)
    print("seed", seed)  # shown when the test fails
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    yield Killer(tmp_path, random.Random(seed))
    shutil.rmtree(tmp_path)  # a thousand kills would fill the disk


def content(path: Path) -> dict[str, str]:
    """A digest of each file in a folder, or of a file, whose content does not depend on time."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {
        file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.name not in TIMED and file.name != ".lock"
    }


def assert_no_traces(folder: Path) -> None:
    assert not list(folder.rglob(".tmp-*"))
    assert not [path for path in (folder / "tmp").rglob("*") if path.name.endswith(".lock")]


@pytest.mark.parametrize("task", TASKS)
def test_killed_training_resumes_bit_identically(task: str, killer: Killer) -> None:
    recipe, unbroken, run = write_recipe(killer.folder, task), killer.folder / "unbroken", killer.folder / "run"
    killer.complete("train", recipe, *TRAINING, "--output", unbroken)
    command = ("train", recipe, *TRAINING, "--output", run, "--resume")

    def finish() -> None:
        assert weight_bytes(run) == weight_bytes(unbroken)
        assert losses(run) == losses(unbroken)
        assert (run / "results.json").is_file()
        assert_no_traces(killer.folder)
        shutil.rmtree(run)

    kills = 0
    while kills < KILLS:
        if killer.kill(*command):
            kills += 1
            for checkpoint in Checkpoints(run / "checkpoints").all():
                assert checkpoint.integrity_error() is None
        else:
            finish()
    seconds = killer.seconds
    killer.complete(*command)
    killer.seconds = seconds
    finish()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translation, a classifier, and an adapter on top of it."""
    folder = tmp_path_factory.mktemp("runs")
    first = Killer(folder, random.Random(0))
    first.complete("train", write_recipe(folder, "translation"), *TRAINING, "--output", "run")
    recipe = write_recipe(folder, "classification")
    first.complete("train", recipe, *TRAINING, "--output", "base")
    adapter = [f"model={{pretrained: {folder / 'base'}}}", "tokenizer={}", "peft.method=lora"]
    first.complete("train", recipe, *TRAINING, *adapter, "--output", "adapter")
    rows = LINES.replace("\n", "\tde\n")
    (folder / "lines.txt").write_text(LINES)
    (folder / "rows.tsv").write_text(f"text\tlabel\n{rows}")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_killed_command_does_not_block_the_next(command: str, killer: Killer, runs: Path) -> None:
    arguments, output = COMMANDS[command]
    for source in runs.iterdir():
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, killer.folder / source.name)
    if command == "predict":
        arguments = tuple("rows.tsv" if argument == "lines.txt" else argument for argument in arguments)
    sources = {name: content(killer.folder / name) for name in ("run", "base", "adapter")}
    killer.complete(*arguments)

    def result() -> dict[str, str] | None:
        """What the command has written, which is removed; None if there is nothing."""
        path = killer.folder / output
        written = content(path) if path.exists() else None
        remove: Callable[[Path], object] = shutil.rmtree if path.is_dir() else Path.unlink
        if written is not None:
            remove(path)
        return written

    expected, seconds = result(), killer.seconds
    assert expected
    kills = 0
    while kills < KILLS:
        before = (killer.folder / output) if command in ("generate", "predict", "embed", "eval") else None
        if before is not None:
            before.write_text("what was there before")
        if killer.kill(*arguments):
            kills += 1
            if before is not None:
                assert before.read_text(errors="replace") == "what was there before" or content(before) == expected
            elif command in ("average", "merge", "push", "copy") and (killer.folder / output).exists():
                assert result() == expected  # it was killed after its last act
            killer.complete(*arguments)
            assert_no_traces(killer.folder)
            killer.seconds = seconds
        assert result() == expected
        assert {name: content(killer.folder / name) for name in sources} == sources
