"""Callbacks, custom metrics, and several runs in one Python program."""

import json
import logging
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
import transformers
from matplotlib.image import imread
from support.processes import in_processes
from support.runs import losses, results, weight_bytes

import kit
from kit import Callback, KitError, TrainingState, register_metric, train
from kit.evaluation.metrics import METRICS
from kit.plots.saving import save_figure
from kit.pretrained.folder import ModelFolder
from kit.recipe.base import Recipe
from kit.runs.finished import FinishedRun


class Recorder(Callback):
    """Writes a line for each call, and draws random numbers."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def _write(self, *call: Any) -> None:
        random.random(), np.random.rand(), torch.rand(3)
        with self.file.open("a") as file:
            file.write(json.dumps(call) + "\n")

    def on_step(self, state: TrainingState) -> None:
        self._write("step", state.step, state.total_steps, state.epoch, state.learning_rate, state.loss)

    def on_evaluate(self, state: TrainingState, metrics: Mapping[str, Any]) -> None:
        self._write("evaluate", state.step, metrics["loss"])

    def on_save(self, state: TrainingState, checkpoint: Path) -> None:
        assert (checkpoint / "checksums.json").is_file()
        self._write("save", state.step, checkpoint.name)


def calls(file: Path) -> list[list[Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(autouse=True)
def registered_metrics() -> Iterator[None]:
    """A metric that a test registers does not outlive it."""
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)


def test_callbacks_see_every_step_evaluation_and_checkpoint(tiny_recipe: Path, tmp_path: Path) -> None:
    run = train(tiny_recipe, tmp_path / "run", callbacks=[Recorder(tmp_path / "calls")], quiet=True)
    recorded = calls(tmp_path / "calls")
    entries = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [entry for entry in entries if "train_loss" in entry]
    assert [call[:3] for call in recorded if call[0] == "step"] == [["step", number, 12] for number in range(1, 13)]
    assert [call[3:] for call in recorded if call[0] == "step"] == [
        [pytest.approx(entry[name], abs=1e-4) for name in ("epoch", "learning_rate", "train_loss")] for entry in steps
    ]
    evaluated = [[entry["step"], entry["validation"]["loss"]] for entry in entries if "validation" in entry]
    assert [call[1:] for call in recorded if call[0] == "evaluate"] == evaluated
    # step 12 evaluates and then saves; nothing is saved before or after that
    assert [call[1:] for call in recorded if call[0] == "save"] == [[n, f"step-{n}"] for n in (4, 6, 8, 12)]
    assert recorded.index(["save", 12, "step-12"]) == len(recorded) - 1

    without = train(tiny_recipe, tmp_path / "without", quiet=True)
    assert weight_bytes(run.folder) == weight_bytes(without.folder)


@pytest.mark.soak
def test_an_exception_in_a_callback_ends_the_run_which_then_resumes(tiny_recipe: Path, tmp_path: Path) -> None:
    class Impatient(Callback):
        def on_step(self, state: TrainingState) -> None:
            if state.step == 7:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tiny_recipe, tmp_path / "run", callbacks=[Impatient()], quiet=True)
    resumed = train(tiny_recipe, tmp_path / "run", resume=True, quiet=True, callbacks=[Recorder(tmp_path / "calls")])
    assert [call[1] for call in calls(tmp_path / "calls") if call[0] == "step"] == list(range(7, 13))
    whole = train(tiny_recipe, tmp_path / "whole", quiet=True)
    assert weight_bytes(resumed.folder) == weight_bytes(whole.folder)
    with pytest.raises(KitError, match=r"expected instances of subclasses of kit\.Callback, got <class"):
        train(tiny_recipe, tmp_path / "other", callbacks=[Callback])  # type: ignore[list-item]


def shorter(predictions: list[str], references: list[str]) -> float:
    """A custom metric: the share of predictions that are shorter than their references."""
    pairs = zip(predictions, references, strict=True)
    return float(np.mean([len(prediction) < len(reference) for prediction, reference in pairs]))


def train_observed(recipe: Path, overrides: list[str], folder: Path) -> None:
    register_metric("shorter", shorter, greater_is_better=False)
    recorder = Recorder(folder / f"calls-{torch.distributed.get_rank() if torch.distributed.is_initialized() else 0}")
    train(recipe, folder / "run", overrides=overrides, callbacks=[recorder], quiet=True)


def test_callbacks_and_metrics_work_over_two_processes(tiny_recipe: Path, tmp_path: Path) -> None:
    overrides = ["train.dtype=float64", "model.dropout=0", "eval.metrics=[shorter]", "train.micro_batches=2"]
    overrides += ["eval.metric_for_best_model=shorter"]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    train_observed(tiny_recipe, overrides, tmp_path / "one")
    in_processes(2, train_observed, tiny_recipe, overrides, tmp_path / "two")
    assert results(tmp_path / "two" / "run")["train"]["processes"] == 2
    assert not (tmp_path / "two" / "calls-1").exists()
    single, parallel = (calls(tmp_path / name / "calls-0") for name in ("one", "two"))
    assert [call[:3] for call in single if call[0] == "step"] == [call[:3] for call in parallel if call[0] == "step"]
    # the loss of the whole step, and not of the main process's part of it
    assert [call[5] for call in parallel if call[0] == "step"] == pytest.approx(
        [call[5] for call in single if call[0] == "step"], rel=1e-9
    )
    assert [call[5] for call in parallel if call[0] == "step"] == pytest.approx(
        losses(tmp_path / "two" / "run"), rel=1e-6
    )
    assert [call[1] for call in parallel if call[0] == "evaluate"] == [6, 12]
    figures = [results(tmp_path / name / "run")["test"]["shorter"] for name in ("one", "two")]
    assert figures[0] == figures[1]


def global_state() -> list[Any]:
    """What a library might change for the whole program."""
    loggers = [logging.root, *(logging.getLogger(name) for name in ("transformers", "datasets", "accelerate", "torch"))]
    return [
        random.getstate(),
        [part.tolist() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        torch.get_rng_state().tolist(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_grad_enabled(),
        dict(matplotlib.rcParams),
        matplotlib.get_backend(),
        transformers.logging.get_verbosity(),
        [(logger.level, list(logger.handlers)) for logger in loggers],
        sorted(METRICS),
    ]


def test_runs_in_one_program_do_not_affect_each_other(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    """A, B, A: another task, precision, seed, metric and model type in between change no bit of the second A."""
    register_metric("shorter", shorter)
    a = make_recipe("classification", overrides=["train.seed=3"])
    b = make_recipe("causal_lm", overrides=["train.mixed_precision=bf16", "train.seed=4", "train.max_steps=3"])
    first = train(a, tmp_path / "first", quiet=True)
    torch.manual_seed(1)
    before = global_state()
    train(b, tmp_path / "between", quiet=True, callbacks=[Callback()])
    assert global_state() == before
    second = train(a, tmp_path / "second", quiet=True)
    assert weight_bytes(first.folder) == weight_bytes(second.folder)
    assert {**first.results, "train": None} == {**second.results, "train": None}
    assert losses(first.folder) == losses(second.folder)


def test_a_finished_run_has_its_model_and_tokenizer(trained: Path) -> None:
    run = train(trained)
    assert (run.folder, run.already_finished) == (trained, True)
    assert not run.model.training
    assert run.model is run.model
    weights = {name: tensor.numpy().tobytes() for name, tensor in run.model.state_dict().items()}
    assert {name: weights[name] for name in weight_bytes(trained)} == weight_bytes(trained)
    inputs = run.tokenizer(["3 maj 1984"], return_tensors="pt")
    outputs = run.model.generate(**inputs, max_new_tokens=12)
    expected = kit.pipeline("translation", model=trained)(["3 maj 1984"], max_new_tokens=12)
    target = ModelFolder.open(trained).tokenizers.target  # this model has two vocabularies
    assert target.batch_decode(outputs, skip_special_tokens=True) == [expected[0]["translation_text"]]


@pytest.mark.figures
def test_a_finished_run_draws_its_plots_again(trained: Path, tmp_path: Path) -> None:
    """Figures with their data, which look as the saved images do, whether or not these still exist."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.rmtree(run / "plots")
    figures = FinishedRun(run, results(run)).plots()
    assert figures.keys() == {path.stem for path in (trained / "plots").glob("*.png")}
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [entry["train_loss"] for entry in logged if "train_loss" in entry]
    assert list(figures["loss"].axes[0].lines[0].get_ydata()) == losses
    for name, figure in figures.items():
        drawn = imread(save_figure(figure, tmp_path / f"{name}.png"))
        assert np.allclose(drawn, imread(trained / "plots" / f"{name}.png"), atol=2 / 255), name
