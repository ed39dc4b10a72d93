"""What can be the name of something on the Hub, and what the Hub says when it is not there."""

import re

HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def looks_like_hub_id(name: str) -> bool:
    """Whether a name may be "name" or "owner/name" on the Hub, rather than a path."""
    return HUB_ID.fullmatch(name) is not None


def one_line(error: Exception) -> str:
    """The message of an error of a Hub library as one line of readable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " …"
