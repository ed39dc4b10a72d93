"""How many tokens a model can read or write at once, and texts that have more."""

from collections.abc import Callable, Sequence
from typing import Any

from kit.errors import RecipeError

GROWING = ("m2m_100", "nllb-moe", "xlnet")
"""Model types whose `max_position_embeddings` is no limit: their sinusoids grow with the text."""

BEHIND_PADDING = (
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text", "longformer",
    "mpnet", "xmod", "ibert",
)  # fmt: skip
"""Model types that count positions from behind the padding token, so that the first ones are never used."""


def position_limit(config: Any) -> int | None:
    """Most tokens of a sequence, special ones included, that a model with this configuration can take; None if any."""
    limit = None if config.model_type in GROWING else getattr(config, "max_position_embeddings", None)
    if limit is not None and config.model_type in BEHIND_PADDING:
        limit -= (config.pad_token_id or 0) + 1
    if limit is not None and limit < 1:
        raise RecipeError(f"model.max_position_embeddings: a model with {limit} positions can read no text")
    return limit


def encode_within(
    limit: int | None, encode: Callable[..., list[list[int]]], texts: Sequence[str], *languages: str | None
) -> tuple[list[list[int]], list[int]]:
    """What `Tokenizers.encode_source` or `encode_target` make of the texts, with none longer than the limit, and the
    places of those that had to be cut for it."""
    ids = encode(texts, *languages)
    long = [place for place, one in enumerate(ids) if limit is not None and len(one) > limit]
    for place, cut in zip(long, encode([texts[place] for place in long], *languages, max_length=limit), strict=True):
        ids[place] = cut
    return ids, long
