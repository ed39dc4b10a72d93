"""The maximum length of a model, and how texts are truncated to it."""

from collections.abc import Callable, Sequence
from typing import Any

from kit.errors import RecipeError

UNBOUNDED_POSITIONS = ("m2m_100", "nllb-moe", "xlnet")
"""Model types whose `max_position_embeddings` is not a limit: they compute sinusoids for any length."""

OFFSET_POSITIONS = (
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text", "longformer",
    "mpnet", "xmod", "ibert",
)  # fmt: skip
"""Model types that number positions from `pad_token_id + 1`, so that the first ones are never used."""


def position_limit(config: Any) -> int | None:
    """The maximum length in tokens, special tokens included, of a model with this config; None if there is none.

    Raises RecipeError if the config leaves no position for a token.
    """
    limit = None if config.model_type in UNBOUNDED_POSITIONS else getattr(config, "max_position_embeddings", None)
    if limit is not None and config.model_type in OFFSET_POSITIONS:
        limit -= (config.pad_token_id or 0) + 1
    if limit is not None and limit < 1:
        raise RecipeError(f"model.max_position_embeddings: a model with {limit} positions cannot read any text")
    return limit


def check_length(key: str, requested: int | None, limit: int | None) -> None:
    """Raise RecipeError if a recipe requests more tokens in `key` than the model has positions for."""
    if requested is not None and limit is not None and requested > limit:
        raise RecipeError(
            f"{key}: {requested} tokens are more than the model has positions for: {limit}. Set {key}={limit}"
        )


def encode_truncated(
    limit: int | None, encode: Callable[..., list[list[int]]], texts: Sequence[str], *languages: str | None
) -> tuple[list[list[int]], list[int]]:
    """The token ids of texts, truncated to the limit, and the indices of the truncated ones.

    `encode` is `Tokenizers.encode_source` or `encode_target`.
    """
    ids = encode(texts, *languages)
    long = [index for index, tokens in enumerate(ids) if limit is not None and len(tokens) > limit]
    truncated = encode([texts[index] for index in long], *languages, max_length=limit)
    for index, tokens in zip(long, truncated, strict=True):
        ids[index] = tokens
    return ids, long
