"""Statistics of encoded data before training: lengths, unknown tokens, duplicates and overlap between splits."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kit.data.batching.ragged import RaggedTokens
from kit.data.rows import cell_text, first_occurrences, row_digests
from kit.data.steps import ExampleColumns
from kit.pipelines.text_to_text import unknown_id

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

MAX_TEXTS_SEARCHED = 1000
"""Texts with unknown tokens that are encoded again to list what is unknown in them: encoding with offsets is slow, and
more texts would hardly change the most frequent ones."""

CHUNK_LISTS = 10_000  # token lists counted at a time, which bounds memory

MIXER = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier that combines two digests into one: an odd number, so that no bit of the first digest is lost. This one is
2 ** 64 divided by the golden ratio, as in Fibonacci hashing."""

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

    columns: ExampleColumns
    examples: int  # of the split
    inputs: int
    targets: int  # 0 without columns of targets
    whole: int
    input_example: ExampleTexts | None = None  # an example of this split whose input is in train
    target_example: ExampleTexts | None = None
    whole_example: ExampleTexts | None = None

    @property
    def input_name(self) -> str:
        return named(self.columns.inputs)

    @property
    def target_name(self) -> str:
        return named(self.columns.targets)

    def describe(self, split: str) -> str | None:
        """A note for the log and the model card; None if there is no overlap."""
        same = [f"{self.inputs:,} of {self.examples:,} examples have the same {self.input_name} as one of train"]
        if self.columns.targets:
            same.append(f"{self.targets:,} the same {self.target_name}")
        if self.columns.all != self.columns.inputs:
            same.append(f"{self.whole:,} are equal to one")
        return f"{split}: {', '.join(same)}" if self.inputs or self.targets else None


@dataclass(frozen=True)
class Duplicates:
    """Training examples that equal an earlier one in source and target."""

    count: int
    example: ExampleTexts | None


def count_unknown(
    tokenizer: "PreTrainedTokenizerBase",
    lists: RaggedTokens,
    text_of: Callable[[int], str],
    as_target: bool,
    examples: int = 8,
) -> UnknownTokens:
    """Count the unknown tokens on one side of a split, such as its sources, given its token lists.

    `text_of(i)` returns the text of the i-th list; `as_target` selects the tokenizer's target side. The result lists
    the `examples` most frequent pieces of text that became unknown.
    """
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
    """The piece of text behind each unknown token; no pieces for a slow tokenizer, which has no offsets."""
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


def named(columns: Sequence[str]) -> str:
    """The names of the columns, joined by "and"; the column of translation directions is not text and is left out."""
    return " and ".join(name for name in columns if name != "direction")


@dataclass(frozen=True)
class ExampleDigests:
    """Digests of the examples of a split, by the columns they cover: equal cells have equal digests."""

    inputs: np.ndarray
    targets: np.ndarray
    whole: np.ndarray

    @classmethod
    def of(cls, rows: "Dataset", columns: ExampleColumns, indices: np.ndarray | None = None) -> "ExampleDigests":
        """The digests of all rows, or of the rows at `indices`. Each column is read once."""
        parts = [row_digests(rows, names) for names in (columns.inputs, columns.targets, columns.others) if names]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole * MIXER + part  # modulo 2 ** 64
        targets = parts[1] if columns.targets else np.empty(0, dtype=np.uint64)
        select = slice(None) if indices is None else indices
        return cls(parts[0][select], targets[select] if len(targets) else targets, whole[select])


def find_duplicates(
    train: "Dataset", used: np.ndarray | None, others: "dict[str, Dataset]", columns: ExampleColumns
) -> tuple[Duplicates, dict[str, Overlap]]:
    """Find the duplicates within the training data, and the examples of each other split that are also in it.

    Of the training data, only the rows at the indices `used` count; None stands for all rows.
    """
    trained = ExampleDigests.of(train, columns, used)
    repeated = np.flatnonzero(~first_occurrences(trained.whole))
    rows = repeated if used is None else used[repeated]
    overlaps = {split: find_overlap(other, trained, columns) for split, other in others.items()}
    return Duplicates(len(repeated), example_texts(train, rows, columns.all)), overlaps


def find_overlap(rows: "Dataset", trained: ExampleDigests, columns: ExampleColumns) -> Overlap:
    """Compare the examples of a split with those of the training data."""
    split = ExampleDigests.of(rows, columns)
    same_input, same_target, same = (
        np.flatnonzero(np.isin(digests, known))
        for digests, known in (
            (split.inputs, trained.inputs), (split.targets, trained.targets), (split.whole, trained.whole),
        )
    )  # fmt: skip
    # The example of an equal input should have another target in train: fully equal examples are shown separately.
    only_input, only_target = np.setdiff1d(same_input, same), np.setdiff1d(same_target, same)
    return Overlap(
        columns,
        len(rows),
        len(same_input),
        len(same_target),
        len(same),
        example_texts(rows, only_input if len(only_input) else same_input, columns.all),
        example_texts(rows, only_target if len(only_target) else same_target, columns.all),
        example_texts(rows, same, columns.all),
    )


def example_texts(dataset: "Dataset", indices: np.ndarray, columns: Sequence[str]) -> ExampleTexts | None:
    """The texts of the row at the first index; None if there is no index."""
    if not len(indices):
        return None
    row = dataset.select_columns([*columns])[int(indices[0])]
    return tuple(cell_text(row[name]) for name in columns if name != "direction")
