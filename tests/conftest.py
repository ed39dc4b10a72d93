"""Fixtures: tiny recipes and runs, the command line, and a local Hub."""

import atexit
import base64
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from support.hub_server import HubServer

    from kit.recipe.base import Recipe

# Nothing in the tests may reach for the network; set before anything imports the libraries that would.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Tiny models are fastest on one thread, and threads that wait for each other starve on a busy machine.
os.environ["OMP_NUM_THREADS"] = "1"
# A private cache.
os.environ["KIT_CACHE"] = tempfile.mkdtemp(prefix="kit-cache-")
atexit.register(shutil.rmtree, os.environ["KIT_CACHE"], ignore_errors=True)


# One transparent pixel.
BLANK_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)


@pytest.fixture(autouse=True, scope="module")
def freeze_imports() -> None:
    """Leave imported modules out of garbage collections, of which each run has one: they took a third of its time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def blank_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs within a test write blank PNG files, since drawing takes longer than training a tiny model.

    Runs of fixtures with a wider scope, other processes, and tests marked with `figures` draw.
    """
    if request.node.get_closest_marker("figures"):
        return
    from matplotlib.figure import Figure

    draw = Figure.savefig

    def save(figure: Figure, file: Any, **options: Any) -> None:
        if options.get("format") == "png" and isinstance(file, Path):
            file.write_bytes(BLANK_PNG)
        else:
            draw(figure, file, **options)

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    """A recipe file that trains in seconds."""
    from support.recipes import write_recipe

    return write_recipe(tmp_path, "translation").rename(tmp_path / "tiny.yaml")


@pytest.fixture
def write_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A function that writes a text to a file in the working folder, an empty one, and returns the file's name."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "r.yaml") -> str:
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write


@pytest.fixture
def make_recipe(tmp_path: Path) -> "Callable[..., Recipe]":
    """A function that makes a tiny recipe of a task: `make_recipe("tagging", overrides=["train.max_steps=2"])`."""
    from support.recipes import make_recipe

    return partial(make_recipe, tmp_path)


RunKit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kit(tmp_path: Path) -> RunKit:
    """The real command line, in an empty folder: `kit("train", recipe)`."""

    def run(*arguments: object, stdin: str | None = None, timeout: int = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kit", *map(str, arguments)],
            cwd=tmp_path,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def kit_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunKit:
    """The command line within this process: same arguments, output and exit code, without the start-up time."""
    from kit.cli import main

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["kit", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(sys.argv, int(stopped.value.code or 0), out, err)

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a translation model with two vocabularies and attention."""
    from support.recipes import make_recipe

    from kit import train

    folder = tmp_path_factory.mktemp("trained")
    overrides = ["tokenizer.shared=false", "train.max_steps=60", "eval.num_beams=3", "eval.group_by=[language, length]"]
    return train(make_recipe(folder, "translation", overrides=overrides), folder / "run").folder


@pytest.fixture(scope="session")
def run_of_task(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns a finished two-step run of a task on built-in data."""
    from functools import cache

    from support.recipes import SCORED, make_recipe

    from kit import train

    @cache
    def run(task: str) -> Path:
        folder = tmp_path_factory.mktemp(task)
        overrides = [
            "train.max_steps=2",
            "train.save_steps=2",
            "eval.steps=0",
            "eval.examples=2",
            *SCORED.get(task, []),
        ]
        return train(make_recipe(folder, task, overrides=overrides), folder / "run").folder

    return run


NUMBERS = {
    "en": ("one", "two", "three", "four", "five", "six", "seven"),
    "de": ("eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben"),
    "fr": ("un", "deux", "trois", "quatre", "cinq", "six", "sept"),
}


@pytest.fixture(scope="session")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with four directions between three languages, on numbers in words."""
    import random

    from support.recipes import make_recipe

    from kit import train

    folder = tmp_path_factory.mktemp("multilingual")
    drawn = random.Random(0)
    for split, count in (("train", 100), ("validation", 8), ("test", 8)):
        rows = [[drawn.randrange(7) for _ in range(drawn.randint(1, 3))] for _ in range(count)]
        for language, words in NUMBERS.items():
            text = "".join(" ".join(words[number] for number in row) + "\n" for row in rows)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    recipe = make_recipe(
        folder,
        "translation",
        {"path": str(folder), "directions": ["de-en", "en-de", "fr-en", "en-fr"]},
        model={
            "type": "rnn_seq2seq", "cell": "gru", "hidden_size": 32, "embedding_size": 16, "attention": "additive",
        },
        tokenizer={"train": "word", "min_frequency": 1},
        train={"max_steps": 80, "batch_size": 64, "learning_rate": 2e-2},
        eval={"steps": 0, "metrics": ["rouge1", "rougeL"], "num_beams": 2, "max_new_tokens": 8},
    )  # fmt: skip
    return train(recipe, folder / "run").folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Iterator[HubServer]":
    """A local Hub for this process, with a writing token, an empty cache, and retries that do not wait."""
    import huggingface_hub.file_download
    import huggingface_hub.utils._http
    from huggingface_hub import constants
    from support.hub_server import HubServer
    from support.hub_state import TOKEN

    import kit.hub.retry
    from kit.hub import download as places

    with HubServer() as server:
        for name, value in {
            "ENDPOINT": server.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        waits: list[float] = []
        at_once = SimpleNamespace(sleep=waits.append, time=places.time.time)
        for module in (kit.hub.retry, huggingface_hub.utils._http, huggingface_hub.file_download):
            monkeypatch.setattr(module, "time", at_once)
        server.waits = waits  # type: ignore[attr-defined]
        places.download.cache_clear()
        yield server
        places.download.cache_clear()
