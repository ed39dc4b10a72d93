"""What data looks like before a model sees it: lengths, unknown tokens, examples that occur more than once."""

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

TEXTS_SEARCHED = 1000
"""Texts with unknown tokens that are searched for examples of them."""

LISTS_AT_ONCE = 10_000

ExampleTexts = tuple[str, ...]
"""The texts of an example."""


@dataclass(frozen=True)
class LengthStats:
    """How long texts are, in tokens, the end marker not counted: as `data.max_length` counts."""

    shortest: int
    median: float
    mean: float
    most: float  # 95 % are not longer
    longest: int

    @classmethod
    def of(cls, lengths: np.ndarray) -> "LengthStats":
        """Figures of at least one text."""
        median, most = np.percentile(lengths, [50, 95])
        return cls(int(lengths.min()), float(median), float(lengths.mean()), float(most), int(lengths.max()))


@dataclass(frozen=True)
class UnknownTokens:
    """Tokens that stand for something the vocabulary does not have."""

    count: int
    tokens: int  # of the text, special tokens not counted
    texts: int  # that have at least one
    examples: tuple[str, ...]  # what is unknown, the most frequent first

    @property
    def rate(self) -> float:
        return self.count / max(1, self.tokens)


@dataclass(frozen=True)
class Overlap:
    """Examples of a split that are in the training data too."""

    examples: int  # of the split
    sources: int
    pairs: int
    source_example: ExampleTexts | None  # an example of this split whose source is in train
    pair_example: ExampleTexts | None


@dataclass(frozen=True)
class Duplicates:
    """Training examples, source and target, that are equal to an earlier one."""

    count: int
    example: ExampleTexts | None


def unknown_id(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """The token for what is not in the vocabulary, or None if there is no such thing.

    Tokenizers over bytes know all text; some name a token for the unknown nevertheless, that has another job.
    """
    found = tokenizer.unk_token_id
    others = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    return None if found in others else found


def count_unknown(
    tokenizer: "PreTrainedTokenizerBase",
    lists: RaggedTokens,
    text_of: Callable[[int], str],
    as_target: bool,
    examples: int = 8,
) -> UnknownTokens:
    """Unknown tokens of one side of a split; `text_of(i)` is the text that the i-th list was made from."""
    unknown = unknown_id(tokenizer)
    special = np.array([token for token in tokenizer.all_special_ids if token != unknown], dtype=np.int64)
    tokens, counts = 0, np.zeros(len(lists), dtype=np.int64)
    for start in range(0, len(lists), LISTS_AT_ONCE):
        block = np.arange(start, min(start + LISTS_AT_ONCE, len(lists)))
        ids = np.concatenate([lists[int(i)] for i in block])
        tokens += int((~np.isin(ids, special)).sum())
        if unknown is not None:
            owners = np.repeat(block - start, lists.lengths[block])
            counts[block] = np.bincount(owners[ids == unknown], minlength=len(block))
    affected = np.flatnonzero(counts)
    texts = [text_of(int(i)) for i in affected[:TEXTS_SEARCHED]]
    pieces = Counter(unknown_pieces(tokenizer, texts, as_target)) if texts else Counter[str]()
    shown = tuple(piece for piece, _ in pieces.most_common(examples))
    return UnknownTokens(int(counts.sum()), tokens, len(affected), shown)


def unknown_pieces(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], as_target: bool) -> list[str]:
    """What became an unknown token, as it is written in the texts; none if the tokenizer does not tell where."""
    if not tokenizer.is_fast:
        return []
    named = {"text_target": list(texts)} if as_target else {"text": list(texts)}
    encoded = tokenizer(**named, return_offsets_mapping=True, verbose=False)
    pieces = [
        text[start:end].strip()
        for text, ids, places in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True)
        for token, (start, end) in zip(ids, places, strict=True)
        if token == tokenizer.unk_token_id
    ]
    return [piece for piece in pieces if piece]


def find_duplicates(
    train: "Dataset", others: "dict[str, Dataset]", columns: Sequence[str] = ("source", "target")
) -> tuple[Duplicates, dict[str, Overlap]]:
    """The training examples that say nothing new, and those of the other splits that training has seen.

    Examples are the same if they are equal in `columns`, of which the first is what a model reads.
    """
    sources, pairs = row_digests(train, columns[:1]), row_digests(train, columns)
    repeated = np.flatnonzero(~first_occurrences(pairs))
    overlaps = {}
    for split, other in others.items():
        same_source = np.flatnonzero(np.isin(row_digests(other, columns[:1]), sources))
        same_pair = np.flatnonzero(np.isin(row_digests(other, columns), pairs))
        # where there is one, show a source that has another target in train: a whole pair is shown as such
        only_source = np.setdiff1d(same_source, same_pair)
        shown = only_source if len(only_source) else same_source
        overlaps[split] = Overlap(
            len(other),
            len(same_source),
            len(same_pair),
            example_texts(other, shown, columns),
            example_texts(other, same_pair, columns),
        )
    return Duplicates(len(repeated), example_texts(train, repeated, columns)), overlaps


def example_texts(dataset: "Dataset", indices: np.ndarray, columns: Sequence[str]) -> ExampleTexts | None:
    if not len(indices):
        return None
    row = dataset.select_columns([*columns])[int(indices[0])]
    return tuple(cell_text(row[name]) for name in columns if name != "direction")
