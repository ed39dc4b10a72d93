"""What pictures write: labels that a reader can make out, in the fonts that are there for their scripts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

SPECIAL_NAMES = {"<s>": "START", "</s>": "END", "<pad>": "PAD", "<unk>": "UNKNOWN"}
"""What special tokens are called in a picture; those of other tokenizers, such as [CLS], are names already."""

MISSING_NOTE = "No suitable font is installed for some characters: U+… stands for one of them."

MAX_LABEL = 24  # characters

_FONT = "DejaVu Sans"  # comes with matplotlib
_SIGNS = {" ": "␣", "\u2581": "␣", "\n": "⏎", "\t": "⇥"}  # many tokenizers write a space as U+2581
_JOINERS = "\u200c\u200d"  # invisible, but part of how words are spelt


@dataclass(frozen=True)
class Script:
    """Which fonts to draw with, in the order of preference, and which characters they have."""

    fonts: list[str]
    drawable: frozenset[str]
    incomplete: bool


def script_of(texts: Iterable[str]) -> Script:
    """The fewest installed fonts that together have as many of the visible characters as can be had."""
    wanted = {letter for text in texts for letter in text if not _invisible(letter)} | set(_JOINERS)
    drawable = {letter for letter in wanted if ord(letter) in _characters(_FONT)}
    fonts = [_FONT]
    for font in _other_fonts() if not wanted <= drawable else ():
        gained = {letter for letter in wanted - drawable if ord(letter) in _characters(font)}
        if gained:
            fonts.append(font)
            drawable |= gained
        if wanted <= drawable:
            break
    return Script(fonts, frozenset(drawable), incomplete=not wanted <= drawable | set(_JOINERS))


def _other_fonts() -> list[str]:
    """Installed font families with an upright face of normal weight, those without serifs first."""
    from matplotlib.font_manager import fontManager

    # The "last resort" font has a box with a script's name for every character: no help to a reader.
    # Matplotlib complains on stderr about a family without the weight that is asked for.
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
    """Code points that the font has, in the file that matplotlib would choose for this family."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    try:
        return frozenset(get_font(findfont(FontProperties(family=[font]), fallback_to_default=False)).get_charmap())
    except (OSError, RuntimeError, ValueError):  # a font file that is broken or gone is one font less
        return frozenset()


def _invisible(letter: str) -> bool:
    """Whether a reader could not see the character, or it would turn the direction of text."""
    return letter not in _JOINERS and unicodedata.category(letter)[0] in "CZ" and letter != " "


def label_of(token: str, script: Script, limit: int = MAX_LABEL, spaces: bool = False) -> str:
    """What is written for a token: each character visible and drawable, or its code point; or with spaces."""
    if token in SPECIAL_NAMES:
        return SPECIAL_NAMES[token]
    label, after_code = "", False
    for letter in token:
        if letter in _SIGNS:
            piece, is_code = " " if spaces else _SIGNS[letter], False
        elif letter in script.drawable:
            piece, is_code = letter, False
        elif letter in _JOINERS:
            continue
        else:
            piece, is_code = f"U+{ord(letter):04X}", True
        if label and (is_code or after_code) and " " not in (piece, label[-1]):
            piece = " " + piece
        if len(label) + len(piece) > limit:
            return label + "…"
        label, after_code = label + piece, is_code
    if not label.strip(_JOINERS):
        return " ".join(f"U+{ord(letter):04X}" for letter in token) or "(empty)"
    return label
