"""Paragraphs cut into sentences, and put together again."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the white space around it that is not translated."""

    before: str
    text: str
    after: str


def split_sentences(paragraph: str, language: str) -> list[Sentence]:
    """The sentences of a paragraph by the rules of a language (en, pt_BR, deu_Latn), of which nothing is lost.

    Languages that the splitter does not know are split as English is. Where a boundary is uncertain there is none.
    """
    from sentencex import segment

    sentences: list[Sentence] = []
    before = ""
    try:
        parts = segment(two_letters(language), paragraph)
    except UnicodeEncodeError:  # a half of a surrogate pair, which no sentence of any language has
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
    """Of the package whose rules are used: another one may cut otherwise."""
    return metadata.version("sentencex")


def two_letters(language: str) -> str:
    """The code that a splitter knows a language by: en for en_XX, eng_Latn and en-GB."""
    from babel.core import get_global

    first = language.replace("-", "_").split("_")[0].lower()
    return get_global("language_aliases").get(first, first)


def join_sentences(sentences: Sequence[Sentence], translations: Sequence[str]) -> str:
    """The translations with the white space of the paragraph around them.

    Chinese and Japanese have none between sentences: there a space is put, unless the translation is in such a script.
    """
    joined = ""
    for sentence, translation in zip(sentences, translations, strict=True):
        touches = joined and not joined[-1].isspace() and not sentence.before
        if touches and unicodedata.east_asian_width(joined[-1]) not in "WF":
            joined += " "
        joined += sentence.before + translation + sentence.after
    return joined
