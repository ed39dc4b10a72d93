"""Validation is evaluated again at the end only where the final evaluation computes something else."""

from collections.abc import Callable
from typing import Any

import pytest

from kit import evaluate, train
from kit.recipe.base import Recipe
from kit.tasks.registry import task_class


@pytest.mark.parametrize(
    ("task", "overrides", "calls"),
    [
        ("question_answering", ["eval.steps=6"], 3),  # steps 6 and 12, and test
        ("classification", [], 4),  # the final evaluation adds figures by label
        ("masked_lm", ["eval.steps=0"], 2),
        ("translation", ["eval.num_beams=1"], 3),
        ("translation", ["eval.num_beams=2"], 4),  # validation again with the final search
        ("forecasting", [], 3),  # the final evaluation adds baselines
        ("causal_lm", ["eval.average=2", "train.save_steps=4"], 4),  # the mean of checkpoints
    ],
)
def test_validation_is_evaluated_again_only_for_something_else(
    task: str, overrides: list[str], calls: int, make_recipe: Callable[..., Recipe], tmp_path: Any, monkeypatch: Any
) -> None:
    kind, evaluated = task_class(task), []
    original = kind.evaluate

    def count(self: Any, *arguments: Any, final: bool = True) -> Any:
        evaluated.append(final)
        return original(self, *arguments, final=final)

    monkeypatch.setattr(kind, "evaluate", count)
    run = train(make_recipe(task, overrides=overrides), tmp_path / "run", quiet=True)
    assert len(evaluated) == calls
    again = evaluate(run.folder, "validation").figures
    assert again.keys() == run.results["validation"].keys()
    for name in (name for name, value in again.items() if isinstance(value, int | float)):
        assert run.results["validation"][name] == pytest.approx(again[name], rel=1e-5)


@pytest.mark.parametrize("task", ["classification", "forecasting", "question_answering"])
def test_examples_of_validation_are_printed_once(
    task: str, make_recipe: Callable[..., Recipe], tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """The last evaluation of training and the final one have the same predictions, whatever figures the latter adds."""
    steps = ["eval.steps=4", "train.max_steps=4", "eval.examples=2"]
    train(make_recipe(task, overrides=steps), tmp_path / "run")
    printed = "".join(capfd.readouterr())
    of_step, of_validation = printed.index("step 4: "), printed.index("validation: loss")
    assert printed[of_step:of_validation].count("\n    ") == 2
    assert printed[of_validation : printed.find("test: loss")].count("\n    ") == 0
