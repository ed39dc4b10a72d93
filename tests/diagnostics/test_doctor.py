"""`kit doctor` reports what is wrong with a machine, and nothing on a healthy one."""

import http.server
import io
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from huggingface_hub import constants
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from kit.cli import app, catalog
from kit.diagnostics import doctor
from kit.diagnostics.doctor import (
    Finding,
    any_problem,
    check_requirement,
    diagnose,
    folder_findings,
    hub_findings,
    render,
)


def set_versions(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
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
def test_versions_are_checked_against_floor_and_ceiling(
    monkeypatch: pytest.MonkeyPatch, version: str | None, status: str | None
) -> None:
    set_versions(monkeypatch, **({"torch": version} if version else {}))
    findings = list(check_requirement("torch<2.14,>=2.13"))
    assert [finding.status for finding in findings] == ([] if status is None else [status])
    for finding in findings:
        assert finding.topic == "torch"
        assert "pip install 'torch" in finding.remedy


def test_packages_for_extras_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    requirement = 'tensorboard<3,>=2.20; extra == "tensorboard"'
    set_versions(monkeypatch)
    assert list(check_requirement(requirement)) == []
    set_versions(monkeypatch, tensorboard="1.0", pytest="1.0")
    assert [finding.topic for finding in check_requirement(requirement)] == ["tensorboard"]
    assert list(check_requirement('pytest>=9; extra == "dev"')) == []


def test_requirements_for_other_systems_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    set_versions(monkeypatch)
    assert list(check_requirement('colorama>=1; sys_platform == "nowhere"')) == []


def test_every_wrong_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    set_versions(monkeypatch, torch="2.13.0", rich="9.0")
    findings = list(doctor.package_findings(["torch>=2.13,<2.14", "rich>=15,<16", "Babel>=2.18,<3"]))
    assert {finding.topic: finding.status for finding in findings} == {
        "versions": "ok",
        "rich": "problem",
        "Babel": "problem",
    }
    assert "all within" not in findings[0].text
    (fine,) = doctor.package_findings(["torch>=2.13,<2.14"])
    assert "all within" in fine.text


def test_kit_that_is_not_installed_is_a_warning() -> None:
    (finding,) = doctor.package_findings(None)
    assert finding.status == "warning"
    assert "transformers" in finding.text


def test_trackers_are_listed_but_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    set_versions(monkeypatch, wandb="0.20")
    (finding,) = doctor.tracker_findings()
    assert finding.status == "ok"
    assert "wandb 0.20" in finding.text
    assert "trackio not installed" in finding.text


def test_a_missing_package_does_not_stop_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    findings = diagnose()
    (missing,) = [finding for finding in findings if finding.topic == "devices"]
    assert missing.status == "problem"
    assert "psutil" in missing.text
    assert any(finding.topic == "current folder" for finding in findings)


# ---- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "cores", "status"), [(2, 2, "ok"), (4, 8, "ok"), (1, 8, "warning"), (8, 2, "warning")]
)
def test_thread_count_that_does_not_match_the_cores(
    monkeypatch: pytest.MonkeyPatch, threads: int, cores: int, status: str
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(doctor, "available_cores", lambda: cores)
    finding = next(finding for finding in doctor.device_findings() if finding.topic == "cpu")
    assert finding.status == status
    assert bool(finding.remedy) == (status == "warning")


@pytest.mark.parametrize(("free", "status"), [(2**30, "warning"), (2**33, "ok")])
def test_memory(monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free, total=2**35))
    finding = next(finding for finding in doctor.device_findings() if finding.topic == "memory")
    assert finding.status == status
    assert "of 32.0 GB" in finding.text


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
    """A local Hub server that answers with `status` and lists the paths of its `requests`."""
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


def test_the_hub_is_contacted_only_on_request(hub: SimpleNamespace) -> None:
    (finding,) = hub_findings(check=False)
    assert "not tried" in finding.text
    assert hub.requests == []
    (finding,) = hub_findings(check=True)
    assert finding.status == "ok"
    assert len(hub.requests) == 1
    hub.status = 503
    (finding,) = hub_findings(check=True)
    assert finding.status == "warning"
    assert "503" in finding.text or "Unavailable" in finding.text


def test_an_unreachable_hub_is_a_warning(hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    (finding,) = hub_findings(check=True)
    assert finding.status == "warning"
    assert finding.remedy


def test_offline_mode_sends_no_request(hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "https://name:password@mirror.example/path")
    (finding,) = hub_findings(check=True)
    assert hub.requests == []
    assert "HF_HUB_OFFLINE=1" in finding.text
    assert "HF_ENDPOINT=mirror.example" in finding.text
    assert "password" not in finding.text


def test_folders_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    findings = list(
        folder_findings({"current folder": file, "cache of data": file / "below", "new": tmp_path / "a" / "b"})
    )
    assert [finding.status for finding in findings] == ["problem", "problem", "ok"]
    assert "HF_HOME" in findings[1].remedy
    assert list(tmp_path.iterdir()) == [file]  # nothing was created


@pytest.mark.parametrize(("free", "status"), [(2**28, "problem"), (2**31, "warning"), (2**34, "ok")])
def test_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    (finding,) = folder_findings({"current folder": tmp_path})
    assert finding.status == status
    assert bool(finding.remedy) == (status != "ok")


def test_caches_follow_their_environment_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "data"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert doctor.folders()["cache of data"] == tmp_path / "data"
    assert doctor.folders()["cache of models"] == tmp_path / "hub"


# ---- the report ------------------------------------------------------------------------------------------------------


def test_warnings_are_no_problems() -> None:
    fine, odd, bad = Finding("a", "ok", ""), Finding("b", "warning", ""), Finding("c", "problem", "")
    assert not any_problem([])
    assert not any_problem([fine, odd])
    assert any_problem([fine, bad, odd])


def test_findings_are_shown_with_their_remedies() -> None:
    text = printed([Finding("disk [x]", "problem", "[bold]full\x1b " + "long " * 40, "make room")], width=80)
    assert "✗ disk [x] [bold]full\\x1b" in text
    assert "→ make room" in text
    assert max(map(cell_len, text.splitlines())) <= 80


def test_the_machine_is_checked_before_more_checks_run() -> None:
    findings = diagnose(more={"extra": lambda: [Finding("extra", "ok", "")]})
    topics = [finding.topic for finding in findings]
    assert {"versions", "trackers", "cpu", "memory", "hub", "current folder", "cache of models"} <= set(topics)
    assert topics[-1] == "extra"


def test_self_check_and_train_check_run_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[int | None] = []

    def train_check(number: int | None) -> list[Finding]:
        processes.append(number)
        return [Finding("train", "ok", "trained")]

    monkeypatch.setattr(catalog, "_self_check", lambda: [Finding("self-check", "problem", "broken")])
    monkeypatch.setattr(catalog, "_train_check", train_check)
    result = CliRunner().invoke(app, ["doctor"])
    assert (result.exit_code, "✗ self-check" in result.output) == (1, True)
    result = CliRunner().invoke(app, ["doctor", "--no-self-check"])
    assert (result.exit_code, "self-check" in result.output, processes) == (0, False, [])
    result = CliRunner().invoke(app, ["doctor", "--no-self-check", "--train", "--processes", "3"])
    assert (result.exit_code, "✓ train" in result.output, processes) == (0, True, [3])
