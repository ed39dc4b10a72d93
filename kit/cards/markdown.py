"""Markdown of texts of unknown origin, which show as they are and can neither end what holds them nor be markup."""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

_LONGEST_TEXT = 300
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # characters that reverse the text around them


def escape(text: str) -> str:
    """Text of unknown origin as Markdown on one line that shows it literally, cut if it is very long."""
    text = clean(text)
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + "…"
    # References such as &#124; show as the character, and are never read as markup.
    return re.sub(r"[&<>|\\`*_\[\]~$@]", lambda found: f"&#{ord(found[0])};", text)


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; every cell is escaped, numbers are shown with four digits."""
    lines = [[escape(heading) for heading in headings], ["---"] * len(headings)]
    lines += [[_cell(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code_block(text: str, language: str) -> str:
    """A fenced block that its content cannot end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def quoted(text: str) -> str:
    """Text as a literal of Python."""
    return json.dumps(clean(text), ensure_ascii=False)


def code(text: str) -> str:
    return clean(text).replace("`", "'")


def clean(text: str) -> str:
    """Text on one line without characters that cannot be seen, cannot be written, or turn what stands around them."""
    letters = (
        "\ufffd" if letter in _TURNING or unicodedata.category(letter) in ("Cc", "Cs") else letter
        for letter in " ".join(text.split())
    )
    return "".join(letters)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))
