"""The layers of the Transformer: positions, attention, feed-forward, and the encoder and decoder layers built of them.

Shapes in comments: batch, length (of a sequence), hidden (width of the model), heads, d (width of one head), queries
and keys (positions that attend, and that are attended to), source and target.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_transformer_seq2seq import TransformerSeq2SeqConfig

# Copied from recurrent.py, so that a Transformer is uploaded without recurrent code; a test compares the two.
DROPOUT_STEPS = 2**16
"""Number of values of the 16-bit random numbers behind `fast_dropout`: probabilities are rounded to 1/65,536."""


# Copied from recurrent.py
def fast_dropout(x: Tensor, p: float) -> Tensor:
    """Dropout with probability p. On a CPU, one draw of 64 bits decides for four elements.

    There, torch draws one random number per element, one after the other, which took a tenth of a training step. These
    draws come from torch's default generator, too, so that seeds keep their meaning.
    """
    dropped = round(p * DROPOUT_STEPS)
    if dropped == 0:
        return x
    if x.device.type != "cpu" or dropped == DROPOUT_STEPS or torch.compiler.is_compiling():
        return nn.functional.dropout(x, p)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - DROPOUT_STEPS // 2
    return x * keep.to(x.dtype).mul_(DROPOUT_STEPS / (DROPOUT_STEPS - dropped))


# Copied from recurrent.py
class Dropout(nn.Dropout):
    """`nn.Dropout` with `fast_dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        return fast_dropout(x, self.p) if self.training else x


def sinusoids(position: Tensor, frequencies: Sequence[float]) -> Tensor:
    """Sines in the first half and cosines in the second, (length, size), of each position (length,)."""
    # float64 throughout: position × frequency loses digits in float32
    angle = position.double()[:, None] * torch.tensor(frequencies, dtype=torch.float64, device=position.device)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


@lru_cache(maxsize=8)  # a program uses a few: for each power of two, dtype and device
@torch.inference_mode(False)  # a table that is made while decoding must serve training too
def sinusoid_table(length: int, frequencies: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The sinusoids of positions 0 to length − 1, made on the CPU: Apple GPUs have no float64."""
    return sinusoids(torch.arange(length), frequencies).to(dtype).to(device)


class Positions(nn.Module):
    """Adds position embeddings to word embeddings: sinusoids, or learned ones up to `max_position_embeddings`."""

    def __init__(self, config: TransformerSeq2SeqConfig):
        super().__init__()
        size = config.hidden_size
        self.limit = config.max_position_embeddings
        self.learned = None if self.limit is None else nn.Embedding(self.limit, size)
        # as numbers: models are built without memory for tensors before their weights are loaded
        exponents = torch.arange(0, size, 2, device="cpu") * (-math.log(10000.0) / size)  # Vaswani et al., 2017
        self.frequencies = tuple(torch.exp(exponents).tolist())

    def forward(self, embeddings: Tensor, start: int | Tensor = 0, length: int | None = None) -> Tensor:
        """Add positions to embeddings (batch, length, hidden), the first of which is at position `start`.

        With `length=1`, all of them are at position `start`.
        """
        length = embeddings.shape[1] if length is None else length
        if not torch.compiler.is_compiling():
            start = int(start)  # a static cache counts in a tensor
        if self.learned is None:
            return embeddings + self._sinusoids(start, length, embeddings.dtype, embeddings.device)
        if isinstance(start, int) and (end := start + length) > self.limit:
            raise ValueError(
                f"a sequence of {end} tokens is longer than the {self.limit} learned positions "
                "(max_position_embeddings): shorten it, or train without max_position_embeddings"
            )
        # not a slice of the weight, which knows nothing of adapters and offloading
        return embeddings + self.learned(torch.arange(length, device=embeddings.device) + start)

    def _sinusoids(self, start: int | Tensor, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The sinusoids (length, hidden) of positions from `start` on, from a table.

        A traced graph computes them instead: the table of a longer sequence would make it another graph.
        """
        if not torch.compiler.is_compiling():
            end = int(start) + length
            rows = 1 << max(6, (end - 1).bit_length())  # a power of two, at least 64: few tables serve all lengths
            return sinusoid_table(rows, self.frequencies, dtype, device)[end - length : end]
        position = torch.arange(length, device="cpu" if device.type == "mps" else device)
        position = position + (start.to(position.device) if isinstance(start, Tensor) else start)
        return sinusoids(position, self.frequencies).to(dtype).to(device)


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
    """Attention in plain operations, the `eager` of transformers.

    query, key and value (batch, heads, queries or keys, d) → context (batch, queries, heads, d) and weights (batch,
    heads, queries, keys).
    """
    scores = query @ key.transpose(-1, -2) * scaling  # (batch, heads, queries, keys)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    context = nn.functional.dropout(weights, p=dropout, training=module.training) @ value
    return context.transpose(1, 2).contiguous(), weights


class MultiHeadAttention(nn.Module):
    """Self-attention, or cross-attention over the encoder's states.

    The keys have no bias: the softmax would cancel it, and it would never learn.
    """

    def __init__(self, config: TransformerSeq2SeqConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, is_causal
        self.heads = config.num_attention_heads
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
        output_attentions: bool | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Let x attend to itself or to a memory.

        Args:
            x: States (batch, queries, hidden).
            memory: The encoder's states (batch, keys, hidden); None for self-attention.
            attention_mask: In the form that the attention function of transformers takes.
            past_key_values: The cache; new keys and values are added to it.
            output_attentions: Request the weights; a fused attention function warns that it has none.

        Returns:
            The new states (batch, queries, hidden), and the weights (batch, heads, queries, keys) or None.
        """
        query = self._split_heads(self.q_proj(x))  # (batch, heads, queries, d)
        key, value = self._keys_and_values(x, memory, past_key_values)  # (batch, heads, keys, d)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        context, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.scaling,
            dropout=self.config.attention_dropout if self.training else 0.0,
            output_attentions=output_attentions,
        )
        return self.out_proj(context.flatten(2)), weights  # (batch, queries, hidden)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _keys_and_values(self, x: Tensor, memory: Tensor | None, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Keys and values (batch, heads, keys, d), those in the cache included."""
        if memory is None:
            key, value = self._split_heads(self.k_proj(x)), self._split_heads(self.v_proj(x))
            if cache is None:
                return key, value
            self_attention_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
            return self_attention_cache.update(key, value, self.layer_idx)
        # the source does not change while the target is decoded: its keys and values are computed once
        if cache is not None and cache.is_updated.get(self.layer_idx):
            layer = cache.cross_attention_cache.layers[self.layer_idx]
            return layer.keys, layer.values
        key, value = self._split_heads(self.k_proj(memory)), self._split_heads(self.v_proj(memory))
        if cache is not None:
            key, value = cache.cross_attention_cache.update(key, value, self.layer_idx)
            cache.is_updated[self.layer_idx] = True
        return key, value


class FeedForward(nn.Module):
    """Two linear maps with an activation between, at each position alone."""

    def __init__(self, config: TransformerSeq2SeqConfig):
        super().__init__()
        self.hidden_act = config.hidden_act
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        is_gated = self.hidden_act == "swiglu"
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size) if is_gated else None
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up_proj(x)  # (batch, length, intermediate)
        if self.gate_proj is not None:
            inner = nn.functional.silu(self.gate_proj(x)) * inner
        else:
            inner = nn.functional.relu(inner) if self.hidden_act == "relu" else nn.functional.gelu(inner)
        return self.down_proj(self.dropout(inner))  # (batch, length, hidden)


class Layer(GradientCheckpointingLayer):
    """Sublayers with a residual connection each: x + f(norm(x)) with pre-norm, norm(x + f(x)) with post-norm."""

    def __init__(self, config: TransformerSeq2SeqConfig, sublayers: int):
        super().__init__()
        self.norm_first = config.norm == "pre"
        self.norms = nn.ModuleList(nn.LayerNorm(config.hidden_size) for _ in range(sublayers))
        self.dropout = Dropout(config.dropout)

    def apply_sublayer(self, x: Tensor, number: int, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x plus the output of a sublayer, with dropout and the norm of this number."""
        norm = self.norms[number]
        if self.norm_first:
            return x + self.dropout(sublayer(norm(x)))
        return norm(x + self.dropout(sublayer(x)))


class EncoderLayer(Layer):
    """Self-attention over the source, then feed-forward."""

    def __init__(self, config: TransformerSeq2SeqConfig, layer_idx: int):
        super().__init__(config, sublayers=2)
        self.self_attn = MultiHeadAttention(config, layer_idx)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, attention_mask: Tensor | None, output_attentions: bool | None = None) -> Tensor:
        def self_attention(y: Tensor) -> Tensor:
            return self.self_attn(y, attention_mask=attention_mask, output_attentions=output_attentions)[0]

        x = self.apply_sublayer(x, 0, self_attention)
        return self.apply_sublayer(x, 1, self.feed_forward)  # (batch, source, hidden)


class DecoderLayer(Layer):
    """Self-attention over the target so far, cross-attention over the source, then feed-forward."""

    def __init__(self, config: TransformerSeq2SeqConfig, layer_idx: int):
        super().__init__(config, sublayers=3)
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
        output_attentions: bool | None = None,
    ) -> Tensor:
        def self_attention(y: Tensor) -> Tensor:
            return self.self_attn(
                y, attention_mask=attention_mask, past_key_values=past_key_values, output_attentions=output_attentions
            )[0]

        def cross_attention(y: Tensor) -> Tensor:
            return self.cross_attn(
                y,
                memory=memory,
                attention_mask=memory_mask,
                past_key_values=past_key_values,
                output_attentions=output_attentions,
            )[0]

        x = self.apply_sublayer(x, 0, self_attention)
        x = self.apply_sublayer(x, 1, cross_attention)
        return self.apply_sublayer(x, 2, self.feed_forward)  # (batch, target, hidden)


@torch.no_grad()
def init_weights(module: nn.Module, config: TransformerSeq2SeqConfig) -> None:
    """Initialize a module: Xavier for linear maps, layer norms as the identity, word embeddings by `initializer_range`,
    by default with a norm of about one."""
    if isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)
        if module.bias is not None:
            init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        init.normal_(module.weight, std=config.initializer_range or config.hidden_size**-0.5)
    elif isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
        init.zeros_(module.bias)
