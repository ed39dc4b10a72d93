"""Statistics of encoded data before training: lengths, unknown tokens, duplicates and overlap between splits."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kit.data.batching.ragged import RaggedTokens
from kit.data.rows import cell_text, first_occurrences, row_digests

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

MAX_TEXTS_SEARCHED = 1000
"""Texts with unknown tokens that are encoded again to find out what is unknown in them."""

CHUNK_LISTS = 10_000

ExampleTexts = tuple[str, ...]
"""The texts of an example."""


@dataclass(frozen=True)
class LengthStats:
    """Lengths of texts in tokens, without the end token, as `data.max_length` counts."""

    shortest: int
    median: float
    mean: float
    percentile_95: float
    longest: int

    @classmethod
    def of(cls, lengths: np.ndarray) -> "LengthStats":
        """The statistics of at least one text."""
        median, percentile_95 = np.percentile(lengths, [50, 95])
        return cls(int(lengths.min()), float(median), float(lengths.mean()), float(percentile_95), int(lengths.max()))


@dataclass(frozen=True)
class UnknownTokens:
    """Tokens that stand for something that is not in the vocabulary."""

    count: int
    tokens: int  # of the text, without special tokens
    texts: int  # with at least one unknown token
    examples: tuple[str, ...]  # what is unknown, the most frequent first

    @property
    def rate(self) -> float:
        return self.count / max(1, self.tokens)


@dataclass(frozen=True)
class Overlap:
    """Examples of a split that also occur in the training data."""

    examples: int  # of the split
    sources: int
    pairs: int
    source_example: ExampleTexts | None  # an example of this split whose source is in train
    pair_example: ExampleTexts | None


@dataclass(frozen=True)
class Duplicates:
    """Training examples that equal an earlier one in source and target."""

    count: int
    example: ExampleTexts | None


def unknown_id(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """The token for what is not in the vocabulary, or None if the tokenizer has none.

    Byte-level tokenizers know all text; some nevertheless name an unknown token, which has another role (in GPT-2, the
    end of a text).
    """
    unknown = tokenizer.unk_token_id
    others = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    return None if unknown in others else unknown


def count_unknown(
    tokenizer: "PreTrainedTokenizerBase",
    lists: RaggedTokens,
    text_of: Callable[[int], str],
    as_target: bool,
    examples: int = 8,
) -> UnknownTokens:
    """Unknown tokens of one side of a split; `text_of(i)` is the text of the i-th list."""
    unknown = unknown_id(tokenizer)
    special = np.array([token for token in tokenizer.all_special_ids if token != unknown], dtype=np.int64)
    tokens, counts = 0, np.zeros(len(lists), dtype=np.int64)
    for start in range(0, len(lists), CHUNK_LISTS):
        block = np.arange(start, min(start + CHUNK_LISTS, len(lists)))
        ids = np.concatenate([lists[int(i)] for i in block])
        tokens += int((~np.isin(ids, special)).sum())
        if unknown is not None:
            list_of_token = np.repeat(block - start, lists.lengths[block])
            counts[block] = np.bincount(list_of_token[ids == unknown], minlength=len(block))
    affected = np.flatnonzero(counts)
    texts = [text_of(int(i)) for i in affected[:MAX_TEXTS_SEARCHED]]
    pieces = Counter(unknown_pieces(tokenizer, texts, as_target)) if texts else Counter[str]()
    most_common = tuple(piece for piece, _ in pieces.most_common(examples))
    return UnknownTokens(int(counts.sum()), tokens, len(affected), most_common)


def unknown_pieces(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], as_target: bool) -> list[str]:
    """The pieces of text that became unknown tokens; none for a slow tokenizer, which has no offsets."""
    if not tokenizer.is_fast:
        return []
    arguments = {"text_target": list(texts)} if as_target else {"text": list(texts)}
    encoded = tokenizer(**arguments, return_offsets_mapping=True, verbose=False)
    pieces = [
        text[start:end].strip()
        for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True)
        for token, (start, end) in zip(ids, offsets, strict=True)
        if token == tokenizer.unk_token_id
    ]
    return [piece for piece in pieces if piece]


def find_duplicates(
    train: "Dataset", others: "dict[str, Dataset]", columns: Sequence[str] = ("source", "target")
) -> tuple[Duplicates, dict[str, Overlap]]:
    """Duplicates within the training data, and the examples of the other splits that training has seen.

    Examples are duplicates if they are equal in `columns`, the first of which is the model's input.
    """
    sources, pairs = row_digests(train, columns[:1]), row_digests(train, columns)
    repeated = np.flatnonzero(~first_occurrences(pairs))
    overlaps = {}
    for split, other in others.items():
        same_source = np.flatnonzero(np.isin(row_digests(other, columns[:1]), sources))
        same_pair = np.flatnonzero(np.isin(row_digests(other, columns), pairs))
        # prefer a source that has another target in train: equal pairs have an example of their own
        only_source = np.setdiff1d(same_source, same_pair)
        candidates = only_source if len(only_source) else same_source
        overlaps[split] = Overlap(
            len(other),
            len(same_source),
            len(same_pair),
            example_texts(other, candidates, columns),
            example_texts(other, same_pair, columns),
        )
    return Duplicates(len(repeated), example_texts(train, repeated, columns)), overlaps


def example_texts(dataset: "Dataset", indices: np.ndarray, columns: Sequence[str]) -> ExampleTexts | None:
    """The texts of the first of these rows."""
    if not len(indices):
        return None
    row = dataset.select_columns([*columns])[int(indices[0])]
    return tuple(cell_text(row[name]) for name in columns if name != "direction")
