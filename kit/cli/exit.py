"""How the command ends when it cannot go on: with one message, or with a traceback that shows no secrets."""

import os
import sys
from typing import NoReturn

from kit.system.redaction import redact


def is_main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def end_with_traceback() -> NoReturn:
    """End as Python does, but show no access token that may be in a message; in a group of processes the launcher shows
    the traceback, once."""
    import traceback

    from kit.training.launch import report_failure

    if not report_failure(None, 1):
        print(redact(traceback.format_exc()), end="", file=sys.stderr)
    sys.exit(1)


def fail(message: str, code: int) -> NoReturn:
    """End with a message; in a group of processes the launcher shows it, once."""
    from kit.training.launch import report_failure

    if not report_failure(message, code):
        number = "" if is_main_process() else f" (process {os.environ['RANK']})"
        print(f"{message}{number}", file=sys.stderr)
    sys.exit(code)
