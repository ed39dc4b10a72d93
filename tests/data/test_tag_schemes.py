"""Tag schemes: conversions keep all spans and can be reversed, and tags are read as in seqeval."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from kit.data.text.tag_schemes import (
    LETTERS,
    Span,
    all_tags,
    convert,
    detect_scheme,
    scheme_name,
    spans_to_tags,
    tags_to_spans,
)
from kit.errors import DataError, KitError

SCHEMES = tuple(LETTERS)
KINDS = st.sampled_from(["PER", "creative-work", "場所"])


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Spans that do not overlap, and the length of the sentence."""
    spans, end = [], 0
    for kind, gap, length in draw(st.lists(st.tuples(KINDS, st.integers(0, 2), st.integers(1, 4)), max_size=6)):
        spans.append((kind, end + gap, end + gap + length))
        end += gap + length
    return spans, end + draw(st.integers(0, 2))


@given(st.lists(sentences(), max_size=4), st.sampled_from(SCHEMES), st.sampled_from(SCHEMES))
@settings(max_examples=200, deadline=None)
def test_conversions_keep_spans_and_can_be_reversed(
    rows: list[tuple[list[Span], int]], first: str, second: str
) -> None:
    written = [spans_to_tags(spans, length, first) for spans, length in rows]
    assert [tags_to_spans(tags) for tags in written] == [spans for spans, _ in rows]
    converted = convert(written, second, source=first)
    assert [tags_to_spans(tags) for tags in converted.sequences] == [spans for spans, _ in rows]
    back = convert(converted.sequences, first, source=second)
    assert back.sequences == written
    assert converted.repaired == back.repaired == 0
    known = set(all_tags({kind for spans, _ in rows for kind, _, _ in spans}, second))
    assert {tag for tags in converted.sequences for tag in tags} <= known
    if any(len(set(map(tuple, (spans_to_tags(*row, scheme) for scheme in SCHEMES)))) == len(SCHEMES) for row in rows):
        assert detect_scheme(written) == first


TAGS = st.lists(st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in ("X", "Y"))]), max_size=8)


@given(TAGS)
@settings(max_examples=300, deadline=None)
def test_any_sequence_is_read_as_in_seqeval(tags: list[str]) -> None:
    with warnings.catch_warnings(action="error"):
        theirs = get_entities(tags)
    assert tags_to_spans(tags) == [(kind, start, end + 1) for kind, start, end in theirs]
    renamed = [tag.replace("E-", "L-").replace("S-", "U-") for tag in tags]
    assert tags_to_spans(renamed) == tags_to_spans(tags)


def test_repairs_are_counted() -> None:
    converted = convert([["O", "I-X", "I-X", "B-X"], ["I-Y", "B-X", "I-Y"]], "IOBES", source="IOB2")
    assert converted.sequences == [["O", "B-X", "E-X", "S-X"], ["S-Y", "S-X", "S-Y"]]
    assert (converted.source, converted.repaired) == ("BIO", 3)
    assert convert([["B-X", "O", "E-X"]], "BIO", source="BIOES").repaired == 2
    assert convert([["B-X", "I-X"]], "BIO").repaired == 0


def test_schemes_are_detected() -> None:
    assert detect_scheme([["O"], []]) == "BIO"
    assert detect_scheme([["I-X", "I-X", "O"], ["O", "I-X", "B-X"]]) == "IOB1"
    assert detect_scheme([["B-X", "I-X"], ["O", "I-X"], ["B-X"]]) == "BIO"  # with a mistake
    assert detect_scheme([["S-X"]]) == "IOBES"
    assert detect_scheme([["B-X", "L-X"]]) == "BILOU"
    assert spans_to_tags([("", 0, 2)], 3, "BIO") == ["B", "I", "O"]  # one type without a name
    assert all_tags(["B", "A"], "BIO") == ["O", "B-A", "I-A", "B-B", "I-B"]


def test_invalid_tags_are_reported() -> None:
    for tag in ("NOUN", "", "PER-B", "B_PER", "B-", "o", "O-PER"):
        with pytest.raises(DataError, match=f'"{tag}" is not a span tag'):
            tags_to_spans(["O", tag])
    with pytest.raises(DataError, match='Sentence 2: BIO has no tag "S-X"'):
        convert([["O"], ["S-X"]], "IOBES", source="BIO")
    with pytest.raises(DataError, match="IOBES and BILOU are mixed"):
        detect_scheme([["S-X"], ["U-X"]])
    with pytest.raises(KitError, match=r'"BILU".*Did you mean "BILOU"'):
        scheme_name("BILU")
