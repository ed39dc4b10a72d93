"""Names of repositories on the Hub, and the messages of its errors."""

import re
from dataclasses import dataclass
from pathlib import Path

COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?"
_REFERENCE = re.compile(rf"(?P<repo>{_NAME})(?:@(?P<revision>[\w-][\w./-]*))?")
_MAX_MESSAGE_LENGTH = 300  # characters of a server's answer that a message repeats


@dataclass(frozen=True)
class RepoRef:
    """A repository on the Hub, at a revision (branch, tag or commit) or at the newest commit of its main branch."""

    repo: str
    revision: str | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, so that the content can never change."""
        return self.revision is not None and COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def parse_repo_id(name: str | Path) -> RepoRef | None:
    """The repository that `NAME`, `OWNER/NAME` or `OWNER/NAME@REVISION` refers to.

    None for an existing file or folder, which takes precedence, and for a path that cannot be a repository name.
    """
    return None if exists(Path(name)) else parse_foreign_repo_id(name)


def parse_foreign_repo_id(name: str | Path) -> RepoRef | None:
    """Like `parse_repo_id`, for a name in a file from someone else: files and folders of this machine do not count."""
    match = _REFERENCE.fullmatch(str(name))
    return None if match is None or ".." in str(name) else RepoRef(match["repo"], match["revision"])


def looks_like_hub_id(name: str) -> bool:
    """Whether a name can be `NAME` or `OWNER/NAME` on the Hub, rather than a path."""
    return re.fullmatch(_NAME, name) is not None


def is_in_folder(name: str) -> bool:
    """Whether a name is probably that of a missing file or folder rather than `OWNER/NAME` on the Hub: it would be in a
    folder that exists."""
    parent = Path(name).parent
    return parent != Path() and exists(parent)


def one_line(error: Exception) -> str:
    """The message of an exception on one line, shortened to 300 characters; its class name if the message is empty."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_MESSAGE_LENGTH else text[:_MAX_MESSAGE_LENGTH] + " …"


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for the file system, or with a null byte
        return False
