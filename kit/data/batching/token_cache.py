"""Texts made into tokens: by several processes if wanted, and once for all runs that need the same.

What has been prepared lies in `$HF_HOME/kit/prepared` (`KIT_CACHE` names another folder than `$HF_HOME/kit`), one file
for each text, tokenizer and kind of preparation. Whatever is deleted there is made again.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock
from huggingface_hub import constants
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from kit.system.console import Reporter
from kit.system.files import atomic_write
from kit.system.machine import package_versions

FORMAT = 1
"""Raised whenever the same text and settings give other arrays than before."""

TEXTS_AT_ONCE = 1000
CHARACTERS_AT_ONCE = 2**18
"""Size of the portions in which texts are prepared, which does not depend on the number of processes."""

Arrays = dict[str, np.ndarray]
R = TypeVar("R")
Work = Callable[[list[str]], R]


# ---- several processes -----------------------------------------------------------------------------------------------


def map_in_chunks(texts: Iterable[str], work: Work[R], workers: int, advance: Callable[[int], object]) -> Iterator[R]:
    """What `work` makes of the texts, a portion at a time, in order; by `workers` processes where there are several
    portions. `advance` is told the number of texts that are done."""
    pieces = chunk_texts(texts)
    first = [piece for _, piece in zip(range(2), pieces, strict=False)]
    if workers == 1 or len(first) < 2:
        for piece in (*first, *pieces):
            yield work(piece)
            advance(len(piece))
        return
    waiting: deque[tuple[int, Future[R]]] = deque()
    # new processes rather than copies of this one, whose threads may hold locks that nobody would ever release
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (work,)) as pool:
        for piece in (*first, *pieces):
            waiting.append((len(piece), pool.submit(_go_on, piece)))
            if len(waiting) > 2 * workers:  # texts are read no faster than they are prepared
                count, done = waiting.popleft()
                yield done.result()
                advance(count)
        for count, done in waiting:
            yield done.result()
            advance(count)


def chunk_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts a few at a time: not many, and not much more than so many characters."""
    piece: list[str] = []
    room = CHARACTERS_AT_ONCE
    for text in texts:
        piece.append(text)
        room -= len(text)
        if len(piece) == TEXTS_AT_ONCE or room <= 0:
            yield piece
            piece, room = [], CHARACTERS_AT_ONCE
    if piece:
        yield piece


_work: Work[Any]


def _begin(work: Work[Any]) -> None:
    global _work  # a process has nowhere else to keep what it was started with
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many processes as there shall be
    _work = work


def _go_on(piece: list[str]) -> Any:
    return _work(piece)


# ---- what has been prepared before -----------------------------------------------------------------------------------


def cache_dir() -> Path:
    """Where prepared texts are kept."""
    return Path(os.environ.get("KIT_CACHE") or Path(constants.HF_HOME) / "kit") / "prepared"


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """What stands for a tokenizer: equal keys, equal tokens. None if it does not tell its whole content."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    content = [tokenizer.backend_tokenizer.to_str(), json.dumps(tokenizer.special_tokens_map, default=str)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def cached_arrays(key: dict[str, Any], make: Callable[[], Arrays], reporter: Reporter) -> Arrays:
    """The arrays that `make` makes, from disk if they were made before under the same key.

    Of several processes that want the same at once, one makes it and the others wait. A file that is not as it was
    written is made anew. Where nothing can be kept, all goes on without.
    """
    packages = {
        name: version for name, version in package_versions().items() if name in ("kit", "tokenizers", "transformers")
    }
    name = json.dumps({**key, "format": FORMAT, "versions": packages}, sort_keys=True)
    path = cache_dir() / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        lock.acquire()
    except OSError as error:
        reporter.print(f"prepared text is not kept: {path.parent} cannot be written ({error.strerror or error})")
        return make()
    try:
        return _read_or_made(path, name, make, reporter)
    finally:
        lock.release()


def _read_or_made(path: Path, name: str, make: Callable[[], Arrays], reporter: Reporter) -> Arrays:
    if path.is_file():
        arrays, wrong = read_arrays(path, name)
        if wrong is None:
            return arrays
        reporter.print(f"{path} is broken ({wrong}): the text is prepared anew")
    arrays = {array: np.ascontiguousarray(content) for array, content in make().items()}
    try:
        with atomic_write(path) as temporary:
            save_file(arrays, temporary, {"key": name, "checksum": checksum(arrays)})
    except (OSError, SafetensorError) as error:
        reporter.print(f"prepared text is not kept: {path} cannot be written ({error})")
    return arrays


def read_arrays(path: Path, name: str) -> tuple[Arrays, str | None]:
    """The arrays of a file, and what is wrong with it."""
    try:
        with safe_open(path, framework="np") as file:
            told = file.metadata() or {}
            arrays = {array: file.get_tensor(array) for array in file.keys()}  # noqa: SIM118 - it is no dict
    except (OSError, ValueError, SafetensorError) as error:
        return {}, str(error).splitlines()[0]
    if told.get("key") != name:
        return {}, "it was made for something else"
    if told.get("checksum") != checksum(arrays):
        return {}, "it does not match its checksum"
    return arrays, None


def checksum(arrays: Arrays) -> str:
    """A number for the whole content."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
