"""Attention scores are those of the formulas."""

import itertools
import math

import pytest
import torch
from support.rnn_models import subject_of, tiny
from torch import Tensor

from kit.models import attention
from kit.models.attention import SCORES, Attention, AttentionMemory
from kit.verify.subject import logits_of


def score_by_hand(
    score: str, asking: Attention, memory: AttentionMemory, head: int, query: Tensor, state: Tensor
) -> Tensor:
    """One score of one head, written as in the papers."""
    width = memory.key(state).shape[0] // asking.heads
    head_slice = slice(head * width, (head + 1) * width)
    q, k = asking.query(query)[head_slice], memory.key(state)[head_slice]
    if score == "additive":
        return asking.energy[head] @ torch.tanh(q + k)
    if score == "rbf":
        return -asking.log_precision[head].exp() * torch.linalg.vector_norm(q - k) ** 2
    return q @ k / (math.sqrt(width) if score == "scaled_dot" else 1)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("score", SCORES)
@torch.no_grad()
def test_scores_and_contexts_are_those_of_the_formulas(score: str, heads: int) -> None:
    torch.manual_seed(1)
    memory = AttentionMemory(score, state_size=4, key_size=4, layers=2, project_values=True).double()
    asking = SCORES[score](query_size=4, key_size=4, heads=heads, layers=2).double()
    for parameter in (*memory.parameters(), *asking.parameters()):
        torch.nn.init.normal_(parameter)
    states, queries = torch.randn(2, 3, 4).double(), torch.randn(2, 2, 4).double()
    mask = torch.tensor([[True, True, True], [True, True, False]])
    context, weights = asking(queries, *memory(states), mask)
    for b, h, t in itertools.product(range(2), range(heads), range(2)):
        visible = [m for m in range(3) if mask[b, m]]
        scores = torch.stack([score_by_hand(score, asking, memory, h, queries[b, t], states[b, m]) for m in visible])
        expected = scores.softmax(0)
        torch.testing.assert_close(weights[b, h, t, : len(visible)], expected)
        assert (weights[b, h, t, len(visible) :] == 0).all()
        head_slice = slice(h * (4 // heads), (h + 1) * (4 // heads))
        mixed = sum(
            weight * memory.value(states[b, m])[head_slice] for weight, m in zip(expected, visible, strict=True)
        )
        torch.testing.assert_close(context[b, t, head_slice], mixed)


def test_keyed_attention_applies_sigmoid_layers() -> None:
    memory = AttentionMemory("keyed", state_size=3, key_size=2, layers=2)
    state = torch.randn(1, 1, 3)
    first, second = (layer for layer in memory.key if isinstance(layer, torch.nn.Linear))
    expected = torch.sigmoid(second(torch.sigmoid(first(state))))
    torch.testing.assert_close(memory(state)[0], expected)


def test_additive_scores_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of(tiny(attention="additive", context_to=["readout"]))
    whole = logits_of(subject.exact, subject.inputs())
    monkeypatch.setattr(attention, "MAX_ELEMENTS", 1)
    torch.testing.assert_close(logits_of(subject.exact, subject.inputs()), whole)
