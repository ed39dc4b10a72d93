"""Access tokens: detected where huggingface_hub looks for them, and removed from everything kit prints or writes."""

import logging
import mmap
import os
import re
from pathlib import Path

REDACTED = "***"
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
# user:password@host; Path() makes one slash of two, and a password may hold an @ that is not quoted
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+(?=@)|(?<=:/)[^/\s:]+:[^/\s]+(?=@)")
_SIGNED_QUERY = re.compile(r"(?<=\?)[^\s'\"]*(?:[Ss]ignature|[Tt]oken)=[^\s'\"]*")  # presigned URLs grant access
_MIN_TOKEN_LENGTH = 8  # a shorter string would match ordinary text


def known_tokens() -> set[str]:
    """The user's tokens, from the environment and from the file that `hf auth login` writes."""
    from huggingface_hub import get_token

    tokens = {os.environ.get(name, "").strip() for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")}
    return {token for token in {*tokens, get_token() or ""} if len(token) >= _MIN_TOKEN_LENGTH}


def redact(text: str) -> str:
    """The text with tokens, credentials in URLs and signed URL queries replaced by `***`."""
    for token in known_tokens():
        text = text.replace(token, REDACTED)
    for pattern in (_TOKEN, _URL_CREDENTIALS, _SIGNED_QUERY):
        text = pattern.sub(REDACTED, text)
    return text


def contains_token(text: str) -> bool:
    """Whether the text contains one of the user's tokens, or anything that looks like a Hub token."""
    return _TOKEN.search(text) is not None or any(token in text for token in known_tokens())


def file_contains_token(path: Path) -> bool:
    """Whether a file of any kind contains such a token among its bytes, as UTF-8 or as UTF-16."""
    if path.stat().st_size == 0:
        return False
    wide = rb"h\0f\0_\0(?:[A-Za-z0-9]\0){20}"
    pattern = b"|".join([_TOKEN.pattern.encode(), wide, *(re.escape(token.encode()) for token in known_tokens())])
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return re.search(pattern, content) is not None


class _RedactingFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), ()
        return True


def redact_hub_logs() -> None:
    """Redact what huggingface_hub logs, such as its messages about retries. Calling it again changes nothing."""
    from huggingface_hub.utils import logging as hub_logging

    hub_logging.get_logger()  # huggingface_hub adds its handlers on the first call
    for handler in logging.getLogger("huggingface_hub").handlers:
        if not any(isinstance(known, _RedactingFilter) for known in handler.filters):
            handler.addFilter(_RedactingFilter())
