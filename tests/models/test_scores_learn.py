"""Every attention score learns: after a short training, models reverse held-out sequences."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings
from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration
from kit.models.attention import SCORES
from kit.training.objective import Seq2SeqObjective

PAD, END, SYMBOLS = 1, 2, range(3, 11)
LENGTHS = range(4, 7)
UNSEEN = 200
LEARNING_RATE = 0.01

BAHDANAU = {"attention_query": "previous", "context_to": ["input", "readout"]}
LUONG = {"attention_query": "current", "context_to": ["state"]}


def draw(count: int, random: torch.Generator) -> list[tuple[int, ...]]:
    lengths = torch.randint(LENGTHS.start, LENGTHS.stop, (count,), generator=random).tolist()
    symbols = torch.randint(SYMBOLS.start, SYMBOLS.stop, (count, LENGTHS.stop), generator=random).tolist()
    return [tuple(row[:length]) for row, length in zip(symbols, lengths, strict=True)]


def batch_of(sequences: list[tuple[int, ...]]) -> dict[str, Tensor]:
    """The task: a sequence, and its reversal."""

    def padded(rows: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([row + [filler] * (LENGTHS.stop - len(row)) for row in rows])

    return {
        "input_ids": padded([[*sequence, END] for sequence in sequences], PAD),
        "attention_mask": padded([[1] * (len(sequence) + 1) for sequence in sequences], 0),
        "labels": padded([[*reversed(sequence), END] for sequence in sequences], -100),
    }


def exact_match_after(steps: int, **choices: Any) -> float:
    """Train a new model on random sequences; returns the share of held-out ones that it reverses exactly."""
    random = torch.Generator().manual_seed(0)
    unseen = dict.fromkeys(draw(UNSEEN, random))
    torch.manual_seed(0)
    model = RNNSeq2SeqForConditionalGeneration(RNNSeq2SeqConfig(vocab_size=SYMBOLS.stop, hidden_size=48, **choices))
    objective = Seq2SeqObjective(model)
    optimizer = torch.optim.Adam(objective.parameters(), lr=LEARNING_RATE)
    # up over the first steps, level, and down to nothing over the second half
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1, (i + 1) / 20, 2 * (1 - i / steps)))
    for _ in range(steps):
        batch = batch_of([sequence for sequence in draw(64, random) if sequence not in unseen])
        optimizer.zero_grad()
        objective(batch, objective.normalizers(batch)).backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    results = search(model.eval(), batch_of(list(unseen)), GenerationSettings(max_new_tokens=LENGTHS.stop + 1))
    right = sum(best.tokens == [*reversed(sequence), END] for (best, *_), sequence in zip(results, unseen, strict=True))
    return right / len(unseen)


@pytest.mark.parametrize(
    "destinations",
    [pytest.param(BAHDANAU, id="bahdanau"), pytest.param(LUONG, id="luong", marks=pytest.mark.soak)],
)
@pytest.mark.parametrize("score", SCORES)
def test_every_attention_score_learns_to_reverse(score: str, destinations: dict[str, Any]) -> None:
    assert exact_match_after(120, cell="gru", attention=score, **destinations) >= 0.95


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
def test_the_other_cells_learn_too(cell: str) -> None:
    assert exact_match_after(150, cell=cell, attention="additive", num_attention_heads=2) >= 0.95


@pytest.mark.parametrize(
    "choices",
    [
        pytest.param({"attention": "none", "context_to": []}, id="none", marks=pytest.mark.soak),
        pytest.param({"attention": "fixed", "context_to": ["input", "readout"]}, id="fixed"),
    ],
)
def test_a_final_state_can_hold_a_short_sequence(choices: dict[str, Any]) -> None:
    assert exact_match_after(500, cell="gru", **choices) >= 0.95
