"""What the Hub of the tests holds: repositories, commits and files, and the faults that it is asked for."""

import hashlib
import json
import time
from dataclasses import dataclass, field

TOKEN = "hf_" + "OwnerOfEverythingHere" + "0123456789"
READER = "hf_" + "MayReadButNotWriteHere" + "012345678"
LARGE = (".safetensors", ".bin", ".parquet", ".npy", ".gz", ".model")


@dataclass
class Fault:
    """A fault in place of a response, for the next `times` requests whose "METHOD /path" matches."""

    match: str
    kind: str = (
        "status"  # status, cut (no answer), cut_body (half of it), slow, corrupt, lost (done, but the response is lost)
    )
    times: int = 1
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "the server is unwell"
    seconds: float = 0.3
    skip: int = 0


@dataclass
class Blob:
    content: bytes
    is_large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def git(self) -> str:
        content = self.content
        if self.is_large:
            content = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (
                self.sha256.encode(),
                len(self.content),
            )
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Commit:
    sha: str
    title: str
    files: dict[str, Blob]


@dataclass
class Repo:
    private: bool
    commits: list[Commit]

    @property
    def head(self) -> Commit:
        return self.commits[-1]

    def at(self, revision: str) -> Commit | None:
        if revision == "main":
            return self.head
        return next((commit for commit in self.commits if commit.sha == revision), None)


class Refusal(Exception):
    """An answer other than what was asked for."""

    def __init__(self, status: int, message: str, code: str | None = None):
        self.status, self.message, self.code = status, message, code


def new_commit(title: str, files: dict[str, Blob], number: int) -> Commit:
    content = json.dumps([title, number, time.time_ns(), {path: blob.git for path, blob in files.items()}])
    return Commit(hashlib.sha1(content.encode()).hexdigest(), title, files)
