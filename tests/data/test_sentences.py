"""Paragraphs are split into sentences and joined again with the spaces between them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.data.text.sentences import Sentence, join_sentences, split_sentences, two_letter_code

PARTS = st.lists(
    st.sampled_from(["Eins. ", "Zwei!\t", "z.B. ", "  ", "\u3000", "猫です。", "Dr. ", "a", "?", "“"]), max_size=12
)


@given(PARTS.map("".join) | st.text(max_size=40), st.sampled_from(["de", "en_XX", "jpn_Jpan", "zz"]))
@settings(max_examples=200, deadline=None)
def test_nothing_is_lost_between_sentences(paragraph: str, language: str) -> None:
    sentences = split_sentences(paragraph, language)
    assert "".join(sentence.before + sentence.text + sentence.after for sentence in sentences) == paragraph
    assert all(sentence.text == sentence.text.strip() or len(sentences) == 1 for sentence in sentences)
    joined = join_sentences(sentences, [sentence.text for sentence in sentences])
    assert "".join(joined.split()) == "".join(paragraph.split())


def test_sentences_are_put_together_as_they_stood() -> None:
    paragraph = "  Das ist Dr. Maier.  Er kommt z.B. heute!\tJa? "
    sentences = split_sentences(paragraph, "de")
    assert [sentence.text for sentence in sentences] == ["Das ist Dr. Maier.", "Er kommt z.B. heute!", "Ja?"]
    assert join_sentences(sentences, ["A.", "B!", "C?"]) == "  A.  B!\tC? "
    japanese = split_sentences("猫です。犬です。", "ja")
    assert join_sentences(japanese, ["A cat.", "A dog."]) == "A cat. A dog."
    assert join_sentences(japanese, ["这是猫。", "这是狗。"]) == "这是猫。这是狗。"
    assert join_sentences([Sentence("", "a", "")], ["b"]) == "b"
    assert [two_letter_code(code) for code in ("de", "en_XX", "eng_Latn", "pt-BR", "zz")] == [
        "de",
        "en",
        "en",
        "pt",
        "zz",
    ]
