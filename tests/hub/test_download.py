"""Downloads: complete, without code, and checked."""

from pathlib import Path

import pytest
from huggingface_hub import snapshot_download
from support.hub_server import HubServer
from support.hub_state import TOKEN, Fault
from support.repositories import NAME, folder_files, write_folder

from kit.errors import HubError, KitError, NetworkError
from kit.hub import download as hub_download


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "folder")


def test_a_download_is_complete_and_without_code(hub: HubServer, folder: Path) -> None:
    commit = hub.put(
        NAME, {**folder_files(folder), "modeling_x.py": b"1/0", "pytorch_model.bin": b"pickle"}, private=True
    )
    hub.faults = [Fault("GET /storage", kind="cut_body", times=2), Fault("GET .*/resolve/.*README", kind="cut")]
    snapshot = hub_download.resolve_folder(NAME)
    assert snapshot.name == commit
    assert folder_files(snapshot) == folder_files(folder)
    assert not hub.sent(r"modeling_x|pytorch_model")
    hub.log.clear()
    assert hub_download.resolve_folder(f"{NAME}@{commit}") == snapshot
    hub.put(NAME, {"config.json": b"{}"})
    assert hub_download.resolve_folder(NAME) == snapshot  # within a process, a name means one commit
    hub_download.download.cache_clear()
    assert hub_download.resolve_folder(NAME) != snapshot
    assert hub_download.resolve_folder(f"{NAME}@{commit}") == snapshot


@pytest.mark.parametrize(
    ("pattern", "name"), [("GET /storage", "safetensors"), ("GET .*/resolve/.*config.json", "config.json")]
)
def test_corrupt_bytes_of_the_right_length_are_detected(hub: HubServer, folder: Path, pattern: str, name: str) -> None:
    hub.put(NAME, folder_files(folder))
    hub.faults = [Fault(pattern, kind="corrupt")]
    with pytest.raises(NetworkError, match=f"{name} did not match the Hub.s checksum"):
        hub_download.resolve_folder(NAME)
    hub.log.clear()
    assert folder_files(hub_download.resolve_folder(NAME)) == folder_files(folder)
    assert len(hub.sent("GET .*(storage|config.json)")) == 1  # only the corrupt file is downloaded again


def test_nothing_is_downloaded_that_cannot_be_verified(hub: HubServer, folder: Path) -> None:
    """Without the list of files, there are no checksums to compare with."""
    hub.put(NAME, folder_files(folder))
    hub.faults = [Fault("GET .*/tree/", status=503, times=99), Fault("GET /storage", kind="corrupt", times=99)]
    with pytest.raises(NetworkError, match="Run the same command again"):
        hub_download.resolve_folder(NAME)
    assert not hub.sent("GET .*/(resolve|storage)/")


def test_a_folder_of_hf_download_is_a_strangers_and_the_home_folder_is_not(
    hub: HubServer, folder: Path, tmp_path: Path
) -> None:
    hub.put(NAME, folder_files(folder))
    copy = Path(snapshot_download(NAME, local_dir=tmp_path / "copy"))
    assert hub_download.is_downloaded(copy)
    assert hub_download.is_downloaded(hub_download.resolve_folder(NAME))
    run = tmp_path / "home" / "run"
    run.mkdir(parents=True)
    for part in ("hub", "xet"):
        (tmp_path / "home" / ".cache" / "huggingface" / part).mkdir(parents=True)
    assert not hub_download.is_downloaded(run)


@pytest.mark.parametrize("path", ["../outside.json", "a/../../outside.json", "/etc/outside.json", "C:\\outside.json"])
def test_file_names_cannot_leave_the_folder(hub: HubServer, folder: Path, path: str, tmp_path: Path) -> None:
    hub.put(NAME, {**folder_files(folder), path: b"{}"})
    with pytest.raises(HubError, match="leads out of its folder"):
        hub_download.resolve_folder(NAME)
    assert not list(tmp_path.rglob("outside.json"))


@pytest.mark.parametrize(
    ("name", "token", "kind", "message"),
    [
        ("tester/nothing", TOKEN, HubError, "the Hub has no repository of this name"),
        (f"{NAME}@v9", TOKEN, HubError, "no such revision"),
        (NAME, "", HubError, "or it is private"),
        (NAME, TOKEN, NetworkError, "Run the same command again"),
    ],
)
def test_a_failed_download_is_one_message(
    hub: HubServer,
    folder: Path,
    name: str,
    token: str,
    kind: type[KitError],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.put(NAME, folder_files(folder), private=True)
    monkeypatch.setenv("HF_TOKEN", token)
    if kind is NetworkError:
        hub.faults = [Fault("GET|HEAD", status=500, times=999, message=f"I know {TOKEN}")]
    with pytest.raises(kind, match=message) as caught:
        hub_download.resolve_folder(name)
    assert "cannot be loaded from the Hub" in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_without_the_hub_the_cache_is_used_with_a_warning(
    hub: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.put(NAME, folder_files(folder))
    snapshot = hub_download.resolve_folder(NAME)
    hub_download.download.cache_clear()
    hub.faults = [Fault("GET|HEAD", kind="cut", times=999)]
    assert hub_download.resolve_folder(NAME) == snapshot
    assert "the Hub cannot be reached" in capsys.readouterr().err
