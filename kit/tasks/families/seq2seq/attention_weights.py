"""The attention of a model for one sentence: its weights in all layers and heads, from one forward pass.

The output is generated first, or given, and then read by the decoder in one pass. What a position attends to depends
only on what comes before it, so these are the weights of every step of the search.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kit.data.text.tokenizer import Tokenizers
from kit.data.text.vocabulary import BOS
from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings, saved_settings
from kit.errors import DataError
from kit.prediction.text import BLANK
from kit.pretrained.positions import encode_truncated, position_limit

Kind = Literal["cross", "encoder", "decoder"]

KINDS: dict[Kind, str] = {
    "cross": "cross-attention",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
}

MAX_TOKENS = 512
"""Longer sequences are truncated: a figure could not show more, and the weights grow with the square of the length."""


@dataclass(frozen=True)
class Attention:
    """The weights of one sentence, and the tokens that they belong to.

    A row of `cross` and `decoder` is a token of the output, with the weights of the step that generated it.
    """

    source: list[str]
    output: list[str]
    start: str  # the first token that the decoder reads
    weights: dict[Kind, Tensor]  # of the kinds that the model has: (layers, heads, queries, keys)
    truncated_at: int | None = None  # the number of tokens, if the source or the target had more

    @property
    def written(self) -> list[str]:
        """What the decoder reads of its own output: the start, and every token but the last."""
        return [self.start, *self.output[:-1]]


@dataclass(frozen=True)
class Question:
    """A sentence, and the output to read instead of the model's own."""

    sentence: str
    target: str | None = None
    source_language: str | None = None
    target_language: str | None = None


def attention_of(
    model: PreTrainedModel,
    tokenizers: Tokenizers,
    question: Question,
    settings: GenerationSettings | None = None,
) -> Attention:
    """Compute the attention while a model writes its best output for a sentence, or while it reads the given target.

    Both are truncated to the positions of the model, and to MAX_TOKENS.
    """
    sentence, target = question.sentence, question.target
    for name, text in (("sentence", sentence), ("target", target)):
        if text is not None and BLANK.fullmatch(text):
            raise DataError(f"the {name} is empty: there is nothing to attend to")
    settings = replace(settings or saved_settings(model), **tokenizers.generation_tokens(question.target_language))
    limit = min(position_limit(model.config) or MAX_TOKENS, MAX_TOKENS)
    (source,), truncated = encode_truncated(
        limit, tokenizers.encode_source, [sentence], question.source_language, question.target_language
    )
    if target is None:
        ids = torch.tensor([source], device=model.device)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        output = search(model, batch, settings)[0][0].tokens[:limit]
    else:
        (output,), target_truncated = encode_truncated(
            limit, tokenizers.encode_target, [target], question.target_language
        )
        truncated += target_truncated
    start = settings.seq2seq_config(model).decoder_start_token_id
    return Attention(
        source=readable(tokenizers.source, source),
        output=readable(tokenizers.target, output),
        start=start_name(tokenizers.target, start),
        weights=attention_weights(model, source, [start, *output[:-1]]),
        truncated_at=limit if truncated else None,
    )


@torch.inference_mode()
def attention_weights(model: PreTrainedModel, source: list[int], decoder_input: list[int]) -> dict[Kind, Tensor]:
    """Compute the weights of every kind of attention that the model has, on the CPU: (layers, heads, queries, keys)."""
    ids = torch.tensor([source], device=model.device)
    with eager_attention(model):
        outputs = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            decoder_input_ids=torch.tensor([decoder_input], device=model.device),
            use_cache=False,
            output_attentions=True,
        )
    by_kind: dict[Kind, tuple[Tensor, ...] | None] = {
        "cross": outputs.cross_attentions,
        "encoder": outputs.encoder_attentions,
        "decoder": outputs.decoder_attentions,
    }
    return {kind: torch.cat(layers).float().cpu() for kind, layers in by_kind.items() if layers}


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use eager attention within the block: fused implementations do not return their weights."""
    previous = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(previous)


def start_name(tokenizer: PreTrainedTokenizerBase, start: int) -> str:
    """The name of the token from which the decoder starts: its text if it has a meaning, such as a language, else
    START."""
    meaningless = (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id)
    return BOS if start in meaningless else readable(tokenizer, [start])[0]


def readable(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Convert tokens to text. Where tokens are bytes, an incomplete character appears as them, such as \\xe6\\x97."""
    # a model may have more tokens than its tokenizer
    pairs = zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
    tokens = [f"token {number}" if token is None else token for number, token in pairs]
    backend = getattr(tokenizer, "backend_tokenizer", None)  # tokenizers written in Python have none
    if backend is None or "ByteLevel" not in repr(backend.decoder):
        return tokens
    return [from_bytes(token) for token in tokens]


def from_bytes(token: str) -> str:
    """Decode a byte-level token, which has a printable character for every byte."""
    table = byte_of_letter()
    if not all(letter in table for letter in token):  # an added token, which is plain text
        return token
    return bytes(table[letter] for letter in token).decode("utf-8", "backslashreplace")


@cache
def byte_of_letter() -> dict[str, int]:
    """The byte that each printable character of byte-level tokens stands for."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}
