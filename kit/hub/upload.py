"""From a folder to a commit on the Hub: one commit with everything in it or none, however often the way breaks down."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from kit.errors import HubError, KitError, NetworkError
from kit.hub.download import checksum, hide_bars_without_terminal
from kit.hub.retry import ATTEMPTS, is_transient, status_code, to_kit_error, wait_before_retry, with_retries
from kit.system.redaction import redact_hub_logs

MODEL_FILES = ("*.safetensors", "*.json", "*.py", "*.jinja", "*.bin", "*.model", "plots/*")
"""Files that would be mistaken for a part of the new model if they were left over from an older one."""


@dataclass(frozen=True)
class Published:
    """What is on the Hub now."""

    url: str
    commit: str
    unchanged: bool
    removed: list[str]


@dataclass(frozen=True)
class Destination:
    """A repository on the Hub, which need not exist yet."""

    repo: str
    kind: Literal["model", "dataset"] = "model"
    public: bool = False

    @property
    def what(self) -> str:
        return f"{self.repo} cannot be written to"

    def check_name(self) -> None:
        """Raise HubError for what can be no name of a repository with an owner."""
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        try:
            validate_repo_id(self.repo)
        except HFValidationError as error:
            raise HubError(f'"{self.repo}" can be no name on the Hub: {error}') from None
        if self.repo.count("/") != 1:
            raise HubError(f'"{self.repo}": give the owner too, as in OWNER/NAME')


def upload(folder: Path, to: Destination, message: str, tell: Callable[[str], None]) -> Published:
    """Make the files of a folder the newest commit of a repository, which is made if it is not there.

    Large files are sent first, each known by its checksum: those that the Hub has are not sent again, neither by this
    call nor by the next one. Then one commit takes up everything. If its answer is lost, the Hub is asked whether it is
    there, so that it is never made twice.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

    to.check_name()
    if not get_token():
        raise HubError(f"{to.what}: there is no access token. Log in with `hf auth login`, or set HF_TOKEN")
    redact_hub_logs()
    api = HfApi()
    parent = ensure_repository(api, to, tell)
    there = remote_files(api, to, parent)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    removed = stale_files(to, there, files)
    operations: list[Any] = [CommitOperationAdd(name, str(path)) for name, path in files.items()]
    operations += [CommitOperationDelete(name) for name in removed]
    commit = commit_once(api, to, operations, parent, message, files, tell)
    if wrong := first_mismatch(api, to, commit, files):
        raise NetworkError(
            f"{to.repo}: {wrong} is not on the Hub as it was sent. Run the same command again, which mends it"
        )
    prefix = "datasets/" if to.kind == "dataset" else ""
    return Published(f"{api.endpoint}/{prefix}{to.repo}", commit, commit == parent, removed)


def ensure_repository(api: Any, to: Destination, tell: Callable[[str], None]) -> str:
    """Make the repository unless it is there; returns its newest commit.

    What is there must be as public as was asked for: nothing becomes public, or stays private, by mistake.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    def look() -> Any:
        try:
            return api.repo_info(to.repo, repo_type=to.kind)
        except RepositoryNotFoundError as error:
            if error.response is not None and error.response.status_code == 401:
                raise HubError(
                    f"{to.what}: the Hub does not know the token. Log in with `hf auth login`, or mend HF_TOKEN"
                ) from None
            return None

    info = with_retries(look, to.what, tell)
    if info is None:
        with_retries(
            lambda: api.create_repo(to.repo, repo_type=to.kind, private=not to.public, exist_ok=True), to.what, tell
        )
        info = with_retries(look, to.what, tell)
        if info is None:
            raise HubError(f"{to.what}: it was made, but the token cannot read it")
    if bool(info.private) == to.public:
        how = "private" if info.private else "public"
        advice = "leave --public out, or change that on its page" if info.private else "say so with --public"
        raise HubError(f"{to.repo} is there already, and {how}: {advice}. Nothing was sent")
    return str(info.sha)


def commit_once(
    api: Any,
    to: Destination,
    operations: list[Any],
    parent: str,
    message: str,
    files: dict[str, Path],
    tell: Callable[[str], None],
) -> str:
    """Commit on top of `parent`, once: before a second attempt the Hub is asked whether the first one arrived."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with warnings.catch_warnings(record=True) as caught, hide_bars_without_terminal():
                warnings.simplefilter("always")
                done = api.create_commit(
                    to.repo, operations, commit_message=message, repo_type=to.kind, parent_commit=parent
                )
            for warning in caught:
                tell(f"the Hub: {' '.join(str(warning.message).split())}")
            return str(done.oid)
        except KitError:
            raise
        except Exception as error:
            if not is_transient(error) and status_code(error) not in (409, 412):
                raise to_kit_error(error, f"{to.what}, and nothing was changed there") from None
            now = str(with_retries(lambda: api.repo_info(to.repo, repo_type=to.kind), to.what, tell).sha)
            if now != parent and not first_mismatch(api, to, now, files):
                return now  # only the answer was lost
            if now != parent:
                raise NetworkError(
                    f"{to.repo} was changed by somebody else in the meantime; nothing of yours was written. Run the "
                    "same command again"
                ) from None
            if attempt == ATTEMPTS or not is_transient(error):
                kept = "; files that have arrived are kept there for the next attempt"
                raise to_kit_error(error, f"{to.what}, and nothing was changed there{kept}") from None
            wait_before_retry(error, attempt, tell)
    raise AssertionError("the last attempt returns or raises")


def remote_files(api: Any, to: Destination, commit: str) -> dict[str, Any]:
    """The files of a commit on the Hub, with their checksums."""
    from huggingface_hub import RepoFile

    tree = with_retries(
        lambda: list(api.list_repo_tree(to.repo, recursive=True, revision=commit, repo_type=to.kind)), to.what
    )
    return {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}


def stale_files(to: Destination, there: dict[str, Any], files: dict[str, Path]) -> list[str]:
    """Files of an older push that do not belong to this one. Only what kit has written before is ever removed."""
    if to.kind != "model" or "recipe.yaml" not in there:
        return []
    return [name for name in there if name not in files and any(fnmatch(name, kind) for kind in MODEL_FILES)]


def first_mismatch(api: Any, to: Destination, commit: str, files: dict[str, Path]) -> str | None:
    """The first file that a commit on the Hub lacks, or has with another checksum."""
    there = remote_files(api, to, commit)
    for name, path in files.items():
        entry = there.get(name)
        if entry is None or checksum(path, entry.lfs is not None) != (entry.lfs.sha256 if entry.lfs else entry.blob_id):
            return name
    return None
