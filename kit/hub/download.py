"""From what a user names, a folder of their own or `OWNER/NAME[@REVISION]` on the Hub, to a folder on this machine.

All that kit takes from the Hub, but data sets, passes through here: by file names that stay in their folder, no code,
no pickles, and checked against the Hub's checksums.
"""

import hashlib
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kit.errors import HubError, KitError, NetworkError
from kit.hub.retry import print_error, with_retries

if TYPE_CHECKING:
    from huggingface_hub import RepoFile

COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*(?:/[\w-][\w.-]*)?)(?:@(?P<revision>[\w-][\w./-]*))?")

ALLOW_PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.spm", "*.jinja", "*.yaml", "*.md", "plots/*.png")
"""Files of a model on the Hub that are downloaded: weights that hold only numbers, and text. No code, no pickles."""
IGNORE_PATTERNS = ("*/*.safetensors", "consolidated*.safetensors", "onnx/*", "openvino/*")
"""The same weights once more, in other forms."""
FILE_FILTERS: dict[str, Any] = {"allow_patterns": list(ALLOW_PATTERNS), "ignore_patterns": list(IGNORE_PATTERNS)}


@dataclass(frozen=True)
class RepoRef:
    """A model on the Hub, at a revision (branch, tag or commit) or as it is now."""

    repo: str
    revision: str | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether it means the same for ever."""
        return self.revision is not None and COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def parse_repo_id(name: str | Path) -> RepoRef | None:
    """What may be the name of something on the Hub: nothing that is there as a file or folder, and no other path."""
    found = _NAME.fullmatch(str(name))
    if found is None or ".." in str(name) or _exists(Path(name)):
        return None
    return RepoRef(found["repo"], found["revision"])


def resolve_folder(name: str | Path) -> Path:
    """The folder that is meant, downloaded if it is on the Hub. What cannot be a name there is returned as a path."""
    on_hub = parse_repo_id(name)
    return Path(name) if on_hub is None else download(on_hub)


@lru_cache
def download(name: RepoRef) -> Path:
    """The files of a model on the Hub, without code and pickles; its folder has the name of the commit.

    Within a process a name means one commit, however often it is asked for.
    """
    from huggingface_hub import snapshot_download

    what = f"{name} cannot be loaded as a run, a model folder or a Hub id"
    commit = resolve_commit(name, what)
    if (kept := cached_snapshot(name.repo, commit)) is not None:
        return kept
    tree = list_repo_files(name.repo, commit, what)
    if outside := unsafe_paths(entry.path for entry in tree or ()):
        raise HubError(f"{what}: it has a file {outside[0]!r}, a name that leads out of its folder. Nothing was loaded")
    begin = time.time()
    with hide_bars_without_terminal():
        folder = Path(with_retries(lambda: snapshot_download(name.repo, revision=commit, **FILE_FILTERS), what))
    verify_downloads(name.repo, tree or [], folder, begin)
    return folder


def resolve_commit(name: RepoRef, what: str, repo_type: str = "model") -> str:
    """The commit that a name stands for now; where the Hub cannot be reached, the one in the cache, and it is said."""
    from huggingface_hub import HfApi

    if name.is_pinned:
        return str(name.revision)
    api = HfApi()

    def resolve(local_files_only: bool = False) -> str:
        return api.resolve_revision(
            name.repo, revision=name.revision, repo_type=repo_type, local_files_only=local_files_only
        ).resolved

    try:
        with_retries(lambda: api.repo_info(name.repo, revision=name.revision, repo_type=repo_type), what)
        return with_retries(resolve, what)  # also notes it for the day when the Hub cannot be reached
    except (HubError, NetworkError) as error:
        if not is_unreachable(error):
            raise
        try:
            kept = resolve(local_files_only=True)
        except Exception:
            raise error from None
        if isinstance(error, NetworkError):
            print_error(f"the Hub cannot be reached: {name} is taken as it is in the cache ({kept[:12]})")
        return kept


def cached_snapshot(repo: str, commit: str) -> Path | None:
    """The folder of a commit if all its files are here; those that kit fetched were checked when they came."""
    from huggingface_hub import get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError

    try:
        get_cached_repo_tree(repo, revision=commit)  # without it nobody knows whether a file is missing
        return Path(snapshot_download(repo, revision=commit, local_files_only=True, **FILE_FILTERS))
    except (CachedRepoTreeNotFoundError, LocalEntryNotFoundError):
        return None


def is_unreachable(error: KitError) -> bool:
    """Whether the Hub gave no answer, or was not to be asked."""
    from huggingface_hub.constants import is_offline_mode

    return isinstance(error, NetworkError) or is_offline_mode()


def list_repo_files(repo: str, commit: str, what: str) -> "list[RepoFile] | None":
    """All files of a commit with their checksums; None if the Hub is away."""
    from huggingface_hub import HfApi, RepoFile

    try:
        listed = with_retries(lambda: list(HfApi().list_repo_tree(repo, recursive=True, revision=commit)), what)
    except (HubError, NetworkError) as error:
        if not is_unreachable(error):
            raise
        return None
    return [entry for entry in listed if isinstance(entry, RepoFile)]


@contextmanager
def hide_bars_without_terminal() -> Iterator[None]:
    """Keep the Hub's library from drawing bars where nobody watches, as in a log file."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    hide = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            enable_progress_bars()


def verify_downloads(repo: str, tree: "list[RepoFile]", folder: Path, since: float) -> None:
    """Compare the files that came since a moment with the checksums that the Hub has of them.

    The Hub's library looks at sizes only. A file with other content is removed, so that it is fetched again.
    """
    wrong = []
    for entry in tree:
        path = folder / entry.path
        if not path.is_file() or path.stat().st_mtime < since - 1:
            continue
        if checksum(path, is_large=entry.lfs is not None) != (entry.lfs.sha256 if entry.lfs else entry.blob_id):
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            wrong.append(entry.path)
    if wrong:
        raise NetworkError(
            f"{repo}: {', '.join(wrong)} arrived with other content than the Hub has a checksum of, and was removed. "
            "Run the same command again"
        )


def unsafe_paths(paths: Iterable[str]) -> list[str]:
    """The names among `paths` that would lead out of the folder that they are put into."""
    return [
        path
        for path in paths
        if PurePosixPath(path).is_absolute() or ".." in re.split(r"[/\\]", path) or re.match(r"[A-Za-z]:", path)
    ]


def checksum(path: Path, is_large: bool) -> str:
    """The checksum of a file as the Hub has it: SHA-256 of large ones, that of git (a blob's SHA-1) of others."""
    if is_large:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
