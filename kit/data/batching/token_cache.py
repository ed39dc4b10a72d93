"""Tokenized text: by several processes if requested, and only once for all runs that need the same.

The cache is `$HF_HOME/kit/prepared` (`KIT_CACHE` replaces `$HF_HOME/kit`), with one file per text, tokenizer and kind
of preparation. Deleted files are computed again. `Dataset.map` has a cache and processes too, but its fingerprint
depends on the pickle of the function, and it stores lists of Python integers row by row, not the packed arrays that
training reads.
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

from kit.errors import first_line
from kit.system.console import Reporter
from kit.system.machine import package_versions
from kit.system.outputs import atomic_write

FORMAT = 1
"""Increased whenever the same text and settings give different arrays."""

MAX_CHUNK_TEXTS = 1000
MAX_CHUNK_CHARACTERS = 2**18
"""Size of the chunks that texts are prepared in. It does not depend on the number of processes, so the result does not
either."""

Arrays = dict[str, np.ndarray]
R = TypeVar("R")
Work = Callable[[list[str]], R]


# ---- several processes -----------------------------------------------------------------------------------------------


def map_in_chunks(texts: Iterable[str], work: Work[R], workers: int, advance: Callable[[int], object]) -> Iterator[R]:
    """Call `work` on chunks of the texts and yield its results in order; in `workers` processes if there is more than
    one chunk.

    `advance` is called with the number of texts of each completed chunk.
    """
    chunks = chunk_texts(texts)
    first = [chunk for _, chunk in zip(range(2), chunks, strict=False)]
    if workers == 1 or len(first) < 2:
        for chunk in (*first, *chunks):
            yield work(chunk)
            advance(len(chunk))
        return
    waiting: deque[tuple[int, Future[R]]] = deque()
    # spawned, not forked: threads of this process may hold locks that nobody would release in a copy of it
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (work,)) as pool:
        for chunk in (*first, *chunks):
            waiting.append((len(chunk), pool.submit(_run_chunk, chunk)))
            if len(waiting) > 2 * workers:  # read texts no faster than they are processed
                count, future = waiting.popleft()
                yield future.result()
                advance(count)
        for count, future in waiting:
            yield future.result()
            advance(count)


def chunk_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts in chunks of limited number and total length."""
    chunk: list[str] = []
    room = MAX_CHUNK_CHARACTERS
    for text in texts:
        chunk.append(text)
        room -= len(text)
        if len(chunk) == MAX_CHUNK_TEXTS or room <= 0:
            yield chunk
            chunk, room = [], MAX_CHUNK_CHARACTERS
    if chunk:
        yield chunk


_work: Work[Any]


def _start_worker(work: Work[Any]) -> None:
    global _work  # sent once when the process starts: pickling a tokenizer for every chunk would dominate
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the user chose the number of processes; no threads on top
    _work = work


def _run_chunk(chunk: list[str]) -> Any:
    return _work(chunk)


# ---- the cache -------------------------------------------------------------------------------------------------------


def cache_dir() -> Path:
    """The folder of prepared texts."""
    return Path(os.environ.get("KIT_CACHE") or Path(constants.HF_HOME) / "kit") / "prepared"


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """A key that is equal only for tokenizers that give equal tokens; None for a slow tokenizer, which cannot be
    serialized."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    content = [tokenizer.backend_tokenizer.to_str(), json.dumps(tokenizer.special_tokens_map, default=str)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def cached_arrays(key: dict[str, Any], compute: Callable[[], Arrays], reporter: Reporter) -> Arrays:
    """The arrays that `compute` returns, from disk if they were computed before under the same key.

    If several processes need the same arrays at once, one computes them and the others wait. A corrupt file is computed
    again. If the cache cannot be written, a message is printed and the arrays are returned all the same.
    """
    versions = {name: v for name, v in package_versions().items() if name in ("kit", "tokenizers", "transformers")}
    name = json.dumps({**key, "format": FORMAT, "versions": versions}, sort_keys=True)
    path = cache_dir() / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.safetensors"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        lock.acquire()
    except OSError as error:
        reporter.print(f"prepared text is not cached: cannot write to {path.parent} ({error.strerror or error})")
        return compute()
    try:
        return _read_or_compute(path, name, compute, reporter)
    finally:
        lock.release()


def _read_or_compute(path: Path, name: str, compute: Callable[[], Arrays], reporter: Reporter) -> Arrays:
    if path.is_file():
        arrays, problem = read_arrays(path, name)
        if problem is None:
            return arrays
        reporter.print(f"{path} is corrupt ({problem}): preparing the text again")
    arrays = {key: np.ascontiguousarray(array) for key, array in compute().items()}
    try:
        with atomic_write(path) as temporary:
            save_file(arrays, temporary, {"key": name, "checksum": arrays_digest(arrays)})
    except (OSError, SafetensorError) as error:
        reporter.print(f"prepared text is not cached: cannot write {path} ({error})")
    return arrays


def read_arrays(path: Path, name: str) -> tuple[Arrays, str | None]:
    """The arrays of a cache file, and what is wrong with it, if anything."""
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {array: file.get_tensor(array) for array in file.keys()}  # noqa: SIM118 - it is not a dict
    except (OSError, ValueError, SafetensorError) as error:
        return {}, first_line(error)
    if metadata.get("key") != name:
        return {}, "it belongs to another key"
    if metadata.get("checksum") != arrays_digest(arrays):
        return {}, "it does not match its checksum"
    return arrays, None


def arrays_digest(arrays: Arrays) -> str:
    """A hexadecimal digest of names, types, shapes and content, as safetensors has no checksum of its own."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
