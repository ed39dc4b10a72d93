"""The format number of model folders: another one is rejected wherever a model is opened, none is a foreign model."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSeq2SeqLM

import kit
from kit.errors import RunError
from kit.pretrained.folder import ModelFolder, load_config
from kit.pretrained.loading import load_model
from kit.system.format import FORMAT, FORMAT_STAMP
from kit.system.version import __version__


def set_config(folder: Path, **values: Any) -> None:
    """Change fields of a model's config; None removes one."""
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | values
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}), encoding="utf-8")


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained / "model", tmp_path / "model"))


def test_an_exported_model_has_the_format_number(trained: Path) -> None:
    config = json.loads((trained / "model" / "config.json").read_text(encoding="utf-8"))
    assert {key: config[key] for key in FORMAT_STAMP} == {"kit_format": FORMAT, "kit_version": __version__}


@pytest.mark.parametrize(
    "open_model",
    [
        ModelFolder.open,
        load_config,
        partial(load_model, AutoModelForSeq2SeqLM),
        lambda folder: kit.pipeline("translation", folder),
    ],
    ids=["ModelFolder", "load_config", "load_model", "pipeline"],
)
def test_another_format_is_rejected(model: Path, open_model: Callable[[Path], Any]) -> None:
    set_config(model, kit_format=FORMAT + 1, kit_version="9.1")
    expected = rf"{model} was written by kit 9.1 in format {FORMAT + 1}; kit {__version__} reads format {FORMAT}\. "
    with pytest.raises(RunError, match=expected + "Nothing was touched: use kit 9.1, or train into a new folder"):
        open_model(model)


def test_the_number_is_read_before_the_configuration(model: Path) -> None:
    set_config(model, kit_format=FORMAT + 1, cell=[3], attention={"a": 1})  # which no class of this version could read
    with pytest.raises(RunError, match=r"written by kit .* in format"):
        ModelFolder.open(model)


@pytest.mark.parametrize("command", [("generate", "{model}", "{text}"), ("embed", "{model}", "{text}")])
def test_commands_reject_another_format(model: Path, kit_here: Any, command: tuple[str, ...]) -> None:
    set_config(model, kit_format=FORMAT + 1, kit_version="9.1")
    text = model.parent / "text.txt"
    text.write_text("1\n", encoding="utf-8")
    done = kit_here(*(argument.format(model=model, text=text) for argument in command))
    assert done.returncode == 2
    assert f"{model} was written by kit 9.1 in format {FORMAT + 1}" in done.stderr


def test_training_from_a_model_of_another_format_is_rejected(model: Path, tiny_recipe: Path) -> None:
    set_config(model, kit_format=FORMAT + 1)
    recipe = kit.load_recipe(tiny_recipe, ["model=null", f"model.pretrained={model}", "tokenizer=null"])
    with pytest.raises(RunError, match="in format"):
        kit.train(recipe, model.parent / "run")
    assert not (model.parent / "run").exists()


def test_a_model_without_a_number_is_a_foreign_one(model: Path, trained: Path) -> None:
    set_config(model, kit_format=None, kit_version=None)
    translate, expected = (kit.pipeline("translation", folder) for folder in (model, trained / "model"))
    assert translate("1 May") == expected("1 May")
