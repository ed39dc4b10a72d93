"""Calls to the Hub: retried where that can help, and otherwise ended by one readable error.

huggingface_hub retries most single requests. This layer retries whole calls, and turns the dozens of exceptions below
into a KitError that names what failed, why, and what to do.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kit.errors import HubError, KitError, NetworkError
from kit.hub.names import one_line
from kit.system.redaction import redact, redact_hub_logs

T = TypeVar("T")

ATTEMPTS = 4
_MAX_WAIT = 30.0  # seconds
_TRANSIENT_STATUS = (408, 429, 500, 502, 503, 504)  # the codes that huggingface_hub retries
INVALID_TOKEN = "the Hub rejects the token. Run `hf auth login`, or correct HF_TOKEN"


def print_error(message: str) -> None:
    """Print a message to stderr, with secrets redacted."""
    print(redact(message), file=sys.stderr)


def with_retries(call: Callable[[], T], action: str, report: Callable[[str], None] = print_error) -> T:
    """The result of a call to the Hub, repeated after a pause if it fails for a transient reason.

    Raises a KitError that starts with `action`, which states what could not be done.
    """
    redact_hub_logs()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return call()
        except KitError:
            raise
        except Exception as error:
            if not is_transient(error) or attempt == ATTEMPTS:
                raise to_kit_error(error, action) from None
            wait_before_retry(error, attempt, report)
    raise AssertionError("the last attempt returns or raises")


def wait_before_retry(error: BaseException, attempt: int, report: Callable[[str], None] = print_error) -> None:
    """Sleep before the next attempt: exponentially longer each time, or as long as the Hub asks for (Retry-After)."""
    wait = min(_MAX_WAIT, float(_retry_after(error) or 2 ** (attempt - 1)))
    report(f"the Hub: {describe_error(error)}; retrying in {wait:.0f} s ({attempt} of {ATTEMPTS - 1})")
    time.sleep(wait)


def _retry_after(error: BaseException) -> int | None:
    """The seconds in the Retry-After header of an error or of one of its causes; None if there are none."""
    for cause in cause_chain(error):
        seconds = getattr(getattr(cause, "response", None), "headers", {}).get("Retry-After", "")
        if seconds.isdecimal() and len(seconds) < 9:  # a date is allowed, too; more digits are not plausible
            return int(seconds)
    return None


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and everything that it was raised from."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def status_code(error: BaseException) -> int | None:
    """The HTTP status code behind an exception."""
    for cause in cause_chain(error):
        code = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(code, int):
            return code
    return None


def is_transient(error: BaseException) -> bool:
    """Whether the same call can succeed later: no answer, a truncated answer, or a status code that indicates it."""
    import httpx2
    from huggingface_hub.constants import is_offline_mode

    code = status_code(error)
    if code is not None or is_offline_mode():  # offline mode does not end by itself
        return code in _TRANSIENT_STATUS
    return any(
        isinstance(cause, httpx2.TransportError | json.JSONDecodeError | ConnectionError)
        or "Consistency check failed" in str(cause)  # huggingface_hub: a file of unexpected size
        for cause in cause_chain(error)
    )


def describe_error(error: BaseException) -> str:
    """The Hub's answer, or the reason why there is none, on one line without secrets."""
    code = status_code(error)
    server = next((text for cause in cause_chain(error) if (text := getattr(cause, "server_message", None))), None)
    root = list(cause_chain(error))[-1]
    text = str(server) if server else one_line(root) if isinstance(root, Exception) else str(root)
    return redact(f"{code}, {text}" if code is not None and server else text)


def to_kit_error(error: Exception, action: str) -> KitError:
    """A KitError for a failed call: what could not be done (`action`), why, and what to do about it."""
    from huggingface_hub import errors

    code = status_code(error)
    kinds = tuple(type(cause) for cause in cause_chain(error))

    def is_a(*wanted: Any) -> bool:
        return any(issubclass(kind, wanted) for kind in kinds)

    if is_a(errors.OfflineModeIsEnabled):
        return HubError(
            f"{action}: HF_HUB_OFFLINE is set, and the cache does not have it. Unset HF_HUB_OFFLINE, or "
            "name a local folder"
        )
    if is_transient(error):
        return NetworkError(
            f"{action}: {describe_error(error)}. Run the same command again later; `kit doctor --hub` checks the "
            "connection"
        )
    if is_a(errors.RevisionNotFoundError):
        return HubError(f"{action}: the repository has no such revision (branch, tag or commit)")
    if is_a(errors.GatedRepoError):
        return HubError(f"{action}: the repository is gated. Request access on its page, and run `hf auth login`")
    if code == 401 and not is_a(errors.RepositoryNotFoundError):
        return HubError(f"{action}: {INVALID_TOKEN}")
    if is_a(errors.RepositoryNotFoundError):
        return HubError(
            f"{action}: the Hub has no repository of this name, or it is private and the token (`hf auth login`, or "
            "HF_TOKEN) has no access to it"
        )
    if code == 403:
        return HubError(f"{action}: the token lacks permission. It needs write access ({describe_error(error)})")
    if is_a(errors.HFValidationError):
        return HubError(f"{action}: this is not a valid repository name ({describe_error(error)})")
    return HubError(f"{action}: {describe_error(error)}")
