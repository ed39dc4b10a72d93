"""The doctor: finds what is wrong when something is, and nothing when nothing is."""

import http.server
import io
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from huggingface_hub import constants
from rich.cells import cell_len
from rich.console import Console

from kit.diagnostics import doctor, self_check
from kit.diagnostics.doctor import (
    Finding,
    any_problem,
    diagnose,
    folder_findings,
    hub_findings,
    judge_requirement,
    render,
)
from kit.runs.prepare import Prepared, prepare
from kit.tasks.translation.recipe import TranslationRecipe


def versions_are(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
    monkeypatch.setattr(doctor, "installed_version", installed.get)


def printed(findings: list[Finding], width: int = 100) -> str:
    file = io.StringIO()
    Console(width=width, file=file, color_system=None).print(render(findings))
    return file.getvalue()


# ---- packages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("2.13.0", None),
        ("2.13.1+cpu", None),
        ("2.13.0rc1", "problem"),
        ("2.12.9", "problem"),
        ("2.14.0", "warning"),
        ("2.14.0.dev20260101", "warning"),
        (None, "problem"),
    ],
)
def test_versions_are_judged_by_floor_and_ceiling(
    monkeypatch: pytest.MonkeyPatch, version: str | None, status: str | None
) -> None:
    versions_are(monkeypatch, **({"torch": version} if version else {}))
    found = list(judge_requirement("torch<2.14,>=2.13"))
    assert [finding.status for finding in found] == ([] if status is None else [status])
    for finding in found:
        assert finding.topic == "torch"
        assert "pip install 'torch" in finding.remedy


def test_packages_for_extras_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    requirement = 'tensorboard<3,>=2.20; extra == "tensorboard"'
    versions_are(monkeypatch)
    assert list(judge_requirement(requirement)) == []
    versions_are(monkeypatch, tensorboard="1.0", pytest="1.0")
    assert [finding.topic for finding in judge_requirement(requirement)] == ["tensorboard"]
    assert list(judge_requirement('pytest>=9; extra == "dev"')) == []


def test_requirements_for_other_systems_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions_are(monkeypatch)
    assert list(judge_requirement('colorama>=1; sys_platform == "nowhere"')) == []


def test_all_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    versions_are(monkeypatch, torch="2.13.0", rich="9.0")
    found = list(doctor.package_findings(["torch>=2.13,<2.14", "rich>=15,<16", "Babel>=2.18,<3"]))
    assert {finding.topic: finding.status for finding in found} == {
        "versions": "ok",
        "rich": "problem",
        "Babel": "problem",
    }
    assert "all within" not in found[0].text
    (fine,) = doctor.package_findings(["torch>=2.13,<2.14"])
    assert "all within" in fine.text


def test_kit_without_its_package_is_told() -> None:
    (found,) = doctor.package_findings(None)
    assert found.status == "warning"
    assert "transformers" in found.text


def test_trackers_are_told_but_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions_are(monkeypatch, wandb="0.20")
    (found,) = doctor.tracker_findings()
    assert found.status == "ok"
    assert "wandb 0.20" in found.text
    assert "trackio not installed" in found.text


def test_a_missing_package_does_not_stop_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    found = diagnose(self_check=False)
    (missing,) = [finding for finding in found if finding.topic == "devices"]
    assert missing.status == "problem"
    assert "psutil" in missing.text
    assert any(finding.topic == "current folder" for finding in found)


# ---- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "cores", "status"), [(2, 2, "ok"), (4, 8, "ok"), (1, 8, "warning"), (8, 2, "warning")]
)
def test_threads_that_do_not_suit_the_cores(
    monkeypatch: pytest.MonkeyPatch, threads: int, cores: int, status: str
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(doctor, "available_cores", lambda: cores)
    found = next(finding for finding in doctor.device_findings() if finding.topic == "cpu")
    assert found.status == status
    assert bool(found.remedy) == (status == "warning")


@pytest.mark.parametrize(("free", "status"), [(2**30, "warning"), (2**33, "ok")])
def test_memory(monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free, total=2**35))
    found = next(finding for finding in doctor.device_findings() if finding.topic == "memory")
    assert found.status == status
    assert "of 32.0 GB" in found.text


def test_gpus_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        def __init__(self, number: int): ...
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        get_device_name=lambda number: f"GPU {number}",
        mem_get_info=lambda number: ((3 - 2 * number) * 2**30, 2**34),
        device=Device,
        is_bf16_supported=lambda including_emulation: False,
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    roomy, full = doctor.gpu_findings()
    assert (roomy.topic, roomy.status) == ("gpu 0", "ok")
    assert "3.0 of 16.0 GB" in roomy.text
    assert "no bf16" in roomy.text
    assert full.status == "warning"


def test_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert [finding.status for finding in doctor.gpu_findings()] == ["ok"]
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert [finding.status for finding in doctor.gpu_findings()] == ["warning"]


# ---- Hub and disk ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A Hub on this machine; `status` is what it answers, `requests` what it was asked."""
    state = SimpleNamespace(status=200, requests=[])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(self.path)
            self.send_response(state.status)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_hub_is_asked_only_on_request(hub: SimpleNamespace) -> None:
    (found,) = hub_findings(check=False)
    assert "not tried" in found.text
    assert hub.requests == []
    (found,) = hub_findings(check=True)
    assert found.status == "ok"
    assert len(hub.requests) == 1
    hub.status = 503
    (found,) = hub_findings(check=True)
    assert found.status == "warning"
    assert "503" in found.text or "Unavailable" in found.text


def test_an_unreachable_hub_is_a_warning(hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    (found,) = hub_findings(check=True)
    assert found.status == "warning"
    assert found.remedy


def test_offline_means_offline(hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "https://name:password@mirror.example/path")
    (found,) = hub_findings(check=True)
    assert hub.requests == []
    assert "HF_HUB_OFFLINE=1" in found.text
    assert "HF_ENDPOINT=mirror.example" in found.text
    assert "password" not in found.text


def test_folders_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    found = list(
        folder_findings({"current folder": file, "cache of data": file / "below", "new": tmp_path / "a" / "b"})
    )
    assert [finding.status for finding in found] == ["problem", "problem", "ok"]
    assert "HF_HOME" in found[1].remedy
    assert list(tmp_path.iterdir()) == [file]  # nothing was made


@pytest.mark.parametrize(("free", "status"), [(2**28, "problem"), (2**31, "warning"), (2**34, "ok")])
def test_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    (found,) = folder_findings({"current folder": tmp_path})
    assert found.status == status
    assert bool(found.remedy) == (status != "ok")


def test_caches_are_found_where_they_were_moved_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "data"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert doctor.folders()["cache of data"] == tmp_path / "data"
    assert doctor.folders()["cache of models"] == tmp_path / "hub"


# ---- the report ------------------------------------------------------------------------------------------------------


def test_only_problems_are_problems() -> None:
    fine, odd, bad = Finding("a", "ok", ""), Finding("b", "warning", ""), Finding("c", "problem", "")
    assert not any_problem([])
    assert not any_problem([fine, odd])
    assert any_problem([fine, bad, odd])


def test_findings_are_shown_with_their_remedies() -> None:
    text = printed([Finding("disk [x]", "problem", "[bold]full\x1b " + "long " * 40, "make room")], width=80)
    assert "✗ disk [x] [bold]full\\x1b" in text
    assert "→ make room" in text
    assert max(map(cell_len, text.splitlines())) <= 80


def test_without_self_check_nothing_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Iterator[Finding]:
        raise AssertionError("the self-check was not asked for")

    monkeypatch.setattr(doctor, "run_self_check", refuse)
    topics = {finding.topic for finding in diagnose(self_check=False)}
    assert {"versions", "trackers", "cpu", "memory", "hub", "current folder", "cache of models"} <= topics


# ---- the self-check --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(TranslationRecipe.model_validate(self_check.RECIPE))


def test_a_healthy_machine_passes_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    # on a busy machine two more processes take their time to start
    monkeypatch.setattr(self_check, "PATIENCE", 240.0)
    found = {finding.topic: finding for finding in self_check.self_check_findings()}
    assert next(iter(found)) == "learning on cpu"
    assert {"save and load", "2 processes"} <= found.keys()
    assert [finding for finding in found.values() if finding.status != "ok"] == []


def test_a_model_that_does_not_learn_is_a_problem(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda optimizer: None)
    found = self_check.learning(prepared, torch.device("cpu"))
    assert found.status == "problem"


def test_a_loss_that_is_no_number_is_a_problem(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "backward", lambda *arguments: torch.tensor(float("nan")))
    assert self_check.learning(prepared, torch.device("cpu")).status == "problem"


def test_weights_that_change_on_the_way_to_disk_are_a_problem(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = self_check.AutoModelForSeq2SeqLM.from_pretrained

    def load_wrongly(folder: Path) -> Any:
        model = load(folder)
        with torch.no_grad():
            model.lm_head.bias[0] += 1e-6
        return model

    assert self_check.round_trip(prepared).status == "ok"
    monkeypatch.setattr(self_check.AutoModelForSeq2SeqLM, "from_pretrained", load_wrongly)
    found = self_check.round_trip(prepared)
    assert found.status == "problem"
    assert "model" in found.text


def test_devices_must_agree_up_to_rounding(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert self_check.agreement(prepared, cpu).status == "ok"
    results = iter([torch.zeros(2), torch.tensor([0.0, 0.01])])
    monkeypatch.setattr(self_check, "logits", lambda model, batch: next(results))
    assert self_check.agreement(prepared, cpu).status == "problem"


def test_gradients_must_be_equal() -> None:
    one = {"a": torch.tensor([1.0, -2.0], dtype=torch.float64), "b": torch.ones(1, dtype=torch.float64)}
    assert self_check.compare_gradients(one, {name: grad * (1 + 1e-12) for name, grad in one.items()}).status == "ok"
    for wrong in (
        {name: 2 * grad for name, grad in one.items()},
        {**one, "b": one["b"] + 1e-6},
        {"a": one["a"]},
        {**one, "a": one["a"] * float("nan")},
    ):
        assert self_check.compare_gradients(one, wrong).status == "problem"


def test_processes_that_do_not_come_back_are_told(prepared: Prepared) -> None:
    before = psutil.Process().children(recursive=True)  # another test may have left Python's resource tracker
    found = self_check.shared_step(prepared, patience=0.2)
    assert found.status == "warning"
    assert "did not finish" in found.text
    started = [child for child in psutil.Process().children(recursive=True) if child not in before]
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []


def test_processes_in_groups_of_their_own_are_ended_too() -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        child = psutil.Process(int(launcher.stdout.readline()))
        assert child.is_running()
        self_check.end_with_children(launcher)
        child.wait(timeout=30)
        assert launcher.returncode is not None


@pytest.mark.parametrize(
    ("told", "code", "expected"),
    [
        ("Traceback\nOSError: no such address", 1, "OSError: no such address"),
        ("", 3, "they ended with exit code 3"),
        ("a warning that is no error: no Error at all", 0, None),
    ],
)
def test_processes_that_fail_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, code: int, expected: str | None
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{told}\nEND\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert self_check.run_processes(tmp_path, patience=60) == expected


def test_without_gloo_processes_are_not_checked(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    found = self_check.shared_step(prepared)
    assert found.status == "warning"
    assert "gloo" in found.text


def test_a_check_that_breaks_is_a_problem_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Finding:
        raise RuntimeError("no such kernel\nmore lines")

    monkeypatch.setattr(self_check, "learning", broken)
    monkeypatch.setattr(self_check, "shared_step", lambda prepared: Finding("2 processes", "ok", ""))
    found = {finding.topic: finding for finding in self_check.self_check_findings()}
    assert found["learning on cpu"].status == "problem"
    assert found["learning on cpu"].text == "failed with RuntimeError: no such kernel"
    assert found["save and load"].status == "ok"


def test_data_that_cannot_be_made_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(self_check.RECIPE["data"], "path", "builtin:nothing")
    (found,) = self_check.self_check_findings()
    assert found.status == "problem"
    assert "nothing" in found.text


# ---- kit doctor --train ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("several", "status"),
    [
        ([2.0, 1.0], "ok"),
        ([2.0, 1.0 + 1e-8], "ok"),
        ([2.0, 1.001], "problem"),
        ([2.0], "problem"),
        ([2.0, float("nan")], "problem"),
    ],
)
def test_losses_of_processes_must_be_equal(several: list[float], status: str) -> None:
    from kit.diagnostics.train_check import compared

    found = compared("train", [2.0, 1.0], several, "processes: 2, on cpu by gloo")
    assert found.status == status
    assert "on cpu by gloo" in found.text


def test_a_training_that_fails_is_a_problem_with_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    from kit.diagnostics import train_check

    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    (found,) = train_check.train_findings(2)
    assert found.status == "problem"
    assert "it ended with exit code 1: without a word" in found.text


@pytest.mark.soak
def test_one_process_two_and_divided_weights_agree_here() -> None:
    from kit.diagnostics.train_check import train_findings

    found = list(train_findings(2))
    assert [finding.status for finding in found] == ["ok", "ok", "ok"], found
    assert "on cpu by gloo, each with all weights (DDP)" in found[1].text
    assert "weights divided among them (FSDP2)" in found[2].text
