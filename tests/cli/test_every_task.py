"""Every command works on a run of every task, or names the command to use instead."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import RunKit
from support.recipes import RECIPES
from support.repositories import prove_here
from support.runs import results

import kit.sharing.proof
from kit.cli import COMMANDS

pytestmark = pytest.mark.figures

GENERATES = {"translation", "causal_lm", "instruction_tuning", "captioning", "dialogue"}
INPUTS = {
    "masked_lm": ("new.jsonl", '{"text": "the [MASK] method and [MASK]"}\n'),
    "classification": ("new.txt", "3 May 1984\n"),
    "tagging": ("new.conll", "3\nMay\n1984\n"),
    "question_answering": ("new.jsonl", '{"question": "When?", "context": "On 3 May 1984 it rained."}\n'),
    "forecasting": ("new.jsonl", json.dumps({"values": [[0.1, 0.2]] * 12}) + "\n"),
}
"""Rows to predict, by task."""
RANKED = {"classification": "top_labels", "question_answering": "top_answers", "masked_lm": "top_tokens"}
"""Columns of `kit predict --top-k`."""


@pytest.mark.parametrize("task", RECIPES)
def test_every_command(
    task: str, run_of_task: Callable[[str], Path], kit_here: RunKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of_task(task)

    def succeed(*arguments: object) -> str:
        done = kit_here(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refuse(command: str, *arguments: object) -> None:
        """The message names another command, which exists."""
        done = kit_here(command, *arguments)
        named = done.stderr.rpartition("use `kit ")[2].partition("`")[0]
        assert done.returncode == 2, done.stdout
        assert named in set(COMMANDS) - {command}, done.stderr

    assert json.loads(succeed("eval", run, "--json")) == results(run)["test"]
    assert len(succeed("plot", run, "--output", "plots").splitlines()) > 0
    assert "10 bootstrap samples" in succeed("compare", run, run, "--samples", 10)
    assert "failed" not in succeed("verify", run)

    # tests of its own start the process without kit, which takes seconds
    monkeypatch.setattr(kit.sharing.proof, "run_standalone", prove_here)
    assert "config.json" in succeed("push", run, "owner/name", "--dry-run")

    name, text = INPUTS.get(task, ("new.txt", "3 May 1984\n"))
    (tmp_path / name).write_text(text, encoding="utf-8")
    if task in GENERATES:
        assert len(succeed("generate", run, name).splitlines()) == 1
        refuse("predict", run, name)
    else:
        assert len(succeed("predict", run, name).splitlines()) == 1
        refuse("generate", run, name)
        if task in RANKED:
            assert len(json.loads(succeed("predict", run, name, "--top-k", 2))[RANKED[task]]) == 2
        else:
            assert "--top-k has no effect" in kit_here("predict", run, name, "--top-k", 2).stderr
    if task != "dialogue":
        refuse("chat", run)
    if task in ("translation", "captioning", "dialogue", "forecasting"):
        refuse("embed", run, name)
    else:
        assert len(succeed("embed", run, name).splitlines()) == len(text.splitlines())
