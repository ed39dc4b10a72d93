"""The expected duration comes from steps whose gradients are discarded: the run does not change."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs import losses, weight_bytes

from kit import train
from kit.recipe.base import Recipe
from kit.training import trial


@pytest.mark.parametrize(
    ("task", "overrides"),
    [
        ("translation", []),  # with dropout
        ("captioning", []),  # the image encoder keeps running means
        ("causal_lm", ["model={type: rnn_lm, hidden_size: 16, embedding_size: 8}", "data.carry_state=true"]),
    ],
)
def test_trial_changes_nothing(
    task: str,
    overrides: list[str],
    make_recipe: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    recipe = make_recipe(task, overrides=["train.max_steps=6", "eval.steps=0", *overrides])
    plain = train(recipe, tmp_path / "plain").folder
    assert "expected duration" not in capfd.readouterr().err  # a short run
    monkeypatch.setattr(trial, "FEWEST_STEPS", 1)
    timed = train(recipe, tmp_path / "timed").folder
    lines = capfd.readouterr().err.splitlines()
    assert next(line for line in lines if "expected duration" in line or "step 1/6" in line).startswith("expected")
    assert losses(timed) == losses(plain)
    assert weight_bytes(timed) == weight_bytes(plain)
