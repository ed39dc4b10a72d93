"""Tags of words as spans, and spans as tags: BIO (also called IOB2), IOB1, IOBES (BIOES) and BILOU.

    words    Anna   Smith   met    Bo      Li      IBM
    BIO      B-PER  I-PER   O      B-PER   B-PER   B-ORG
    IOB1     I-PER  I-PER   O      I-PER   B-PER   I-ORG    B only where a span follows another of its type
    IOBES    B-PER  E-PER   O      S-PER   S-PER   S-ORG    E ends a span, S is one of a single word
    BILOU    B-PER  L-PER   O      U-PER   U-PER   U-ORG    the same with other letters

Reading is the same for all of them, and never fails on an impossible order of tags: a span begins where B or S says so,
or where a tag does not continue the one before, as seqeval and the CoNLL evaluation read it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kit.errors import DataError, KitError, did_you_mean

LETTERS = {"BIO": "BI", "IOB1": "BI", "IOBES": "BIES", "BILOU": "BILU"}
OTHER_NAMES = {"IOB2": "BIO", "BIOES": "IOBES"}
OUTSIDE = "O"

_SAME = {"L": "E", "U": "S"}  # the letters of BILOU in those of IOBES

Span = tuple[str, int, int]
"""Type, first word, and the word behind the last."""


@dataclass(frozen=True)
class Conversion:
    """Tags in another scheme."""

    sequences: list[list[str]]
    source: str
    """The scheme that they were in."""
    repaired: int
    """Tags of the source that were not what its scheme writes, such as an I behind O in BIO."""


def scheme_name(name: str) -> str:
    """The scheme of this name, which may be one of its other names. Raises KitError if there is none."""
    known = OTHER_NAMES.get(name.upper(), name.upper())
    if known not in LETTERS:
        names = (*LETTERS, *OTHER_NAMES)
        raise KitError(f'Unknown scheme of tags "{name}".{did_you_mean(name, names)} There are: {", ".join(names)}.')
    return known


def split_tag(tag: str) -> tuple[str, str]:
    """Letter and type: ("B", "PER") for B-PER; a lone letter has the type "". Raises DataError for any other text."""
    letter, dash, kind = tag.partition("-")
    if (tag == OUTSIDE) or (letter in {"B", "I", "E", "S", "L", "U"} and bool(kind) == bool(dash)):
        return letter, kind
    raise DataError(
        f'"{tag}" is not a tag of a span: expected O, or one of the letters B, I, E, S, L, U with a type as in B-PER.'
    )


def tags_to_spans(tags: Sequence[str]) -> list[Span]:
    """The spans of a sentence, in order."""
    found: list[Span] = []
    start, last, kind = 0, OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        letter, own = split_tag(tag)
        letter = _SAME.get(letter, letter)
        goes_on = last in ("B", "I") and letter in ("I", "E") and own == kind
        if not goes_on:
            if last != OUTSIDE:
                found.append((kind, start, place))
            start, kind = place, own
        last = letter
    return found


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
    """The scheme that tags are in: by their letters, and of BIO and IOB1 the one that explains where spans begin.

    Where both would do, as in tags without spans, it is BIO. Raises DataError if letters of IOBES and BILOU are mixed.
    """
    letters: set[str] = set()
    unusual = {"BIO": 0, "IOB1": 0}
    for tags in sequences:
        letters |= {split_tag(tag)[0] for tag in tags}
        if letters <= {"B", "I", OUTSIDE}:
            for scheme in unusual:
                unusual[scheme] += _differences(tags, spans_to_tags(tags_to_spans(tags), len(tags), scheme))
    if letters & {"E", "S"} and letters & {"L", "U"}:
        raise DataError(f"Tags of IOBES and BILOU are mixed: the letters are {', '.join(sorted(letters))}.")
    if letters & {"E", "S"}:
        return "IOBES"
    if letters & {"L", "U"}:
        return "BILOU"
    return min(unusual, key=lambda scheme: unusual[scheme])


def convert(sequences: Sequence[Sequence[str]], target: str, source: str | None = None) -> Conversion:
    """The tags in the scheme `target`; without `source`, the scheme that they are in is found out.

    Every span stays as it is. Tags in an order that the source does not have are read all the same, and counted.
    Raises DataError for a tag that the source does not have.
    """
    scheme = detect_scheme(sequences) if source is None else scheme_name(source)
    target, repaired, converted = scheme_name(target), 0, []
    for number, tags in enumerate(sequences, start=1):
        for tag in tags:
            if split_tag(tag)[0] not in LETTERS[scheme] + OUTSIDE:
                raise DataError(f'Sentence {number}: {scheme} has no tag "{tag}". Name the right scheme.')
        spans = tags_to_spans(tags)
        repaired += _differences(tags, spans_to_tags(spans, len(tags), scheme))
        converted.append(spans_to_tags(spans, len(tags), target))
    return Conversion(converted, scheme, repaired)


def all_tags(kinds: Iterable[str], scheme: str) -> list[str]:
    """Every tag that spans of these types can have: O first, then by type."""
    letters = LETTERS[scheme_name(scheme)]
    return [OUTSIDE, *(f"{letter}-{kind}" if kind else letter for kind in sorted(set(kinds)) for letter in letters)]


def _differences(tags: Sequence[str], others: Sequence[str]) -> int:
    return sum(tag != other for tag, other in zip(tags, others, strict=True))
