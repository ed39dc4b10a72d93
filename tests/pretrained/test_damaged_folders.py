"""Damaged run and model folders: every command prints one message that names the folder or file."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from conftest import RunKit
from safetensors.torch import load_file, save_file
from support.mutations import CHANGES, problem_of
from transformers import AutoModelForSeq2SeqLM

from kit import RunError, pipeline
from kit.data.text.tokenizer import Tokenizers
from kit.pretrained.loading import load_model
from kit.system.files import irregular_entry, open_regular, outside_link
from kit.system.load_errors import one_line_errors


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def rename_weight(file: Path) -> None:
    tensors = load_file(file)
    tensors["odd"] = tensors.pop(sorted(tensors)[0])
    save_file(tensors, file, metadata={"format": "pt"})


def widen_weight(file: Path) -> None:
    tensors = load_file(file)
    name = next(name for name in sorted(tensors) if tensors[name].dim() == 2)
    tensors[name] = tensors[name].repeat(2, 1)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "expected"),
    [(rename_weight, "its weights are incomplete"), (widen_weight, "its weights do not match its configuration")],
)
def test_weights_that_do_not_fit_are_not_replaced_by_random_ones(
    run: Path, damage: Callable[[Path], None], expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    damage(run / "model" / "model.safetensors")
    for load in (partial(load_model, AutoModelForSeq2SeqLM), partial(pipeline, "translation")):
        with pytest.raises(RunError, match=expected):
            load(run)
    assert capfd.readouterr().err == ""


def test_a_panic_is_one_message(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A template that names a token which does not exist is a panic of the tokenizers library, on the first text."""
    file = run / "model" / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    template = content["post_processor"]
    template = template["processors"][-1] if "processors" in template else template
    template["special_tokens"] = {}
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(RunError, match=r"model cannot be loaded .*: the tokenizer: "):
        Tokenizers.load(run / "model")
    assert "panicked" not in capfd.readouterr().err


def test_other_output_of_libraries_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    with one_line_errors("a"):
        os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "a warning\n"
    with pytest.raises(KeyboardInterrupt), one_line_errors("a"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["model/config.json", "checkpoints/step-60/model.safetensors", "plots/x.png"])
@pytest.mark.parametrize("replace", [os.mkfifo, lambda path: path.symlink_to(path.name)], ids=["pipe", "loop"])
def test_pipes_and_circular_links_are_named(
    run: Path, kit_here: RunKit, name: str, replace: Callable[[Path], None]
) -> None:
    (run / name).unlink(missing_ok=True)
    replace(run / name)
    for command in (["eval", run], ["average", run, "--last", "2", "--output", "x"], ["train", run, "--resume"]):
        done = kit_here(*command)
        assert done.returncode == 2
        assert str(run / name) in done.stderr
    assert outside_link(run) is None
    assert irregular_entry(run) is not None


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(OSError, match=r"not a regular file|null byte"):
            open_regular(path)


FILES = {
    "tokenizer.json": ("truncated", "a list", "deep", "an empty object"),
    "tokenizer_config.json": ("garbage", "a number", "null"),
    "config.json": ("empty", "a list", "a number of thousands of digits"),
    "generation_config.json": ("truncated", "a list"),
    "model.safetensors": ("truncated", "a huge header", "reversed shapes", "a pickle"),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_model_files_are_one_message(run: Path, kit_here: RunKit, name: str, tmp_path: Path) -> None:
    import random

    (tmp_path / "in.txt").write_text("3 maj 1984\n", encoding="utf-8")
    file = run / "model" / name
    original = file.read_bytes()
    for kind in FILES[name]:
        file.write_bytes(CHANGES[kind](original, random.Random(0)))
        done = kit_here("generate", run, "in.txt")
        assert problem_of(done) == "", kind
        assert done.returncode == 2, kind
        assert str(run) in done.stderr


@pytest.mark.parametrize("value", ["odd", None, [7]])
def test_damaged_settings_of_a_forecaster_are_one_message(
    value: object, run_of_task: Callable[[str], Path], tmp_path: Path, kit_here: RunKit
) -> None:
    run = Path(shutil.copytree(run_of_task("forecasting"), tmp_path / "run"))
    file = run / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "forecasting": value}))
    for command in (["eval", run], ["push", run, "owner/name", "--dry-run"]):
        done = kit_here(*command)
        assert done.returncode == 2, done.stderr
        assert "config.json of the model has" in done.stderr
