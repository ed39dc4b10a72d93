"""What docs/guides/inference.md states about `transformers.pipeline` where kit is installed.

`test_pipelines.py` and `tests/sharing/test_standalone_systems.py` have the sentences about processes without kit.
"""

from pathlib import Path
from typing import Any

import pytest
from support.pretrained_models import FAMILIES
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers import pipeline as stock_pipeline
from transformers.pipelines import check_task

from kit import pipeline, register
from kit.pretrained.loading import quiet_transformers

TASKS = ("translation", "summarization", "text2text-generation")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kit's classes are registered, and a question on the terminal is a failure."""
    register()
    monkeypatch.setattr("builtins.input", lambda text="": pytest.fail(f"asked: {text}"))


def code_of(pipe: Any) -> tuple[str, str]:
    """The packages of the classes of a pipeline and of its model."""
    pipeline_package, model_package = type(pipe).__module__, type(pipe.model).__module__
    return pipeline_package.split(".")[0], model_package.split(".")[0]


def test_kit_runs_its_own_code(trained: Path) -> None:
    assert code_of(pipeline("translation", trained / "model")) == ("kit", "kit")


def test_with_trust_transformers_runs_the_pipeline_of_the_folder(trained: Path) -> None:
    pipe = stock_pipeline("translation", str(trained / "model"), trust_remote_code=True)
    assert code_of(pipe)[0] == "transformers_modules"


def test_a_loaded_model_needs_no_trust(trained: Path) -> None:
    network = AutoModelForSeq2SeqLM.from_pretrained(trained / "model")
    tokenizer = AutoTokenizer.from_pretrained(trained / "model")
    pipe = stock_pipeline("translation", network, tokenizer=tokenizer)
    assert code_of(pipe) == ("kit", "kit")
    assert pipe("May 5, 2030") == pipeline("translation", trained)("May 5, 2030")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("trust", [{}, {"trust_remote_code": False}])
def test_a_folder_that_lists_its_pipelines_is_refused_without_trust(
    task: str, trust: dict[str, bool], trained: Path
) -> None:
    with pytest.raises(ValueError, match="set the option `trust_remote_code=True`"):
        stock_pipeline(task, str(trained / "model"), **trust)


@pytest.mark.parametrize("task", TASKS)
def test_a_folder_that_lists_no_pipelines_needs_no_trust(task: str, tmp_path: Path) -> None:
    FAMILIES["marian"]().save(tmp_path)
    assert code_of(stock_pipeline(task, str(tmp_path))) == ("kit", "transformers")


def test_transformers_maps_image_to_text_to_another_task() -> None:
    with quiet_transformers():  # its warning has an argument that its text does not take
        assert check_task("image-to-text")[0] == "image-text-to-text"
