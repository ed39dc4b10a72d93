"""Words of plain text, for models that tag words."""

import regex

WORD = regex.compile(r"\p{N}+|[\p{L}\p{M}\p{Cf}]+|\S")


def split_words(text: str) -> list[str]:
    """Runs of digits, runs of letters with their marks, and other characters one by one; no white space."""
    return WORD.findall(text)
