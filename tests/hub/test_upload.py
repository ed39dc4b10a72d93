"""Uploads: one complete commit or none, however the connection fails."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from support.hub_server import HubServer
from support.hub_state import READER, TOKEN, Fault
from support.repositories import NAME, folder_files, push_folder, repo_files, write_folder

from kit.errors import HubError, KitError, NetworkError
from kit.hub.upload import Destination, upload
from kit.system.redaction import redact


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "folder")


def test_a_folder_becomes_one_private_commit(hub: HubServer, folder: Path) -> None:
    published = push_folder(folder)
    repo = hub.repos["model", NAME]
    assert repo.private
    assert repo_files(hub) == folder_files(folder)
    assert [commit.title for commit in repo.commits] == ["initial commit", "a message"]
    assert (published.url, published.commit) == (f"{hub.address}/{NAME}", repo.head.sha)
    again = push_folder(folder)
    assert again.unchanged
    assert len(repo.commits) == 2
    assert len(hub.sent("PUT /storage")) == 2  # nothing was uploaded twice
    assert not [value for value in hub.log if TOKEN in value]


def test_the_token_of_the_login_file_is_used_and_redacted(
    hub: HubServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
    push_folder(folder)
    assert repo_files(hub) == folder_files(folder)
    assert redact(f"of a login: {TOKEN}") == "of a login: ***"


def test_large_files_are_uploaded_in_parts(folder: Path, hub: HubServer) -> None:
    hub.part_size = 7000
    push_folder(folder)
    assert repo_files(hub) == folder_files(folder)
    assert len(hub.sent("PUT /storage/part")) == 6


TRANSIENT = {
    "refused three times": [Fault("POST .*/preupload/", times=3, status=503)],
    "while the repository is created": [Fault("POST /api/repos/create", status=500)],
    "while the metadata is checked": [Fault("POST /api/validate-yaml", status=502)],
    "too many requests": [Fault("POST .*/batch", status=429, headers={"Retry-After": "7"})],
    "storage that fails": [Fault("PUT /storage", times=2, status=500)],
    "a connection closed while uploading": [Fault("PUT /storage", kind="cut", times=2)],
    "a slow storage": [Fault("PUT /storage", kind="slow")],
    "a commit that fails": [Fault("POST .*/commit/", times=2, status=500)],
    "a commit that never arrives": [Fault("POST .*/commit/", kind="cut")],
    "a commit whose answer is lost": [Fault("POST .*/commit/", kind="lost")],
    "half an answer": [Fault("POST .*/batch", kind="cut_body")],
    "everything once": [Fault("POST|PUT", kind="cut"), Fault("POST .*/commit/", kind="lost"), Fault("GET", status=504)],
}


@pytest.mark.parametrize("faults", TRANSIENT.values(), ids=TRANSIENT)
def test_transient_failures_are_retried(hub: HubServer, folder: Path, faults: list[Fault]) -> None:
    hub.faults = [Fault(**vars(fault)) for fault in faults]
    push_folder(folder)
    assert repo_files(hub) == folder_files(folder)
    assert len(hub.repos["model", NAME].commits) == 2
    if any(fault.headers for fault in faults):
        assert max(hub.waits) >= 7  # type: ignore[attr-defined]


PERMANENT = {
    "no answer at all": (Fault("GET|POST|PUT", kind="cut", times=999), NetworkError, "again"),
    "storage that never works": (Fault("PUT /storage", times=999, status=500), NetworkError, "nothing was changed"),
    "commits that never work": (Fault("POST .*/commit/", times=999, status=503), NetworkError, "nothing was changed"),
    "bytes that change in transit": (
        Fault("PUT /storage", times=999, status=400, message="bad checksum"), HubError, "bad checksum",
    ),
    "no write access": (Fault("POST /api/repos/create", times=999, status=403), HubError, "lacks permission"),
    "no room": (Fault("POST .*/commit/", times=999, status=507, message="quota"), HubError, "quota"),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "kind", "message"), PERMANENT.values(), ids=PERMANENT)
def test_permanent_failures_are_one_message_and_no_commit(
    hub: HubServer, folder: Path, fault: Fault, kind: type[KitError], message: str
) -> None:
    hub.faults = [Fault(**vars(fault))]
    with pytest.raises(kind, match=message) as caught:
        push_folder(folder)
    assert "\n" not in str(caught.value)
    assert all(len(repo.commits) == 1 for repo in hub.repos.values())
    hub.faults = []
    before = len(hub.sent("PUT /storage"))
    known = len(hub.objects)
    push_folder(folder)  # the same command again
    assert repo_files(hub) == folder_files(folder)
    assert len(hub.sent("PUT /storage")) - before == 2 - known  # what had arrived is not uploaded again


def test_an_interrupted_upload_resumes(hub: HubServer, folder: Path) -> None:
    hub.faults = [Fault("PUT /storage", kind="cut", times=999, skip=1)]
    with pytest.raises(NetworkError):
        push_folder(folder)
    assert len(hub.objects) == 1
    (arrived,) = hub.objects
    hub.faults = []
    hub.log.clear()
    push_folder(folder)
    assert len(hub.sent("PUT /storage")) == 1
    assert not hub.sent(arrived)
    assert repo_files(hub) == folder_files(folder)


def test_concurrent_commit_is_preserved(hub: HubServer, folder: Path) -> None:
    push_folder(folder)
    (folder / "config.json").write_text("{}", encoding="utf-8")

    def commit_concurrently(line: str) -> None:
        hub.put(NAME, {"config.json": b"[]"})

    hub.faults = [Fault("POST .*/commit/", status=500)]
    with pytest.raises(NetworkError, match="changed by someone else"):
        upload(folder, Destination(NAME), "mine", commit_concurrently)
    assert repo_files(hub)["config.json"] == b"[]"


def test_visibility_never_changes_by_mistake(hub: HubServer, folder: Path) -> None:
    hub.put(NAME, {"README.md": b"mine"})
    with pytest.raises(HubError, match="already exists and is public: confirm with --public"):
        push_folder(folder)
    hub.put("tester/hidden", {"README.md": b"mine"}, private=True)
    with pytest.raises(HubError, match="is private: remove --public"):
        push_folder(folder, Destination("tester/hidden", public=True))
    assert not hub.sent("PUT|commit")
    push_folder(folder, Destination(NAME, public=True))
    assert repo_files(hub).items() >= folder_files(folder).items()


def test_other_files_are_named_and_removed_on_request(hub: HubServer, folder: Path) -> None:
    hub.put("tester/other", {"notes.txt": b"mine", ".gitattributes": b"x", "old.onnx": b"y"}, private=True)
    assert push_folder(folder, Destination("tester/other")).others == ["notes.txt", "old.onnx"]
    published = push_folder(folder, Destination("tester/other", delete_others=True))
    assert (published.removed, published.others) == (["notes.txt", "old.onnx"], [])
    assert push_folder(folder, Destination("tester/other")).others == []


@pytest.mark.parametrize(
    ("category", "count"),
    [(FutureWarning, 0), (DeprecationWarning, 0), (PendingDeprecationWarning, 0), (UserWarning, 1)],
)
def test_deprecation_warnings_are_not_reported(
    hub: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch, category: type[Warning], count: int
) -> None:
    create = HfApi.create_commit

    def warn(*arguments: Any, **options: Any) -> Any:
        warnings.warn("something will change", category, stacklevel=2)
        return create(*arguments, **options)

    monkeypatch.setattr(HfApi, "create_commit", warn)
    messages: list[str] = []
    upload(folder, Destination("tester/warned"), "message", messages.append)
    assert sum("something will change" in message for message in messages) == count


def test_files_of_an_earlier_push_are_removed_and_others_stay(hub: HubServer, folder: Path) -> None:
    old = {"recipe.yaml": b"task: x", "model-00001-of-00002.safetensors": b"x", "LICENSE": b"mine", "notes.md": b"mine"}
    hub.put(NAME, old, private=True)
    published = push_folder(folder)
    assert published.removed == ["model-00001-of-00002.safetensors"]
    assert repo_files(hub) == {
        **folder_files(folder),
        **{name: old[name] for name in ("recipe.yaml", "LICENSE", "notes.md")},
    }
    hub.put("tester/foreign", {"a.safetensors": b"x"}, private=True)
    assert push_folder(folder, Destination("tester/foreign")).removed == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repo": "no spaces/here"}, "is not a valid repository name"),
        ({"repo": "nobody"}, "OWNER/NAME"),
        ({"token": ""}, "there is no access token"),
        ({"token": "hf_wrong" + "x" * 30}, "rejects the token"),
        ({"token": READER}, "lacks permission"),
        ({"card": "---\nlicense: none of the known\n---\n"}, "must be one of the list"),
    ],
)
def test_user_mistakes_exit_with_2(
    hub: HubServer, folder: Path, change: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "token" in change:
        monkeypatch.setenv("HF_TOKEN", change["token"])
    if "card" in change:
        (folder / "README.md").write_text(change["card"], encoding="utf-8")
    with pytest.raises(HubError, match=message) as caught:
        push_folder(folder, Destination(change.get("repo", NAME)))
    assert caught.value.exit_code == 2
    for token in (TOKEN, READER, change.get("token") or TOKEN):
        assert token not in str(caught.value)
    assert all(len(repo.commits) == 1 for repo in hub.repos.values())
