"""Escape untrusted text for Markdown: it shows literally, and can neither end its cell or block nor add markup."""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

_MAX_TEXT_LENGTH = 300  # characters
_BIDI_CONTROLS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def escape(text: str) -> str:
    """Text as one line of Markdown that shows it literally, truncated to 300 characters."""
    text = clean(text)
    if len(text) > _MAX_TEXT_LENGTH:
        text = text[:_MAX_TEXT_LENGTH] + "…"
    # Character references such as &#124; are never parsed as markup (CommonMark, section 2.5). Between letters or
    # digits, an underscore does not delimit emphasis (section 6.2): names such as exact_match stay as they are.
    return re.sub(r"[&<>|\\`*\[\]~$@]|(?<![^\W_])_|_(?![^\W_])", lambda match: f"&#{ord(match[0])};", text)


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table, or an empty string if there are no rows; cells are escaped, floats have four digits."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return ""
    lines = [[escape(heading) for heading in headings], ["---"] * len(headings), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code_block(text: str, language: str) -> str:
    """A fenced code block, with a fence longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def quoted(text: str) -> str:
    """Text as a Python string literal on one line."""
    return json.dumps(clean(text), ensure_ascii=False)


def code(text: str) -> str:
    """Text for a code span, with backticks replaced."""
    return clean(text).replace("`", "'")


def clean(text: str) -> str:
    """Text on one line, with control characters, surrogates and direction overrides replaced."""
    return "".join(
        "\ufffd" if character in _BIDI_CONTROLS or unicodedata.category(character) in ("Cc", "Cs") else character
        for character in " ".join(text.split())
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(", ".join(map(str, value)) if isinstance(value, list) else str(value))
