"""Text in figures: legible labels, in installed fonts that cover their scripts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

SPECIAL_NAMES = {"<s>": "START", "</s>": "END", "<pad>": "PAD", "<unk>": "UNKNOWN"}
"""Labels of special tokens; those of other tokenizers, such as [CLS], are readable already."""

MISSING_NOTE = "No installed font has some of the characters: they are shown as U+…"

MAX_LABEL = 24  # characters

_FONT = "DejaVu Sans"  # ships with matplotlib
_VISIBLE_SPACES = {" ": "␣", "\u2581": "␣", "\n": "⏎", "\t": "⇥"}  # many tokenizers write a space as U+2581
_JOINERS = "\u200c\u200d"  # invisible, but part of the spelling of words


@dataclass(frozen=True)
class Script:
    """The fonts to draw some texts with, in order of preference, and the characters of the texts that they cover."""

    fonts: list[str]
    drawable: frozenset[str]
    incomplete: bool
    """Whether the texts have visible characters that no installed font covers."""


def script_of(texts: Iterable[str]) -> Script:
    """Installed fonts that together cover as many visible characters of the texts as possible (a greedy choice)."""
    wanted = {character for text in texts for character in text if not _is_invisible(character)} | set(_JOINERS)
    drawable = {character for character in wanted if ord(character) in _characters(_FONT)}
    fonts = [_FONT]
    for font in _other_fonts() if not wanted <= drawable else ():
        added = {character for character in wanted - drawable if ord(character) in _characters(font)}
        if added:
            fonts.append(font)
            drawable |= added
        if wanted <= drawable:
            break
    return Script(fonts, frozenset(drawable), incomplete=not wanted <= drawable | set(_JOINERS))


def _other_fonts() -> list[str]:
    """Installed font families with an upright face of regular weight, sans-serif families first."""
    from matplotlib.font_manager import fontManager

    # "Last Resort" draws a box with the name of the script for every character. Families without a regular weight would
    # make matplotlib warn on stderr.
    names = {
        font.name
        for font in fontManager.ttflist
        if not font.name.startswith(("Last Resort", _FONT))
        and font.style == "normal"
        and font.weight in (400, "normal", "regular")
    }
    return sorted(names, key=lambda name: (not name.startswith("Noto Sans"), "Sans" not in name, name))


@lru_cache(maxsize=512)
def _characters(font: str) -> frozenset[int]:
    """The code points of the font file that matplotlib chooses for a family; empty if it cannot be read."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    try:
        return frozenset(get_font(findfont(FontProperties(family=[font]), fallback_to_default=False)).get_charmap())
    except (OSError, RuntimeError, ValueError):  # a corrupt or deleted font file
        return frozenset()


def _is_invisible(character: str) -> bool:
    """Whether a character has no glyph, or changes the direction of the text."""
    return character not in _JOINERS and unicodedata.category(character)[0] in "CZ" and character != " "


def label_of(token: str, script: Script, limit: int = MAX_LABEL, spaces: bool = False) -> str:
    """The label of a token: special tokens as names, characters without a font as code points, and spaces as ␣ unless
    `spaces` keeps them. Labels longer than `limit` are truncated."""
    if token in SPECIAL_NAMES:
        return SPECIAL_NAMES[token]
    label, after_code = "", False
    for character in token:
        if character in _VISIBLE_SPACES:
            piece, is_code = " " if spaces else _VISIBLE_SPACES[character], False
        elif character in script.drawable:
            piece, is_code = character, False
        elif character in _JOINERS:
            continue
        else:
            piece, is_code = f"U+{ord(character):04X}", True
        if label and (is_code or after_code) and " " not in (piece, label[-1]):
            piece = " " + piece
        if len(label) + len(piece) > limit:
            return label + "…"
        label, after_code = label + piece, is_code
    if not label.strip(_JOINERS):
        return " ".join(f"U+{ord(character):04X}" for character in token) or "(empty)"
    return label
