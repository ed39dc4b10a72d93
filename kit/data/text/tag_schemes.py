"""Conversion between tags of words and spans: BIO (also called IOB2), IOB1, IOBES (BIOES) and BILOU.

    words    Anna   Smith   met    Bo      Li      IBM
    BIO      B-PER  I-PER   O      B-PER   B-PER   B-ORG
    IOB1     I-PER  I-PER   O      I-PER   B-PER   I-ORG    B only if a span follows another of its type
    IOBES    B-PER  E-PER   O      S-PER   S-PER   S-ORG    E ends a span, S is a span of one word
    BILOU    B-PER  L-PER   O      U-PER   U-PER   U-ORG    the same, with other letters

Reading is the same for all of them, and never fails on an invalid sequence: a span starts at B or S, or where a tag
does not continue the one before, as in seqeval and the CoNLL evaluation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kit.errors import DataError, KitError, did_you_mean

LETTERS = {"BIO": "BI", "IOB1": "BI", "IOBES": "BIES", "BILOU": "BILU"}
ALIASES = {"IOB2": "BIO", "BIOES": "IOBES"}
OUTSIDE = "O"

_IOBES_LETTER = {"L": "E", "U": "S"}  # of the letters of BILOU

Span = tuple[str, int, int]
"""Type, index of the first word, and index after the last word."""


@dataclass(frozen=True)
class Conversion:
    """Tags converted to another scheme."""

    sequences: list[list[str]]
    source: str
    """The scheme they were in."""
    repaired: int
    """Tags of the source that are invalid in its scheme, such as I after O in BIO."""


def scheme_name(name: str) -> str:
    """The scheme of this name or alias. Raises KitError if there is none."""
    known = ALIASES.get(name.upper(), name.upper())
    if known not in LETTERS:
        names = (*LETTERS, *ALIASES)
        raise KitError(f'Unknown tag scheme "{name}".{did_you_mean(name, names)} Available: {", ".join(names)}.')
    return known


def split_tag(tag: str) -> tuple[str, str]:
    """Letter and type: ("B", "PER") for B-PER; a letter alone has the type "". Raises DataError for any other text."""
    letter, dash, kind = tag.partition("-")
    if (tag == OUTSIDE) or (letter in {"B", "I", "E", "S", "L", "U"} and bool(kind) == bool(dash)):
        return letter, kind
    raise DataError(
        f'"{tag}" is not a span tag: expected O, or one of the letters B, I, E, S, L, U with a type as in B-PER.'
    )


def tags_to_spans(tags: Sequence[str]) -> list[Span]:
    """The spans of a sentence, in order."""
    spans: list[Span] = []
    start, last, kind = 0, OUTSIDE, ""
    for index, tag in enumerate([*tags, OUTSIDE]):
        letter, tag_kind = split_tag(tag)
        letter = _IOBES_LETTER.get(letter, letter)
        continues = last in ("B", "I") and letter in ("I", "E") and tag_kind == kind
        if not continues:
            if last != OUTSIDE:
                spans.append((kind, start, index))
            start, kind = index, tag_kind
        last = letter
    return spans


def spans_to_tags(spans: Iterable[Span], length: int, scheme: str) -> list[str]:
    """The tags of a sentence of `length` words; the spans must not overlap."""
    scheme = scheme_name(scheme)
    tags = [OUTSIDE] * length
    ended: tuple[str, int] | None = None
    for kind, start, end in sorted(spans, key=lambda span: span[1]):
        if scheme in ("BIO", "IOB1"):
            first = "I" if scheme == "IOB1" and ended != (kind, start) else "B"
            letters = first + "I" * (end - start - 1)
        else:
            last, single = ("E", "S") if scheme == "IOBES" else ("L", "U")
            letters = single if end - start == 1 else "B" + "I" * (end - start - 2) + last
        tags[start:end] = [f"{letter}-{kind}" if kind else letter for letter in letters]
        ended = (kind, end)
    return tags


def detect_scheme(sequences: Iterable[Sequence[str]]) -> str:
    """The scheme of tags, by their letters; between BIO and IOB1, the one with fewer invalid tags.

    BIO if both fit, as with tags without spans. Raises DataError if letters of IOBES and BILOU are mixed.
    """
    letters: set[str] = set()
    invalid = {"BIO": 0, "IOB1": 0}
    for tags in sequences:
        letters |= {split_tag(tag)[0] for tag in tags}
        if letters <= {"B", "I", OUTSIDE}:
            for scheme in invalid:
                invalid[scheme] += _count_differences(tags, spans_to_tags(tags_to_spans(tags), len(tags), scheme))
    if letters & {"E", "S"} and letters & {"L", "U"}:
        raise DataError(f"Tags of IOBES and BILOU are mixed: the letters are {', '.join(sorted(letters))}.")
    if letters & {"E", "S"}:
        return "IOBES"
    if letters & {"L", "U"}:
        return "BILOU"
    return min(invalid, key=lambda scheme: invalid[scheme])


def convert(sequences: Sequence[Sequence[str]], target: str, source: str | None = None) -> Conversion:
    """The tags in the scheme `target`; without `source`, their scheme is detected.

    Spans do not change. Sequences that are invalid in the source scheme are read like any other, and counted. Raises
    DataError for a tag that the source scheme does not have.
    """
    scheme = detect_scheme(sequences) if source is None else scheme_name(source)
    target, repaired, converted = scheme_name(target), 0, []
    for number, tags in enumerate(sequences, start=1):
        for tag in tags:
            if split_tag(tag)[0] not in LETTERS[scheme] + OUTSIDE:
                raise DataError(f'Sentence {number}: {scheme} has no tag "{tag}". Set the right scheme.')
        spans = tags_to_spans(tags)
        repaired += _count_differences(tags, spans_to_tags(spans, len(tags), scheme))
        converted.append(spans_to_tags(spans, len(tags), target))
    return Conversion(converted, scheme, repaired)


def all_tags(kinds: Iterable[str], scheme: str) -> list[str]:
    """Every tag of spans of these types: O first, then by type."""
    letters = LETTERS[scheme_name(scheme)]
    return [OUTSIDE, *(f"{letter}-{kind}" if kind else letter for kind in sorted(set(kinds)) for letter in letters)]


def _count_differences(tags: Sequence[str], others: Sequence[str]) -> int:
    return sum(tag != other for tag, other in zip(tags, others, strict=True))
