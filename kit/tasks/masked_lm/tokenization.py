"""From documents to marked tokens: each token knows whether it begins a word, so that whole words can be masked."""

import re
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from kit.data.batching.ragged import RaggedTokens
from kit.data.text.sentences import split_sentences
from kit.tasks.families.language_modeling.task import PLAIN

BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
"""The end of a paragraph. WikiText has a space in its blank lines."""


@dataclass(frozen=True)
class DocumentTokenizer:
    """Tokenizes documents and marks where words begin; a class, so that worker processes can receive it."""

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, texts: list[str]) -> RaggedTokens:
        """Tokenize documents to marked tokens."""
        return RaggedTokens(marked_tokens([one_line(text) for text in texts], self.tokenizer))


@dataclass(frozen=True)
class SentenceTokenizer:
    """Tokenizes the sentences of documents and marks where words begin; a class, as `DocumentTokenizer`."""

    tokenizer: PreTrainedTokenizerBase
    language: str

    def __call__(self, texts: list[str]) -> list[list[list[int]]]:
        """Tokenize each sentence of each document to marked tokens."""
        return [marked_tokens(self.sentences(text), self.tokenizer) for text in texts]

    def sentences(self, text: str) -> list[str]:
        """Split a document into sentences, each on one line. No sentence crosses the end of a paragraph."""
        return [
            one_line(sentence.text)
            for paragraph in BLANK_LINE.split(text)
            if paragraph.strip()
            for sentence in split_sentences(paragraph, self.language)
        ]


def one_line(text: str) -> str:
    """Replace white space and line ends by single spaces: the layout of a document is not part of its words."""
    return " ".join(text.split())


def marked_tokens(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Tokenize texts; each token is 2 · id + whether it begins a word."""
    if not texts:
        return []
    encoding = tokenizer(texts, **PLAIN)
    marked = []
    for number, ids in enumerate(encoding["input_ids"]):
        words = encoding.word_ids(number) if tokenizer.is_fast else list(range(len(ids)))
        begins = [index == 0 or words[index] != words[index - 1] for index in range(len(ids))]
        marked.append([(token << 1) + begin for token, begin in zip(ids, begins, strict=True)])
    return marked
