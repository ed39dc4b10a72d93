"""The failure of a run, recorded in its folder for `kit runs`."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kit.runs.folder import RunFolder
from kit.system.json_files import write_json
from kit.system.redaction import redact
from kit.training.loop import TrainingInterrupted


@contextmanager
def recorded_failure(folder: RunFolder, is_main_process: bool) -> Iterator[None]:
    """Context manager: the main process writes an exception of the block to failure.json, and re-raises it.

    A signal that stops the run is not a failure. The next start of the run removes the file.
    """
    try:
        yield
    except TrainingInterrupted:
        raise
    except Exception as error:
        if is_main_process:
            with suppress(OSError):  # the disk may be full, which can be the failure itself
                message = " ".join(str(error).split())
                write_json(folder.failure_file, {"error": redact(message or type(error).__name__)})
        raise
