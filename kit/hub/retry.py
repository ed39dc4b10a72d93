"""What goes wrong between here and the Hub: tried again where that helps, and told in one message where it does not."""

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
"""How often a call is made in all; the Hub's library tries most requests several times itself."""
_LONGEST_WAIT = 30.0
_PASSING = (408, 429, 500, 502, 503, 504)  # as the Hub's library has it


def print_error(message: str) -> None:
    """Tell the person at the terminal."""
    print(redact(message), file=sys.stderr)


def with_retries(action: Callable[[], T], what: str, tell: Callable[[str], None] = print_error) -> T:
    """The result of a call to the Hub, made again after a while if it fails for a reason that may pass.

    `what` is what could not be done, for the message of the KitError that it ends in otherwise.
    """
    redact_hub_logs()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return action()
        except KitError:
            raise
        except Exception as error:
            if not is_transient(error) or attempt == ATTEMPTS:
                raise to_kit_error(error, what) from None
            wait_before_retry(error, attempt, tell)
    raise AssertionError("the last attempt returns or raises")


def wait_before_retry(error: BaseException, attempt: int, tell: Callable[[str], None] = print_error) -> None:
    """Wait before the next attempt: twice as long each time, or as long as the Hub asks for."""
    wait = min(_LONGEST_WAIT, float(_asked_wait(error) or 2 ** (attempt - 1)))
    tell(f"the Hub: {describe_error(error)}; trying again in {wait:.0f} s ({attempt} of {ATTEMPTS - 1})")
    time.sleep(wait)


def _asked_wait(error: BaseException) -> int | None:
    for cause in cause_chain(error):
        asked = getattr(getattr(cause, "response", None), "headers", {}).get("Retry-After", "")
        if asked.isdigit():
            return int(asked)
    return None


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was raised from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def status_code(error: BaseException) -> int | None:
    """The status code of the answer that an error stands for."""
    for cause in cause_chain(error):
        code = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(code, int):
            return code
    return None


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later: no answer, half an answer, or one that says so."""
    import httpx2
    from huggingface_hub.constants import is_offline_mode

    code = status_code(error)
    if code is not None or is_offline_mode():  # where it is not asked, nothing passes
        return code in _PASSING
    return any(
        isinstance(cause, httpx2.TransportError | json.JSONDecodeError | ConnectionError)
        or "Consistency check failed" in str(cause)
        for cause in cause_chain(error)
    )


def describe_error(error: BaseException) -> str:
    """What the Hub answered, or why it did not, in one line without secrets."""
    code = status_code(error)
    server = next((text for cause in cause_chain(error) if (text := getattr(cause, "server_message", None))), None)
    last = list(cause_chain(error))[-1]
    text = str(server) if server else one_line(last) if isinstance(last, Exception) else str(last)
    return redact(f"{code}, {text}" if code is not None and server else text)


def to_kit_error(error: Exception, what: str) -> KitError:
    """The error of a call as one that a user can read: what failed, why, and what to do."""
    from huggingface_hub import errors

    code = status_code(error)
    kinds = tuple(type(cause) for cause in cause_chain(error))

    def is_a(*wanted: Any) -> bool:
        return any(issubclass(kind, wanted) for kind in kinds)

    if is_a(errors.OfflineModeIsEnabled):
        return HubError(f"{what}: HF_HUB_OFFLINE is set, so that only the cache is looked into. Unset it")
    if is_transient(error):
        return NetworkError(
            f"{what}: {describe_error(error)}. Run the same command again later; `kit doctor --hub` looks closer"
        )
    if is_a(errors.RevisionNotFoundError):
        return HubError(f"{what}: it has no such revision (branch, tag or commit)")
    if is_a(errors.GatedRepoError):
        return HubError(f"{what}: it is gated. Ask for access on its page, and log in with `hf auth login`")
    if code == 401 and not is_a(errors.RepositoryNotFoundError):
        return HubError(f"{what}: the Hub does not know the token. Log in with `hf auth login`, or mend HF_TOKEN")
    if is_a(errors.RepositoryNotFoundError):
        return HubError(
            f"{what}: there is no such name on the Hub, or it is private and the token (`hf auth login`, or HF_TOKEN) "
            "does not open it"
        )
    if code == 403:
        return HubError(
            f"{what}: the token has not the right to. It must be able to write there ({describe_error(error)})"
        )
    if is_a(errors.HFValidationError):
        return HubError(f"{what}: this is no name on the Hub ({describe_error(error)})")
    return HubError(f"{what}: {describe_error(error)}")
