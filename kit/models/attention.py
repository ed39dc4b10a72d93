"""Attention of a recurrent decoder over the states of an encoder.

    states ─► AttentionMemory ─► keys, values                          once per source
                                    │     │
    query ─► Attention: scores ◄────┘     │                            at each target position
                          └─► softmax ─► weights · values ─► context

A score is one subclass of `Attention` below, registered by a name. That name is all it needs to be known to
configurations, recipes, `kit explain` and the tests that go through all scores.

Shapes in comments: batch, queries (target positions), memory (positions of the encoder's states), heads, and d, the
width of one head.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization as init

MAX_ELEMENTS = 2**25
"""Additive scores need a tensor of batch · queries · memory · width numbers. Beyond this size, 128 MiB in float32,
queries are scored in chunks, so that inference does not need all of it at once; training keeps it for the gradient."""

SCORES: dict[str, type["Attention"]] = {}
"""The attention scores by name, as `config.attention` gives it."""


def register_score(name: str) -> Callable[[type["Attention"]], type["Attention"]]:
    """Class decorator: register a subclass of `Attention` under the name that `config.attention` gives it."""

    def register(score_class: type["Attention"]) -> type["Attention"]:
        SCORES[name] = score_class
        return score_class

    return register


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, width) → (batch, heads, length, width / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class AttentionMemory(nn.Module):
    """Projects the encoder's states to keys and values: once per source, because they do not depend on the query.

    Args:
        score: Name of the attention score, which decides how keys are made.
        state_size: Width of the encoder's states, and of the values.
        key_size: Width of the keys, all heads together.
        layers: Number of layers of the key projection, for scores that have layers.
        project_values: Use learned projections of the states as values instead of the states themselves.
    """

    def __init__(self, score: str, state_size: int, key_size: int, layers: int = 1, project_values: bool = False):
        super().__init__()
        self.key = SCORES[score].project_key(state_size, key_size, layers)
        self.value = nn.Linear(state_size, state_size, bias=False) if project_values else nn.Identity()

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        # states (batch, memory, state_size) → keys (batch, memory, key_size), values (batch, memory, state_size)
        return self.key(states), self.value(states)


class Attention(nn.Module):
    """Score queries against keys, and average the values by the softmax of the scores.

    A subclass is one score: it overrides what differs from the product q·k of projected queries and keys. Its
    parameters are created after those of the query, and initialized by `init_weights`.

    Args:
        query_size: Width of the decoder's states.
        key_size: Width of queries and keys, all heads together.
        heads: Number of heads.
        layers: Number of layers of the query projection, for scores that have layers.
    """

    projects: ClassVar[bool] = True
    """Queries and keys are projected to `attention_size`; otherwise they are as wide as the decoder's state."""

    has_layers: ClassVar[bool] = False
    """The projections have `attention_layers` layers."""

    needs_equal_widths: ClassVar[bool] = False
    """Encoder and decoder states are compared directly, so they must have the same width."""

    def __init__(self, query_size: int, key_size: int, heads: int = 1, layers: int = 1):
        super().__init__()
        self.heads = heads
        self.query = self.project_query(query_size, key_size, layers)

    @classmethod
    def project_query(cls, query_size: int, key_size: int, layers: int) -> nn.Module:
        """The module that turns decoder states into queries. Unlike that of a key, its bias changes the softmax."""
        return nn.Linear(query_size, key_size) if cls.projects else nn.Identity()

    @classmethod
    def project_key(cls, state_size: int, key_size: int, layers: int) -> nn.Module:
        """The module that turns encoder states into keys.

        It has no bias where the softmax would cancel it: such a parameter would have no gradient.
        """
        return nn.Linear(state_size, key_size, bias=False)

    def init_weights(self) -> None:
        """Initialize the parameters that a score has besides its projections."""

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """query (batch, heads, queries, d), key (batch, heads, memory, d) → scores (batch, heads, queries, memory)."""
        return query @ key.transpose(-1, -2)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Average the values by the softmax of the scores.

        Args:
            query: Decoder states (batch, queries, query_size).
            keys, values: Output of `AttentionMemory`, (batch, memory, …).
            mask: True at the positions of the memory that may be attended to, (batch, memory).

        Returns:
            The context (batch, queries, value width) and the weights (batch, heads, queries, memory).
        """
        q = split_heads(self.query(query), self.heads)  # (batch, heads, queries, d)
        k = split_heads(keys, self.heads)  # (batch, heads, memory, d)
        v = split_heads(values, self.heads)  # (batch, heads, memory, value width / heads)
        scores = self.score(q, k)  # (batch, heads, queries, memory)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        # as everywhere in transformers, the softmax of half-precision scores is taken in float32
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
        context = weights @ v  # (batch, heads, queries, value width / heads)
        return context.transpose(1, 2).flatten(2), weights


@register_score("dot")
class DotAttention(Attention):
    """q·k of the unprojected states (Luong et al., 2015)."""

    projects = False
    needs_equal_widths = True

    @classmethod
    def project_key(cls, state_size: int, key_size: int, layers: int) -> nn.Module:
        return nn.Identity()


@register_score("general")
class GeneralAttention(Attention):
    """The bilinear score q·W k (Luong et al., 2015). W is applied to the keys: once per source, not at each step."""

    projects = False


@register_score("keyed")
class KeyedAttention(Attention):
    """q·k, where query and key each come from sigmoid layers."""

    has_layers = True

    @classmethod
    def project_query(cls, query_size: int, key_size: int, layers: int) -> nn.Module:
        return sigmoid_layers(query_size, key_size, layers)

    @classmethod
    def project_key(cls, state_size: int, key_size: int, layers: int) -> nn.Module:
        return sigmoid_layers(state_size, key_size, layers)


@register_score("additive")
class AdditiveAttention(Attention):
    """v·tanh(q + k) (Bahdanau et al., 2015)."""

    def __init__(self, query_size: int, key_size: int, heads: int = 1, layers: int = 1):
        super().__init__(query_size, key_size, heads, layers)
        self.energy = nn.Parameter(torch.empty(heads, key_size // heads))

    def init_weights(self) -> None:
        init.xavier_uniform_(self.energy)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        chunk = max(1, MAX_ELEMENTS // max(1, key.numel()))
        scores = [
            # (batch, heads, chunk, 1, d) + (batch, heads, 1, memory, d) → (batch, heads, chunk, memory)
            torch.einsum("bhqmd,hd->bhqm", torch.tanh(part.unsqueeze(-2) + key.unsqueeze(-3)), self.energy)
            for part in query.split(chunk, dim=2)
        ]
        return scores[0] if len(scores) == 1 else torch.cat(scores, dim=2)


@register_score("scaled_dot")
class ScaledDotAttention(Attention):
    """q·k / √d of projected states, as in the Transformer (Vaswani et al., 2017)."""

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return super().score(query, key) / math.sqrt(query.shape[-1])


@register_score("rbf")
class RBFAttention(Attention):
    """−β‖q − k‖², a Gaussian kernel after the softmax; β is learned for each head."""

    def __init__(self, query_size: int, key_size: int, heads: int = 1, layers: int = 1):
        super().__init__(query_size, key_size, heads, layers)
        self.log_precision = nn.Parameter(torch.empty(heads))

    def init_weights(self) -> None:
        init.zeros_(self.log_precision)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        products = super().score(query, key)  # (batch, heads, queries, memory)
        # ‖q − k‖² = ‖q‖² + ‖k‖² − 2 q·k. The softmax cancels ‖q‖², but it belongs to the score.
        distance = query.square().sum(-1, keepdim=True) + key.square().sum(-1).unsqueeze(-2) - 2 * products
        return -self.log_precision.exp()[:, None, None] * distance


def sigmoid_layers(input_size: int, size: int, layers: int) -> nn.Sequential:
    """σ(W … σ(W x)): the projections of the `keyed` score."""
    modules: list[nn.Module] = []
    for i in range(layers):
        modules += [nn.Linear(input_size if i == 0 else size, size), nn.Sigmoid()]
    return nn.Sequential(*modules)
