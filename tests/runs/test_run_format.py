"""The format number of run folders: another one, or none, is rejected by every command that opens a run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kit import RunError, compare_runs, evaluate, load_recipe, train
from kit.data.text.tokenizer import NoTokenizers
from kit.pretrained.folder import ModelFolder
from kit.runs.folder import RunFolder
from kit.system.format import FORMAT
from kit.system.version import __version__

COMMANDS = [
    ("train", "{run}/recipe.yaml", "--output", "{run}"),
    ("train", "{run}/recipe.yaml", "--output", "{run}", "--resume"),
    ("eval", "{run}"),
    ("average", "{run}", "--last", "2", "--output", "{new}"),
    ("plot", "{run}"),
    ("verify", "{run}"),
    ("push", "{run}", "owner/name", "--dry-run"),
]
"""The commands that open runs; tests of the model's number are in tests/pretrained."""


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def content(folder: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in folder.rglob("*") if path.name != ".lock"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "_".join((command[0], *command[4:5])))
@pytest.mark.parametrize("number", [FORMAT + 1, None])
def test_commands_reject_another_format_and_none(
    run: Path, kit_here: Any, command: tuple[str, ...], number: int | None
) -> None:
    stored = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert stored.items() >= {"kit_format": FORMAT, "kit_version": __version__}.items()
    if number is None:
        (run / "run.json").unlink()
        expected = f"{run} has a recipe but no format number, so kit {__version__} did not write it"
    else:
        (run / "run.json").write_text(json.dumps({"kit_format": number, "kit_version": "9.1"}), encoding="utf-8")
        expected = f"{run} was written by kit 9.1 in format {number}; kit {__version__} reads format {FORMAT}."
    before = content(run)
    done = kit_here(*(argument.format(run=run, new="new") for argument in command))
    assert done.returncode == 2
    assert expected in " ".join(done.stderr.split())
    assert "Nothing was touched" in done.stderr
    assert content(run) == before
    assert not (run.parent / "new").exists()


def test_the_layout_on_the_hub_has_its_number_in_the_config(run: Path) -> None:
    hub = run.parent / "hub"
    shutil.copytree(run / "model", hub)
    shutil.copyfile(run / "recipe.yaml", hub / "recipe.yaml")
    assert evaluate(hub, "validation").rows
    config = json.loads((hub / "config.json").read_text(encoding="utf-8"))
    (hub / "config.json").write_text(json.dumps({**config, "kit_format": FORMAT + 1}), encoding="utf-8")
    with pytest.raises(RunError, match=rf"hub was written by kit {__version__} in format {FORMAT + 1}"):
        evaluate(hub)
    del config["kit_format"]
    (hub / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(RunError, match=r"hub has a recipe but no format number"):
        evaluate(hub)


def test_a_run_that_was_killed_after_its_first_file_starts_again(tmp_path: Path, tiny_recipe: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}", encoding="utf-8")
    train(load_recipe(tiny_recipe, ["train.max_steps=1", "eval.steps=0", "eval.metrics=[]"]), run)
    RunFolder(run).check_format()


def test_a_run_is_rejected_as_a_model_too_and_a_foreign_recipe_is_ignored(run: Path) -> None:
    assert ModelFolder.open(run).recipe_file == run / "recipe.yaml"
    (run / "run.json").write_text(json.dumps({"kit_format": FORMAT + 1}), encoding="utf-8")
    with pytest.raises(RunError, match="in format"):
        ModelFolder.open(run)
    (run / "run.json").unlink()
    assert ModelFolder.open(run).recipe_file is None


def test_runs_of_another_format_are_not_compared(run: Path, trained: Path) -> None:
    (run / "run.json").write_text(json.dumps({"kit_format": FORMAT + 1}), encoding="utf-8")
    with pytest.raises(RunError, match="in format"):
        compare_runs([trained, run])
    (run / "run.json").unlink()
    compare_runs([trained, run])  # predictions of other programs can be compared too


def test_the_figures_of_the_recorded_run_are_not_those_of_a_new_one(tmp_path: Path) -> None:
    recipe = load_recipe("dates_rnn")
    assert recipe.measured
    folder = RunFolder(tmp_path / "run")
    folder.start(recipe, NoTokenizers())
    assert folder.recipe().measured is None
    assert folder.recipe().differences(recipe) == ["measured"]
