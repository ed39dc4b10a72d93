"""Splitting paragraphs into sentences, and joining their translations."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the surrounding white space, which is not translated."""

    before: str
    text: str
    after: str


def split_sentences(paragraph: str, language: str) -> list[Sentence]:
    """The sentences of a paragraph by the rules of a language (en, pt_BR, deu_Latn). No character is lost.

    Languages without rules are split like English. Uncertain boundaries are not split.
    """
    from sentencex import segment

    sentences: list[Sentence] = []
    before = ""
    try:
        parts = segment(two_letter_code(language), paragraph)
    except UnicodeEncodeError:  # half of a surrogate pair, which the splitter cannot encode
        parts = [paragraph]
    for part in parts:
        text = part.strip()
        if text:
            start = part.index(text)
            sentences.append(Sentence(before + part[:start], text, part[start + len(text) :]))
            before = ""
        elif sentences:
            last = sentences.pop()
            sentences.append(Sentence(last.before, last.text, last.after + part))
        else:
            before += part
    return sentences or [Sentence("", paragraph, "")]


def splitter_version() -> str:
    """Version of the splitter: another one may split differently."""
    return metadata.version("sentencex")


def two_letter_code(language: str) -> str:
    """The ISO 639-1 code that the splitter expects: en for en_XX, eng_Latn and en-GB."""
    from babel.core import get_global

    first = language.replace("-", "_").split("_")[0].lower()
    return get_global("language_aliases").get(first, first)


def join_sentences(sentences: Sequence[Sentence], translations: Sequence[str]) -> str:
    """The translations, with the white space of the paragraph around them.

    Between sentences without white space, as in Chinese and Japanese, a space is inserted unless the translation is in
    such a script.
    """
    joined = ""
    for sentence, translation in zip(sentences, translations, strict=True):
        adjacent = joined and not joined[-1].isspace() and not sentence.before
        if adjacent and unicodedata.east_asian_width(joined[-1]) not in "WF":
            joined += " "
        joined += sentence.before + translation + sentence.after
    return joined
