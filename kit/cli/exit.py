"""Exit after an error: with one message, or with a traceback without secrets."""

import os
import sys
from typing import NoReturn

from kit.system.redaction import redact


def is_main_process() -> bool:
    """Whether this is the only process or the one with rank 0."""
    return os.environ.get("RANK", "0") == "0"


def end_with_traceback() -> NoReturn:
    """Print the traceback without access tokens and exit; among several processes, the launcher prints it once."""
    import traceback

    from kit.training.launch import report_failure

    if not report_failure(None, 1):
        print(redact(traceback.format_exc()), end="", file=sys.stderr)
    sys.exit(1)


def fail(message: str, code: int) -> NoReturn:
    """Print a message and exit; among several processes, the launcher prints it once."""
    from kit.training.launch import report_failure

    if not report_failure(message, code):
        rank = "" if is_main_process() else f" (process {os.environ['RANK']})"
        print(f"{message}{rank}", file=sys.stderr)
    sys.exit(code)
