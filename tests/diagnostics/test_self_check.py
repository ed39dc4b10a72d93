"""The self-check of `kit doctor` passes on a healthy machine and reports every defect that it looks for."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kit.diagnostics import self_check, train_check
from kit.diagnostics.doctor import Finding
from kit.recipe.catalog import shipped_recipes
from kit.runs.prepare import Prepared, prepare
from kit.tasks.registry import load_recipe

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(load_recipe(shipped_recipes()[train_check.RECIPE], self_check.OVERRIDES))


@pytest.mark.soak
def test_a_healthy_machine_passes_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    # on a busy machine, two processes take long to start
    monkeypatch.setattr(train_check, "SELF_CHECK_TIMEOUT", 240.0)
    findings = {finding.topic: finding for finding in self_check.self_check_findings()}
    assert next(iter(findings)) == "learning on cpu"
    assert {"save and load", "2 processes"} <= findings.keys()
    assert [finding for finding in findings.values() if finding.status != "ok"] == []
    assert "processes: 2, on cpu by gloo" in findings["2 processes"].text


def test_a_model_that_does_not_learn_is_a_problem(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda optimizer: None)
    assert self_check.learning(prepared, CPU).status == "problem"


def test_a_loss_of_nan_is_a_problem(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "backward", lambda *arguments: torch.tensor(float("nan")))
    assert self_check.learning(prepared, CPU).status == "problem"


def test_weights_that_change_when_saved_are_a_problem(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    load = self_check.AutoModelForSeq2SeqLM.from_pretrained

    def load_wrongly(folder: Path, **options: Any) -> Any:
        model = load(folder, **options)
        with torch.no_grad():
            model.lm_head.bias[0] += 1e-6
        return model

    assert self_check.round_trip(prepared).status == "ok"
    monkeypatch.setattr(self_check.AutoModelForSeq2SeqLM, "from_pretrained", load_wrongly)
    finding = self_check.round_trip(prepared)
    assert finding.status == "problem"
    assert "model" in finding.text


def test_devices_must_agree_up_to_rounding(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_check.agreement(prepared, CPU).status == "ok"
    results = iter([torch.zeros(2), torch.tensor([0.0, 0.01])])
    monkeypatch.setattr(self_check, "logits", lambda model, batch: next(results))
    assert self_check.agreement(prepared, CPU).status == "problem"


def test_a_check_that_raises_is_a_problem_and_the_next_ones_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Finding:
        raise RuntimeError("no such kernel\nmore lines")

    monkeypatch.setattr(self_check, "learning", broken)
    monkeypatch.setattr(self_check, "self_check_processes", lambda: Finding("2 processes", "ok", ""))
    findings = {finding.topic: finding for finding in self_check.self_check_findings()}
    assert findings["learning on cpu"].status == "problem"
    assert findings["learning on cpu"].text == "failed with RuntimeError: no such kernel"
    assert findings["save and load"].status == "ok"


def test_data_that_cannot_be_prepared_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "OVERRIDES", [*self_check.OVERRIDES, "data.path=builtin:nothing"])
    (finding,) = self_check.self_check_findings()
    assert finding.status == "problem"
    assert "nothing" in finding.text
