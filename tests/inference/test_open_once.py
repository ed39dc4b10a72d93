"""A command opens its model once, and runs it on the device of training."""

from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from support.labeling_runs import trained as trained_labels

import kit.pretrained.folder
import kit.pretrained.loading
from kit.errors import KitError
from kit.inference.generate import text_predictor
from kit.inference.predict import predict_file
from kit.prediction.options import GenerateOptions, PlotOptions, reject_unsupported
from kit.prediction.rows import PredictOptions
from kit.system.console import Reporter
from kit.system.device import default_device
from kit.tasks.families.seq2seq.inference import Translator


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models whose configuration was read."""
    names: list[str] = []
    read = kit.pretrained.folder._read_config

    def count(name: Any, *arguments: Any) -> Any:
        names.append(str(name))
        return read(name, *arguments)

    monkeypatch.setattr(kit.pretrained.folder, "_read_config", count)
    return names


def test_each_command_reads_the_configuration_once(
    trained: Path, tmp_path: Path, kit_here: RunKit, opened: list[str]
) -> None:
    (tmp_path / "in.txt").write_text("3 May 2001\n")
    labels = trained_labels(tmp_path / "labels", "classification").folder
    (tmp_path / "rows.jsonl").write_text('{"text": "3 May 2001"}\n')
    for arguments in (
        ("generate", trained, "in.txt"),
        ("plot", trained, "--sentence", "3 May", "--output", "map.png"),
        ("predict", labels, "rows.jsonl"),
        ("embed", labels, "in.txt"),
    ):
        opened.clear()
        done = kit_here(*arguments)
        assert done.returncode == 0, done.stderr
        assert opened == [str(arguments[1])], arguments[0]


def test_a_command_for_other_models_names_the_right_one(trained: Path, tmp_path: Path, kit_here: RunKit) -> None:
    (tmp_path / "in.txt").write_text("3 May 2001\n")
    done = kit_here("predict", trained, "in.txt")
    assert done.returncode == 2
    assert "use `kit generate`" in done.stderr
    labels = trained_labels(tmp_path / "labels", "classification").folder
    done = kit_here("generate", labels, "in.txt")
    assert done.returncode == 2
    assert "use `kit predict`" in done.stderr
    with pytest.raises(KitError, match="--horizon has no effect on"):
        predict_file(labels, PredictOptions(tmp_path / "in.txt", horizon=3), None, Reporter(quiet=True))


def test_only_options_that_differ_from_their_default_are_rejected() -> None:
    reject_unsupported(GenerateOptions(), (), "a model")
    reject_unsupported(PlotOptions(head="1"), {"head"}, "a model")
    with pytest.raises(KitError, match=r"--split-sentences has no effect on a model\. Leave it out"):
        reject_unsupported(GenerateOptions(split_sentences="de"), {"attention"}, "a model")


def test_inference_uses_the_device_of_training(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import PartialState

    assert default_device() == PartialState().device
    monkeypatch.setattr(kit.pretrained.loading, "default_device", lambda: "meta")
    assert text_predictor(trained, GenerateOptions()).model.device.type == "meta"
    assert Translator(trained, device="cpu").model.device.type == "cpu"


def test_the_environment_variable_of_accelerate_selects_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[bool] = []

    class State:
        def __init__(self, cpu: bool):
            requested.append(cpu)
            self.device = "cpu"

    monkeypatch.setattr("accelerate.PartialState", State)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    default_device()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    default_device()
    assert requested == [False, True]
