"""One process, two, and two with two parts each: the same training, whatever the task."""

from pathlib import Path

import pytest
from process_recipes import NO_DROPOUT, assert_same_weights, losses, results, write_recipe
from processes import in_processes

from kit import load_recipe, train

EXACT = ["train.dtype=float64", "eval.steps=0"]


@pytest.mark.parametrize("kind", ["translation", "causal_lm", "classification"])
def test_one_process_two_and_two_with_two_parts_are_equal_in_float64(kind: str, tmp_path: Path) -> None:
    path, same = write_recipe(tmp_path, kind), [*EXACT, *NO_DROPOUT[kind]]
    one = train(load_recipe(path, same), tmp_path / "one").folder
    for parts in (2, 4):
        several = tmp_path / f"in_{parts}"
        in_processes(2, train, load_recipe(path, [*same, f"train.micro_batches={parts}"]), several)
        assert results(several)["train"]["processes"] == 2
        assert losses(several) == pytest.approx(losses(one), rel=1e-9)
        assert_same_weights(one, several, 1e-9)
    assert len(losses(one)) == 12


def test_masks_are_those_of_the_parts_whoever_computes_them(tmp_path: Path) -> None:
    """With dropout and masking, which follow the number of a part, two processes do what one does in as many parts; and
    three parts, of which one process has two, are no different."""
    path = write_recipe(tmp_path, "masked_lm")
    for parts in (2, 3):
        recipe = load_recipe(path, [*EXACT, f"train.micro_batches={parts}", "train.max_steps=6"])
        one, two = train(recipe, tmp_path / f"one_{parts}").folder, tmp_path / f"two_{parts}"
        in_processes(2, train, recipe, two)
        assert losses(two) == pytest.approx(losses(one), rel=1e-9)
        assert_same_weights(one, two, 1e-9)


def test_processes_that_do_not_know_of_each_other_are_noticed(
    tmp_path: Path, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under torchrun on a CPU, where Accelerate has to be told that there is no GPU."""
    from kit import RunError

    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RunError, match="3 processes were asked for, but Accelerate runs 1"):
        train(load_recipe(tiny_recipe), tmp_path / "run")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(RunError, match="DeepSpeed would take the steps"):
        train(load_recipe(tiny_recipe), tmp_path / "run")
    assert not (tmp_path / "run").exists()
