"""One message for whatever transformers, tokenizers, safetensors and peft raise about files that they load."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.errors import KitError, RunError, first_line
from kit.system.redaction import redact

EXPECTED = ("OSError", "ValueError", "SafetensorError", "Exception")
"""Exceptions whose text explains itself; others are named, as in "KeyError: 'added_tokens'"."""


@contextmanager
def one_line_errors(name: str | Path, file: str = "") -> Iterator[None]:
    """Turn exceptions of libraries about a model folder, or a `file` in it, into a RunError of one line.

    The block contains calls of libraries only: what they raise for a damaged file can be of any type.
    """
    try:
        with _without_panics():
            yield
    except KitError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        if "trust_remote_code" in str(error):
            raise RunError(
                f"{name} contains custom code, which kit does not run. If you trust it, load it yourself "
                "with trust_remote_code=True and save it as a model that transformers knows"
            ) from None
        line, kind = first_line(error), type(error).__name__
        reason = line if kind in EXPECTED or line == kind else f"{kind}: {line}"
        where = f"{file}: " if file else ""
        raise RunError(
            f"{name} cannot be loaded as a run, a model folder or a Hub id: {where}{redact(reason)}"
        ) from None


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic of a library in Rust: these do not derive from Exception."""
    return type(error).__name__ == "PanicException"


@contextmanager
def _without_panics() -> Iterator[None]:
    """Keep Rust from printing a panic, with its stack, to the standard error of the process."""
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    panicked = False
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        except BaseException as error:
            panicked = is_panic(error)
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            if not panicked and (text := written.read()):
                os.write(2, text)
