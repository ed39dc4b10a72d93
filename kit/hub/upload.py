"""Upload a folder as a single commit: all of its files or none, however often the connection fails.

`HfApi.upload_folder` makes a second commit if the answer to the first one is lost. Here the Hub is asked first whether
the commit arrived, and afterwards every file is compared with its checksum there.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from kit.errors import HubError, KitError, NetworkError
from kit.hub.download import hide_bars_without_terminal
from kit.hub.retry import (
    ATTEMPTS,
    INVALID_TOKEN,
    is_transient,
    status_code,
    to_kit_error,
    wait_before_retry,
    with_retries,
)
from kit.system.redaction import redact_hub_logs

BENCHMARK_RESULTS = ".eval_results/seq2seq-kit.yaml"
"""The file with results on benchmarks of the Hub. Other files of that folder are other evaluations of the model."""

MODEL_FILES = ("*.safetensors", "*.json", "*.py", "*.jinja", "*.bin", "*.model", "plots/*", BENCHMARK_RESULTS)
"""Files of an earlier push that would be mistaken for a part of the new model if they were kept."""

KEPT = {".gitattributes"}
"""Files that the Hub itself adds to a repository."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class Published:
    """The state of the repository after a push."""

    url: str
    commit: str
    unchanged: bool
    """Whether the repository had exactly these files before, so that no commit was needed."""
    removed: list[str]
    others: list[str]
    """Files in the repository that are not part of this push and were kept."""


@dataclass(frozen=True)
class Destination:
    """A repository on the Hub, which need not exist yet."""

    repo: str
    kind: Literal["model", "dataset"] = "model"
    public: bool = False
    delete_others: bool = False
    """Whether to remove all files of the repository that are not part of the push."""

    @property
    def action(self) -> str:
        """How error messages start."""
        return f"cannot write to {self.repo}"

    def check_name(self) -> None:
        """Raises HubError unless the name is valid and has an owner."""
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        try:
            validate_repo_id(self.repo)
        except HFValidationError as error:
            raise HubError(f'"{self.repo}" is not a valid repository name: {error}') from None
        if self.repo.count("/") != 1:
            raise HubError(f'"{self.repo}" has no owner: expected OWNER/NAME')


def upload(folder: Path, to: Destination, message: str, report: Report) -> Published:
    """Make the files of a folder the newest commit of a repository, which is created if it does not exist.

    Large files are uploaded first, addressed by their checksums: what the Hub already has is never sent again, also not
    by a later call. Then a single commit adds everything. Raises HubError or NetworkError; then nothing was changed.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

    to.check_name()
    if not get_token():
        raise HubError(f"{to.action}: there is no access token. Run `hf auth login`, or set HF_TOKEN")
    redact_hub_logs()
    api = HfApi()
    parent = ensure_repository(api, to, report)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    remote = remote_files(api, to, parent)
    others = sorted(remote - files.keys() - KEPT)
    removed = others if to.delete_others else stale_files(to, remote, files)
    operations: list[Any] = [CommitOperationAdd(name, str(path)) for name, path in files.items()]
    operations += [CommitOperationDelete(name) for name in removed]
    commit = commit_once(api, to, operations, parent, message, folder, report)
    if mismatch := first_mismatch(api, to, commit, folder):
        raise NetworkError(f"{to.repo}: {mismatch} on the Hub differs from what was sent. Run the same command again")
    prefix = "datasets/" if to.kind == "dataset" else ""
    return Published(
        f"{api.endpoint}/{prefix}{to.repo}",
        commit,
        commit == parent,
        removed,
        [name for name in others if name not in removed],
    )


def ensure_repository(api: Any, to: Destination, report: Report) -> str:
    """Create the repository if it does not exist; returns its newest commit.

    Raises HubError if an existing repository is private where a public one was asked for, or the other way around:
    visibility never changes, and never stays, by mistake.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    def repo_info() -> Any:
        try:
            return api.repo_info(to.repo, repo_type=to.kind)
        except RepositoryNotFoundError as error:
            # the Hub answers 401, and huggingface_hub raises this class, for an invalid token too
            if error.response is not None and error.response.status_code == 401:
                raise HubError(f"{to.action}: {INVALID_TOKEN}") from None
            return None

    info = with_retries(repo_info, to.action, report)
    if info is None:
        with_retries(
            lambda: api.create_repo(to.repo, repo_type=to.kind, private=not to.public, exist_ok=True), to.action, report
        )
        info = with_retries(repo_info, to.action, report)
        if info is None:
            raise HubError(f"{to.action}: it was created, but the token cannot read it")
    if bool(info.private) == to.public:
        visibility = "private" if info.private else "public"
        advice = "remove --public, or make it public on its page" if info.private else "confirm with --public"
        raise HubError(f"{to.repo} already exists and is {visibility}: {advice}. Nothing was sent")
    return str(info.sha)


def commit_once(
    api: Any, to: Destination, operations: list[Any], parent: str, message: str, folder: Path, report: Report
) -> str:
    """Commit on top of `parent`, exactly once: before a second attempt, ask the Hub whether the first one arrived."""
    from huggingface_hub import utils

    for attempt in range(1, ATTEMPTS + 1):
        try:
            with warnings.catch_warnings(record=True) as caught, hide_bars_without_terminal(utils):
                warnings.simplefilter("always")
                commit = api.create_commit(
                    to.repo, operations, commit_message=message, repo_type=to.kind, parent_commit=parent
                )
            for warning in caught:
                # huggingface_hub passes on what the Hub remarks as plain UserWarnings; other classes, such as
                # FutureWarning, are about the libraries themselves
                if warning.category is UserWarning:
                    report(f"the Hub: {' '.join(str(warning.message).split())}")
            return str(commit.oid)
        except KitError:
            raise
        except Exception as error:
            conflict = status_code(error) in (409, 412)  # `parent` is not the newest commit anymore
            if not is_transient(error) and not conflict:
                raise to_kit_error(error, f"{to.action}, and nothing was changed there") from None
            newest = str(with_retries(lambda: api.repo_info(to.repo, repo_type=to.kind), to.action, report).sha)
            if newest != parent and not first_mismatch(api, to, newest, folder):
                return newest  # the commit arrived, only the answer was lost
            if newest != parent:
                raise NetworkError(
                    f"{to.repo} was changed by someone else during the push; nothing was written. Run the "
                    "same command again"
                ) from None
            if attempt == ATTEMPTS or not is_transient(error):
                action = f"{to.action}, and nothing was changed there; files that have arrived need not be sent again"
                raise to_kit_error(error, action) from None
            wait_before_retry(error, attempt, report)
    raise AssertionError("the last attempt returns or raises")


def remote_files(api: Any, to: Destination, commit: str) -> set[str]:
    """The files of a commit on the Hub."""
    return set(with_retries(lambda: api.list_repo_files(to.repo, revision=commit, repo_type=to.kind), to.action))


def stale_files(to: Destination, remote: set[str], files: dict[str, Path]) -> list[str]:
    """Files of an earlier push that do not belong to this one. Only kit's own pushes, known by their recipe, are
    cleaned up."""
    if to.kind != "model" or "recipe.yaml" not in remote:
        return []
    return [
        name for name in sorted(remote) if name not in files and any(fnmatch(name, pattern) for pattern in MODEL_FILES)
    ]


def first_mismatch(api: Any, to: Destination, commit: str, folder: Path) -> str | None:
    """The first file of the folder that a commit on the Hub lacks, or has with another checksum."""
    result = with_retries(
        lambda: api.verify_repo_checksums(to.repo, repo_type=to.kind, revision=commit, local_dir=folder), to.action
    )
    wrong = {*result.extra_paths, *(mismatch["path"] for mismatch in result.mismatches)}  # extra: local files only
    return min(wrong, default=None)
