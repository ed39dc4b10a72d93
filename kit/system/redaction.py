"""Access tokens: found where the Hub's own library finds them, and kept out of all that kit shows and writes."""

import logging
import os
import re

REDACTED = "***"
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}")
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")  # user:password@host
_SIGNED = re.compile(r"(?<=\?)[^\s'\"]*(?:[Ss]ignature|[Tt]oken)=[^\s'\"]*")  # an address that lets its reader in
_SHORTEST = 8  # a shorter secret would be found in any text


def known_tokens() -> set[str]:
    """The tokens of this user: from the environment and from the file that `hf auth login` writes."""
    from huggingface_hub import get_token

    found = {os.environ.get(name, "").strip() for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")}
    return {token for token in {*found, get_token() or ""} if len(token) >= _SHORTEST}


def redact(text: str) -> str:
    """A text without tokens, passwords in addresses, and signatures of addresses."""
    for token in known_tokens():
        text = text.replace(token, REDACTED)
    for pattern in (_TOKEN, _IN_ADDRESS, _SIGNED):
        text = pattern.sub(REDACTED, text)
    return text


def contains_token(text: str) -> bool:
    """Whether a text holds what is, or looks like, a token of the Hub."""
    return _TOKEN.search(text) is not None or any(token in text for token in known_tokens())


class _Masking(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), ()
        return True


def redact_hub_logs() -> None:
    """Have what the Hub's library tells, such as that it tries again, pass through `redact`."""
    from huggingface_hub.utils import logging as hub_logging

    hub_logging.get_logger()  # its handlers are there only once it was asked for
    for handler in logging.getLogger("huggingface_hub").handlers:
        if not any(isinstance(known, _Masking) for known in handler.filters):
            handler.addFilter(_Masking())
