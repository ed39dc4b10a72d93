"""The parts of a Transformer: positions, attention, feed-forward, and the layers made of them."""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_transformer_seq2seq import TransformerSeq2SeqConfig
from .recurrent import Dropout


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # a table that was made while decoding must serve training too
def sinusoids(length: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Sines in the first half and cosines in the second, (length, size); row p is position p."""
    # float64 throughout: position × frequency loses digits in float32
    position = torch.arange(length, device=device, dtype=torch.float64)
    frequency = torch.exp(torch.arange(0, size, 2, device=device) * (-math.log(10000.0) / size)).double()
    angle = position[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(dtype)


class Positions(nn.Module):
    """Adds to word vectors what tells their position."""

    def __init__(self, config: TransformerSeq2SeqConfig):
        super().__init__()
        self.size = config.hidden_size
        self.learned = nn.Embedding(config.max_positions, self.size) if config.positions == "learned" else None

    def forward(self, embeddings: Tensor, start: int = 0, length: int | None = None) -> Tensor:
        """`length` is that of the embeddings, or 1 where all of them are at the same position."""
        end = start + (embeddings.shape[1] if length is None else length)
        if self.learned is None:
            rows = 1 << max(6, (end - 1).bit_length())  # a power of two: few tables serve all lengths
            return embeddings + sinusoids(rows, self.size, embeddings.dtype, embeddings.device)[start:end]
        if end > self.learned.num_embeddings:
            raise ValueError(
                f"a sequence of {end} tokens is longer than the {self.learned.num_embeddings} learned "
                "positions (max_positions): shorten it, or train with positions=sinusoid"
            )
        return embeddings + self.learned.weight[start:end]


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention in plain steps, which also gives its weights: (batch, heads, queries, keys)."""
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    mixed = nn.functional.dropout(weights, p=dropout, training=module.training) @ value
    return mixed.transpose(1, 2).contiguous(), weights


class MultiHeadAttention(nn.Module):
    """Self-attention, or cross-attention over the encoder's states.

    The keys have no bias: the softmax would cancel it, and it would never learn.
    """

    def __init__(self, config: TransformerSeq2SeqConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, is_causal
        self.heads = config.attention_heads
        size = config.hidden_size
        self.scaling = (size // self.heads) ** -0.5
        self.q_proj = nn.Linear(size, size)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size)
        self.out_proj = nn.Linear(size, size)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """x (batch, queries, hidden) attends to itself or to `memory` (batch, keys, hidden)."""
        query = self._heads(self.q_proj(x))  # (batch, heads, queries, d)
        key, value = self._keys_and_values(x, memory, past_key_values)  # (batch, heads, keys, d)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        dropout = self.config.attention_dropout if self.training else 0.0
        mixed, weights = attend(
            self, query, key, value, attention_mask, scaling=self.scaling, dropout=dropout, **kwargs
        )
        return self.out_proj(mixed.flatten(2)), weights

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _keys_and_values(self, x: Tensor, memory: Tensor | None, cache: Cache | None) -> tuple[Tensor, Tensor]:
        if memory is None:
            key, value = self._heads(self.k_proj(x)), self._heads(self.v_proj(x))
            if cache is None:
                return key, value
            own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
            return own.update(key, value, self.layer_idx)
        # the source does not change while the target is written: its keys and values are computed once
        if cache is not None and cache.is_updated.get(self.layer_idx):
            layer = cache.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        key, value = self._heads(self.k_proj(memory)), self._heads(self.v_proj(memory))
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return key, value


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between, at each position alone."""

    def __init__(self, config: TransformerSeq2SeqConfig):
        super().__init__()
        self.kind = config.activation
        self.up_proj = nn.Linear(config.hidden_size, config.feed_forward_size)
        self.gate_proj = nn.Linear(config.hidden_size, config.feed_forward_size) if self.kind == "swiglu" else None
        self.down_proj = nn.Linear(config.feed_forward_size, config.hidden_size)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up_proj(x)
        if self.gate_proj is not None:
            inner = nn.functional.silu(self.gate_proj(x)) * inner
        else:
            inner = nn.functional.relu(inner) if self.kind == "relu" else nn.functional.gelu(inner)
        return self.down_proj(self.dropout(inner))


class Layer(GradientCheckpointingLayer):
    """Parts with a residual connection around each: x + part(norm(x)), or norm(x + part(x))."""

    def __init__(self, config: TransformerSeq2SeqConfig, parts: int):
        super().__init__()
        self.norm_first = config.norm == "pre"
        self.norms = nn.ModuleList(nn.LayerNorm(config.hidden_size) for _ in range(parts))
        self.dropout = Dropout(config.dropout)

    def add(self, x: Tensor, number: int, part: Any) -> Tensor:
        """x with what part number `number` adds to it."""
        norm = self.norms[number]
        if self.norm_first:
            return x + self.dropout(part(norm(x)))
        return norm(x + self.dropout(part(x)))


class EncoderLayer(Layer):
    """Self-attention over the source, then feed-forward."""

    def __init__(self, config: TransformerSeq2SeqConfig, layer_idx: int):
        super().__init__(config, parts=2)
        self.self_attn = MultiHeadAttention(config, layer_idx)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, attention_mask: Tensor | None, **kwargs: Any) -> Tensor:
        x = self.add(x, 0, lambda y: self.self_attn(y, attention_mask=attention_mask, **kwargs)[0])
        return self.add(x, 1, self.feed_forward)  # (batch, source, hidden)


class DecoderLayer(Layer):
    """Self-attention over the target so far, cross-attention over the source, then feed-forward."""

    def __init__(self, config: TransformerSeq2SeqConfig, layer_idx: int):
        super().__init__(config, parts=3)
        self.self_attn = MultiHeadAttention(config, layer_idx, is_causal=True)
        self.cross_attn = MultiHeadAttention(config, layer_idx)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        cache = {"past_key_values": past_key_values, **kwargs}
        x = self.add(x, 0, lambda y: self.self_attn(y, attention_mask=attention_mask, **cache)[0])
        x = self.add(x, 1, lambda y: self.cross_attn(y, memory=memory, attention_mask=memory_mask, **cache)[0])
        return self.add(x, 2, self.feed_forward)  # (batch, target, hidden)


@torch.no_grad()
def initialize(module: nn.Module, config: TransformerSeq2SeqConfig) -> None:
    """Xavier for linear maps, word vectors of length about one, norms as the identity."""
    if isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)
        if module.bias is not None:
            init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        init.normal_(module.weight, std=config.initializer_range or config.hidden_size**-0.5)
    elif isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
        init.zeros_(module.bias)
