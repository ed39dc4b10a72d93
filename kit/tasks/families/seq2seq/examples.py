"""Pairs of texts as examples: the tokens of source and target, in the languages of each row."""

from collections.abc import Mapping

import numpy as np
from datasets import Dataset

from kit.data.batching.ragged import RaggedTokens, TokenPairs
from kit.data.rows import ColumnView
from kit.data.text.tokenizer import Tokenizers
from kit.pretrained.positions import encode_truncated


def encode_pairs(dataset: Dataset, tokenizers: Tokenizers, limit: int | None = None) -> TokenPairs:
    """Tokenize source and target of every row, in the languages of the row if the tokenizer needs to know them.

    Texts with more than `limit` tokens are truncated, and the examples with a truncated text are counted.
    """
    sources, targets = (list(ColumnView(dataset, role)) for role in ("source", "target"))
    source_ids: list[list[int]] = [[] for _ in sources]
    target_ids: list[list[int]] = [[] for _ in targets]
    truncated: set[int] = set()
    directions = row_directions(dataset, tokenizers)
    for source, target in dict.fromkeys(directions):
        rows = [row for row, direction in enumerate(directions) if direction == (source, target)]
        encoded, long = encode_truncated(
            limit, tokenizers.encode_source, [sources[row] for row in rows], source, target
        )
        references, too_long = encode_truncated(limit, tokenizers.encode_target, [targets[row] for row in rows], target)
        truncated.update(rows[index] for index in (*long, *too_long))
        for row, ids, reference in zip(rows, encoded, references, strict=True):
            source_ids[row], target_ids[row] = ids, reference
    languages = None if (None, None) in directions else np.array([target for _, target in directions])
    return TokenPairs(RaggedTokens(source_ids), RaggedTokens(target_ids), languages, len(truncated))


def row_directions(dataset: Dataset, tokenizers: Tokenizers) -> list[tuple[str | None, str | None]]:
    """The source and target language of every row; (None, None) if the tokenizer needs no languages, or has one
    direction."""
    if not tokenizers.languages.per_example or "target_language" not in dataset.column_names:
        return [(None, None)] * len(dataset)
    return list(zip(ColumnView(dataset, "source_language"), ColumnView(dataset, "target_language"), strict=True))


def apply_filters(filters: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, int]]:
    """Apply filters, each an array that is true for the examples that it rejects.

    Returns which examples pass all filters, and how many each filter drops; an example counts for the first that
    rejects it.
    """
    keep, dropped = np.ones(len(next(iter(filters.values()))), dtype=bool), {}
    for name, rejected in filters.items():
        dropped[name] = int((keep & rejected).sum())
        keep &= ~rejected
    return keep, dropped
