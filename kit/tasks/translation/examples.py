"""Pairs of texts as examples: which of them are too long, too short or too uneven to learn from."""

import numpy as np

from kit.data.batching.ragged import TokenPairs
from kit.data.text.tokenizer import Tokenizers
from kit.tasks.families.seq2seq.examples import apply_filters
from kit.tasks.translation.recipe import TranslationData

POSITIONS = "positions"
"""Name of the filter that drops examples with more tokens than the model has positions."""


def filter_lengths(
    pairs: TokenPairs, data: TranslationData, tokenizers: Tokenizers, limit: int | None
) -> tuple[np.ndarray, dict[str, int]]:
    """Which examples pass the filters of the recipe and fit `limit` positions, and how many each filter drops."""
    # the lengths in a recipe are those of the text, without the tokens that the tokenizer adds
    source = pairs.source.lengths - len(tokenizers.encode_empty_source())
    target = pairs.target.lengths - len(tokenizers.encode_empty_target())
    longer, shorter = np.maximum(source, target), np.minimum(source, target)
    return apply_filters(
        {
            "max_length": longer > (data.max_length or np.inf),
            "min_length": shorter < data.min_length,
            "max_length_ratio": longer > (data.max_length_ratio or np.inf) * np.maximum(shorter, 1),
            POSITIONS: np.maximum(pairs.source.lengths, pairs.target.lengths) > (limit or np.inf),
        }
    )
