"""Download model repositories: from `OWNER/NAME[@REVISION]` to a folder on this machine.

Everything kit takes from the Hub except datasets passes through here: no code, no pickles, no file names that lead out
of the folder, and every new file is compared with the Hub's checksum.
"""

import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kit.errors import HubError, KitError, NetworkError, RunError
from kit.hub.names import RepoRef, exists, is_in_folder, parse_repo_id
from kit.hub.retry import print_error, with_retries
from kit.system.files import file_sha256

if TYPE_CHECKING:
    from huggingface_hub import RepoFile

ALLOW_PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.spm", "*.jinja", "*.yaml", "*.md", "plots/*.png")
"""Files of a model repository that are downloaded: weights as safetensors, and text. No code, no pickles."""
IGNORE_PATTERNS = ("*/*.safetensors", "consolidated*.safetensors", "onnx/*", "openvino/*")
"""Further copies of the same weights, in other formats."""
_MAX_TEXT_SIZE = 1_000_000
"""Bytes of a single text file, of which kit reads the whole content."""
FILE_FILTERS: dict[str, Any] = {"allow_patterns": list(ALLOW_PATTERNS), "ignore_patterns": list(IGNORE_PATTERNS)}


def resolve_folder(name: str | Path) -> Path:
    """The local folder of a run or model, downloaded if `name` is a Hub id.

    Raises RunError if there is none, HubError or NetworkError if it may be on the Hub and cannot be loaded.
    """
    ref = parse_repo_id(name)
    missing = RunError(f"{name} does not exist: there is no such run or model folder")
    if ref is not None:
        try:
            return download(ref)
        except (HubError, NetworkError) as error:
            if is_in_folder(ref.repo) and is_unreachable(error):
                raise missing from error
            raise
    if not exists(Path(name)):
        raise missing
    return Path(name)


def is_downloaded(folder: Path) -> bool:
    """Whether a folder is a copy of a repository: a snapshot in the cache of the Hub, or filled by `hf download`, which
    keeps records in `.cache/huggingface/download`. (A home folder has `.cache/huggingface`, too: the cache itself.)"""
    from huggingface_hub import constants

    if folder.resolve().is_relative_to(Path(constants.HF_HUB_CACHE).resolve()):
        return True
    return any((parent / ".cache" / "huggingface" / "download").is_dir() for parent in (folder, folder.parent))


@lru_cache
def download(ref: RepoRef) -> Path:
    """The snapshot folder of a model repository, named after its commit.

    Cached, so that within a process a name always means the same commit. Raises HubError or NetworkError.
    """
    from huggingface_hub import snapshot_download, utils

    action = f"there is no run or model folder {ref}, and it cannot be loaded from the Hub"
    commit = resolve_commit(ref, action)
    if (snapshot := cached_snapshot(ref.repo, commit)) is not None:
        return snapshot
    try:
        tree = list_repo_files(ref.repo, commit, action)
    except (HubError, NetworkError) as error:
        # without the list, what arrives could not be verified: only what another program has downloaded is left
        snapshot = cached_snapshot(ref.repo, commit, complete=False) if is_unreachable(error) else None
        if snapshot is None:
            raise
        return snapshot
    if unsafe := unsafe_paths(entry.path for entry in tree):
        raise HubError(f"{action}: its file name {unsafe[0]!r} leads out of its folder. Nothing was loaded")
    start = time.time()
    with hide_bars_without_terminal(utils):
        folder = Path(with_retries(lambda: snapshot_download(ref.repo, revision=commit, **FILE_FILTERS), action))
    verify_downloads(ref.repo, tree, folder, start)
    return folder


def read_repo_file(repo: str, name: str, repo_type: str, action: str) -> bytes | None:
    """The content of a small text file on the main branch of a repository; None if there is no such file.

    `action` is the beginning of error messages: what cannot be done. Raises HubError or NetworkError.
    """
    from huggingface_hub import HfApi, RepoFile, utils

    api = HfApi()
    entries = with_retries(lambda: api.get_paths_info(repo, [name], repo_type=repo_type), action)
    file = next((entry for entry in entries if isinstance(entry, RepoFile)), None)
    if file is None:
        return None
    if file.size > _MAX_TEXT_SIZE:
        raise HubError(f"{action}: its {name} has {file.size:,} bytes, which is too large")
    with hide_bars_without_terminal(utils):
        path = with_retries(lambda: api.hf_hub_download(repo, name, repo_type=repo_type), action)
    return Path(path).read_bytes()


def resolve_commit(ref: RepoRef, action: str, repo_type: str = "model") -> str:
    """The commit that a reference stands for now; if the Hub is unreachable, the cached one, with a warning.

    `action` is the beginning of error messages: what cannot be done.
    """
    from huggingface_hub import HfApi

    if ref.is_pinned:
        return str(ref.revision)
    api = HfApi()

    def resolve(local_files_only: bool = False) -> str:
        return api.resolve_revision(
            ref.repo, revision=ref.revision, repo_type=repo_type, local_files_only=local_files_only
        ).resolved

    try:
        # repo_info raises precise errors (gated, private, missing); resolve_revision also caches the answer for later,
        # when the Hub may be unreachable
        with_retries(lambda: api.repo_info(ref.repo, revision=ref.revision, repo_type=repo_type), action)
        return with_retries(resolve, action)
    except (HubError, NetworkError) as error:
        if not is_unreachable(error):
            raise
        try:
            cached = resolve(local_files_only=True)
        except Exception:
            raise error from None
        if isinstance(error, NetworkError):
            print_error(f"the Hub cannot be reached: using the cached revision of {ref} ({cached[:12]})")
        return cached


def cached_snapshot(repo: str, commit: str, complete: bool = True) -> Path | None:
    """The snapshot folder of a commit in the cache, whose files were verified when kit downloaded them.

    None if there is none, or, if it has to be `complete`, if a file is missing or the list of files is not cached.
    """
    from huggingface_hub import get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError

    try:
        if complete:
            get_cached_repo_tree(repo, revision=commit)  # without the cached tree, a missing file would go unnoticed
        return Path(snapshot_download(repo, revision=commit, local_files_only=True, **FILE_FILTERS))
    except (CachedRepoTreeNotFoundError, LocalEntryNotFoundError):
        return None


def is_unreachable(error: KitError) -> bool:
    """Whether the Hub did not answer, or HF_HUB_OFFLINE forbids asking it."""
    from huggingface_hub.constants import is_offline_mode

    return isinstance(error, NetworkError) or is_offline_mode()


def list_repo_files(repo: str, commit: str, action: str) -> "list[RepoFile]":
    """All files of a commit with their checksums."""
    from huggingface_hub import HfApi, RepoFile

    tree = with_retries(lambda: list(HfApi().list_repo_tree(repo, recursive=True, revision=commit)), action)
    return [entry for entry in tree if isinstance(entry, RepoFile)]


@contextmanager
def hide_bars_without_terminal(library: Any) -> Iterator[None]:
    """Disable progress bars unless stderr is a terminal: they would fill log files.

    `library` is huggingface_hub.utils or datasets.utils, which have the same switches.
    """
    hide = not sys.stderr.isatty() and not library.are_progress_bars_disabled()
    if hide:
        library.disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            library.enable_progress_bars()


def verify_downloads(repo: str, tree: "list[RepoFile]", folder: Path, since: float) -> None:
    """Compare the files downloaded since a point in time with the Hub's checksums.

    Mismatched files are deleted, so that the next attempt downloads them again. Raises NetworkError if there are any.
    """
    # snapshot_download compares sizes only. HfApi.verify_repo_checksums would list the repository a second time, hash
    # the gigabytes of earlier downloads again, and delete nothing.
    corrupt = []
    for entry in tree:
        path = folder / entry.path
        if not path.is_file() or path.stat().st_mtime < since - 1:  # file systems round modification times
            continue
        if hub_checksum(path, is_lfs=entry.lfs is not None) != (entry.lfs.sha256 if entry.lfs else entry.blob_id):
            path.resolve().unlink()  # the blob in the cache that the snapshot links to
            path.unlink(missing_ok=True)
            corrupt.append(entry.path)
    if corrupt:
        raise NetworkError(
            f"{repo}: {', '.join(corrupt)} did not match the Hub's checksum after the download, and was deleted. "
            "Run the same command again"
        )


def unsafe_paths(paths: Iterable[str]) -> list[str]:
    """The paths that would lead out of the folder that they are written into."""
    return [
        path
        for path in paths
        if PurePosixPath(path).is_absolute() or ".." in re.split(r"[/\\]", path) or re.match(r"[A-Za-z]:", path)
    ]


def hub_checksum(path: Path, is_lfs: bool) -> str:
    """The checksum that the Hub lists for a file: SHA-256 if it is stored as LFS, otherwise its git blob id."""
    from huggingface_hub.utils.sha import git_hash

    return file_sha256(path) if is_lfs else git_hash(path.read_bytes())
