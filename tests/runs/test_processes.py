"""One process, two, and two with two micro-batches each train the same model, for every task."""

from pathlib import Path

import pytest
from support.processes import in_processes
from support.recipes import NO_DROPOUT, write_recipe
from support.runs import assert_same_weights, losses, results

from kit import load_recipe, train
from kit.runs.train import build_accelerator, describe_processes

EXACT = ["train.dtype=float64", "eval.steps=0"]


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("classification", 4),
        pytest.param("translation", 2, marks=pytest.mark.soak),
        pytest.param("causal_lm", 4, marks=pytest.mark.soak),
    ],
)
def test_two_processes_equal_one_in_float64(kind: str, parts: int, tmp_path: Path) -> None:
    """One process that computes a step at once, and two that compute it in one or two parts each; by the command line,
    for longer and with each number of parts, `make soak` does it."""
    path, same = write_recipe(tmp_path, kind), [*EXACT, *NO_DROPOUT[kind]]
    single, parallel = train(load_recipe(path, same), tmp_path / "one").folder, tmp_path / "two"
    in_processes(2, train, load_recipe(path, [*same, f"train.micro_batches={parts}"]), parallel)
    assert results(parallel)["train"]["processes"] == 2
    assert len(losses(single)) == 12
    assert losses(parallel) == pytest.approx(losses(single), rel=1e-9)
    assert_same_weights(single, parallel, 1e-9)


def test_masks_follow_the_micro_batch_and_not_the_process(tmp_path: Path) -> None:
    """With dropout and masking, which follow the number of a part, two processes do what one does in as many parts;
    here in three, of which one process has two and the other one."""
    path = write_recipe(tmp_path, "masked_lm")
    recipe = load_recipe(path, [*EXACT, "train.micro_batches=3", "train.max_steps=6"])
    single, parallel = train(recipe, tmp_path / "one").folder, tmp_path / "two"
    in_processes(2, train, recipe, parallel)
    assert losses(parallel) == pytest.approx(losses(single), rel=1e-9)
    assert_same_weights(single, parallel, 1e-9)


def test_unconnected_processes_are_rejected(tmp_path: Path, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under torchrun on a CPU, where Accelerate needs ACCELERATE_USE_CPU."""
    from kit import RunError

    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RunError, match=r"3 processes were requested, but Accelerate runs 1\. This machine has no GPU"):
        train(load_recipe(tiny_recipe), tmp_path / "run")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(RunError, match="DeepSpeed is not supported"):
        train(load_recipe(tiny_recipe), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("WORLD_SIZE", "x", "a whole number"),
        ("LOCAL_RANK", "", "a whole number"),
        ("ACCELERATE_USE_CPU", "maybe", "true or false"),
        ("ACCELERATE_DEBUG_MODE", "", "true or false"),
    ],
)
def test_malformed_environment_variables_end_in_a_message(
    variable: str, value: str, expected: str, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate would convert them, and fail with a traceback that names no variable."""
    from kit import RunError
    from kit.system.device import default_device

    monkeypatch.setenv(variable, value)
    for command in (lambda: train(load_recipe(tiny_recipe), tmp_path / "run"), default_device):
        with pytest.raises(RunError, match=f"environment variable {variable}='{value}': expected {expected}"):
            command()
    assert not (tmp_path / "run").exists()


def test_gradient_accumulation_of_accelerate_is_rejected(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate would divide every loss by it, and kit, which has its own micro-batches, would train as with a lower
    learning rate."""
    from kit import RunError

    for value in ("4", "x"):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", value)
        with pytest.raises(RunError, match=r"ACCELERATE_GRADIENT_ACCUMULATION_STEPS.* train\.micro_batches"):
            train(load_recipe(tiny_recipe), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_single_process_of_accelerate_launch_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """`accelerate launch --cpu --num_processes 2` starts one process, without a word."""
    accelerator = build_accelerator(load_recipe("dates_rnn"))
    assert describe_processes(accelerator) == "processes: 1, on cpu"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert "use `kit train … --processes N`" in describe_processes(accelerator)
