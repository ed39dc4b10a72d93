"""Attention of a recurrent decoder over a memory: what is computed once per sentence, and what at each step."""

import math

import torch
from torch import Tensor, nn

# Additive scores need a (batch, queries, memory, width) tensor: longer queries are scored in pieces of this size.
MOST_ELEMENTS = 2**25


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, width) → (batch, heads, length, width / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def sigmoid_layers(input_size: int, size: int, layers: int) -> nn.Sequential:
    """σ(W … σ(W x)): the maps of the `keyed` score."""
    parts: list[nn.Module] = []
    for i in range(layers):
        parts += [nn.Linear(input_size if i == 0 else size, size), nn.Sigmoid()]
    return nn.Sequential(*parts)


class AttentionMemory(nn.Module):
    """Keys and values of the source: all that does not depend on the query, so it is computed once per sentence.

    No key has a bias where the softmax would cancel it: such a parameter would never learn.
    """

    def __init__(self, score: str, state_size: int, key_size: int, layers: int = 1, learned_values: bool = False):
        super().__init__()
        if score == "dot":
            self.key: nn.Module = nn.Identity()
        elif score == "keyed":
            self.key = sigmoid_layers(state_size, key_size, layers)
        else:
            self.key = nn.Linear(state_size, key_size, bias=False)
        self.value = nn.Linear(state_size, state_size, bias=False) if learned_values else nn.Identity()

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        # states (batch, memory, state_size) → keys (batch, memory, key_size), values (batch, memory, state_size)
        return self.key(states), self.value(states)


class Attention(nn.Module):
    """Score queries against keys, and mix the values by the softmax of the scores.

    The scores, for a query q and a key k of one head:
    `dot` and `general` q·k · `scaled_dot` q·k/√d · `keyed` q·k of sigmoid layers · `additive` v·tanh(q + k) ·
    `rbf` −β‖q − k‖². What makes q is here, what makes k is in `AttentionMemory`.
    """

    def __init__(self, score: str, query_size: int, key_size: int, heads: int = 1, layers: int = 1):
        super().__init__()
        self.score = score
        self.heads = heads
        if score in ("dot", "general"):
            self.query: nn.Module = nn.Identity()
        elif score == "keyed":
            self.query = sigmoid_layers(query_size, key_size, layers)
        else:
            # in q·k a bias of the query still weighs the keys; so does it in the other two scores
            self.query = nn.Linear(query_size, key_size)
        if score == "additive":
            self.energy = nn.Parameter(torch.empty(heads, key_size // heads))
        elif score == "rbf":
            self.log_precision = nn.Parameter(torch.empty(heads))

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Context (batch, queries, value width) and weights (batch, heads, queries, memory).

        `mask` (batch, memory) is true where there is something to attend to.
        """
        q = split_heads(self.query(query), self.heads)  # (batch, heads, queries, d)
        k = split_heads(keys, self.heads)  # (batch, heads, memory, d)
        v = split_heads(values, self.heads)  # (batch, heads, memory, width / heads)
        scores = self._scores(q, k)  # (batch, heads, queries, memory)
        if mask is not None:
            lowest = torch.finfo(scores.dtype).min
            scores = scores.masked_fill(~mask[:, None, None, :], lowest)
        # the softmax of half-precision scores is taken in float32, as everywhere in transformers
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
        context = weights @ v  # (batch, heads, queries, width / heads)
        return context.transpose(1, 2).flatten(2), weights

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        if self.score == "additive":
            return self._additive(q, k)
        products = q @ k.transpose(-1, -2)  # (batch, heads, queries, memory)
        if self.score == "scaled_dot":
            return products / math.sqrt(q.shape[-1])
        if self.score == "rbf":
            # −‖q − k‖² = 2 q·k − ‖k‖² − ‖q‖²; the last term is the same for all keys, but belongs to the score
            distance = q.square().sum(-1, keepdim=True) + k.square().sum(-1).unsqueeze(-2) - 2 * products
            return -self.log_precision.exp()[:, None, None] * distance
        return products

    def _additive(self, q: Tensor, k: Tensor) -> Tensor:
        piece = max(1, MOST_ELEMENTS // max(1, k.numel()))
        scores = [
            # (batch, heads, piece, 1, d) + (batch, heads, 1, memory, d) → (batch, heads, piece, memory)
            torch.einsum("bhqmd,hd->bhqm", torch.tanh(part.unsqueeze(-2) + k.unsqueeze(-3)), self.energy)
            for part in q.split(piece, dim=2)
        ]
        return scores[0] if len(scores) == 1 else torch.cat(scores, dim=2)
