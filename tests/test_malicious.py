"""Malicious repositories, opened by every command: no code runs, nothing outside is touched, and no token leaves."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from conftest import RunKit
from support.hub_server import HubServer
from support.malicious import CANARY, KINDS, ON_HUB, Attack, observed, tree
from support.mutations import problem_of

import kit
from kit import DataError, KitError
from kit.data.sources import load_from_hub
from kit.tasks.translation.recipe import TranslationData

NAME = "mallory/model"
PIPELINE = ("pipeline",)
COMMANDS: dict[str, tuple[str, ...]] = {
    "pipeline": PIPELINE,
    "generate": ("generate", "{model}", "in.txt"),
    "embed": ("embed", "{model}", "in.txt"),
    "eval": ("eval", "{model}", "--predictions", "out.jsonl"),
    "plot": ("plot", "{model}", "--output", "out"),
    "train": ("train", "{model}", "train.max_steps=1", "eval.num_beams=1", "--output", "out"),
    "fine-tune": (
        "train", "tiny.yaml", "model={{pretrained: {model}}}", "tokenizer={{}}", "train.max_steps=1", "--output", "out",
    ),
    "inspect": ("train", "{model}", "--dry-run"),
    "compare": ("compare", "{model}", "{model}"),
    "merge": ("merge", "{model}", "--output", "out"),
    "verify": ("verify", "{model}"),
}  # fmt: skip
"""How a model or run is opened, by its name on the Hub or as a folder."""

OF_FOLDERS: dict[str, tuple[str, ...]] = {
    "push": ("push", "{model}", "owner/name", "--dry-run"),
    "average": ("average", "{model}", "--last", "2", "--output", "out"),
    "resume": ("train", "{model}", "--resume"),
    "data": ("data", "{model}"),
}


@pytest.fixture
def foreign() -> Iterator[HubServer]:
    """Another host, which is not the Hub that the user has set."""
    with HubServer() as server:
        yield server


Check = Callable[[Callable[[Attack], None], tuple[str, ...], bool], None]


@pytest.fixture
def check(
    hub: HubServer, foreign: HubServer, trained: Path, tiny_recipe: Path, kit_here: RunKit, tmp_path: Path
) -> Check:
    """Make a copy of a run malicious, open it by a command, on the Hub or as a folder, and look at what happened."""
    (tmp_path / "in.txt").write_text("3 May 1984\n", encoding="utf-8")

    def open_with(change: Callable[[Attack], None], command: tuple[str, ...], on_hub: bool) -> None:
        outside = tmp_path.parent / f"{tmp_path.name}-outside"
        shutil.rmtree(outside, ignore_errors=True)
        attack = Attack(outside / "run", outside / "trap", outside / "secrets", foreign.storage)
        shutil.copytree(trained, attack.run, symlinks=True)
        attack.write_secrets()
        change(attack)
        if on_hub:
            files = {path.relative_to(attack.model): path for path in attack.model.rglob("*") if path.is_file()}
            content = {name.as_posix(): path.read_bytes() for name, path in files.items()}
            hub.repos.pop(("model", NAME), None)
            hub.put(NAME, {**content, "recipe.yaml": (attack.run / "recipe.yaml").read_bytes()})
            hub.put("mallory/base", {"config.json": b'{"model_type": "trap", "auto_map": {"AutoConfig": "trap.C"}}'})
            model = NAME
        else:
            model = str(attack.run)
            if change in ON_HUB.values():  # the recipe of a run of one's own may name any path
                (attack.run / ".cache" / "huggingface" / "download").mkdir(parents=True)
        before = tree(outside)
        hub.authorized.clear()
        with observed() as touched:
            output = run(command, model)
        assert not attack.trap.exists(), "code ran"
        writes = {"resume", "train"}.intersection(command) and not on_hub  # a run is resumed in its folder
        changed = [path for path, time in tree(outside).items() if before.get(path) != time]
        assert not [path for path in changed if not (writes and path.is_relative_to(attack.run))], "outside was written"
        assert not [path for path in touched.files if path.startswith(str(attack.secrets))], "outside was read"
        assert CANARY not in output + "".join(
            path.read_text("utf-8", "replace") for path in (tmp_path / "out", tmp_path / "out.jsonl") if path.is_file()
        )
        assert touched.ports <= {hub.port}, "another host was asked"
        assert hub.authorized <= {"127.0.0.1"}, "a token left"
        assert not foreign.log

    def run(command: tuple[str, ...], model: str) -> str:
        for name in ("out", "plots", "runs"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        if command == PIPELINE:
            return ask_pipeline(model)
        done = kit_here(*(argument.format(model=model) for argument in command))
        assert not problem_of(done)
        return done.stdout + done.stderr

    return open_with


def ask_pipeline(model: str) -> str:
    try:
        return str(kit.pipeline("translation", model)("3 May 1984"))
    except (KitError, ValueError) as error:
        return str(error)


def rotated(kinds: dict[str, Any], commands: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Each kind with one of the commands, so that each command is there."""
    names = list(commands)
    return [(kind, names[number % len(names)]) for number, kind in enumerate(kinds)]


QUICK = {name: COMMANDS[name] for name in ("pipeline", "generate", "eval", "embed", "inspect")}


@pytest.mark.parametrize(("kind", "command"), rotated(KINDS | ON_HUB, QUICK))
def test_a_malicious_repository_on_the_hub_does_nothing(kind: str, command: str, check: Check) -> None:
    check((KINDS | ON_HUB)[kind], COMMANDS[command], True)


@pytest.mark.parametrize("kind", ON_HUB)
def test_a_downloaded_folder_is_a_strangers(kind: str, check: Check) -> None:
    check(ON_HUB[kind], COMMANDS["inspect"], False)


@pytest.mark.soak
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", KINDS | ON_HUB)
def test_every_malicious_repository_by_every_command(kind: str, command: str, check: Check) -> None:
    check((KINDS | ON_HUB)[kind], COMMANDS[command], True)


@pytest.mark.soak
@pytest.mark.parametrize("command", COMMANDS | OF_FOLDERS)
@pytest.mark.parametrize("kind", KINDS | ON_HUB)
def test_every_malicious_folder_by_every_command(kind: str, command: str, check: Check) -> None:
    check((KINDS | ON_HUB)[kind], (COMMANDS | OF_FOLDERS)[command], False)


@pytest.mark.parametrize("file", ["{secrets}/train.tsv", "../secrets/train.tsv", "{host}/train.csv", "train.csv"])
@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
def test_a_dataset_on_the_hub_names_no_file_elsewhere(
    file: str, card: str, hub: HubServer, foreign: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card of a dataset lists its data files, and `datasets` follows every path and address."""
    for name, value in {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": False, "HF_DATASETS_CACHE": tmp_path}.items():
        monkeypatch.setattr(datasets.config, name, value)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "train.tsv").write_text(f"source\ttarget\n{CANARY}\tx\n", encoding="utf-8")
    named = file.format(secrets=secrets, host=foreign.storage)
    configs = yaml.safe_dump(
        {"configs": [{"config_name": "default", "data_files": [{"split": "train", "path": named}]}]}
    )
    content = f"---\n{configs}---\n" if card == "README.md" else configs
    hub.put("mallory/data", {card: content.encode(), "train.csv": b"source,target\na,b\n"}, kind="dataset")
    data = TranslationData(path="mallory/data")
    with observed() as touched:
        if file == "train.csv":
            assert load_from_hub(data, Path("mallory/data"))["train"].to_list() == [{"source": "a", "target": "b"}]
        else:
            with pytest.raises(DataError, match=r"outside of the repository|could not be loaded"):
                load_from_hub(data, Path("mallory/data"))
    assert not [path for path in touched.files if path.startswith(str(secrets))]
    assert hub.authorized <= {"127.0.0.1"}
    assert not foreign.authorized
