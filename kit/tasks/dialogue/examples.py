"""Replies as examples, with the tokens of the turns before them: turn by turn, or as one sequence."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens, TokenPairs
from kit.data.text.tokenizer import Tokenizers
from kit.pipelines.dialogue import recent_turns
from kit.tasks.dialogue.recipe import DialogueData
from kit.tasks.families.seq2seq.examples import apply_filters

EMPTY, POSITIONS = "empty", "positions"
"""Names of the filters that drop empty replies, and replies that are too long for the model."""


@dataclass(frozen=True)
class Conversations(TokenPairs):
    """Encoded turns and replies; `source` has the concatenated tokens of all turns of an example."""

    turns: RaggedTokens = field(default_factory=lambda: RaggedTokens([]))
    """The number of tokens of each turn."""
    separate: bool = True
    """Whether the model encodes each turn separately, (turns, tokens), or all of them as one sequence."""

    @classmethod
    def of(
        cls,
        histories: Sequence[Sequence[Sequence[int]]],
        replies: Sequence[Sequence[int]],
        separate: bool,
        truncated: int = 0,
    ) -> "Conversations":
        """Make examples of the tokens of each turn before a reply. `truncated` is the number of truncated examples."""
        source = RaggedTokens([token for turn in turns for token in turn] for turns in histories)
        lengths = RaggedTokens([len(turn) for turn in turns] for turns in histories)
        return cls(source, RaggedTokens(replies), None, truncated, lengths, separate)

    @property
    def longest_turns(self) -> np.ndarray:
        """Number of tokens of the longest turn of each example."""
        return np.array([self.turns[i].max(initial=0) for i in range(len(self))], dtype=np.int64)

    @property
    def input_lengths(self) -> np.ndarray:
        """The number of tokens that the model reads of each example, including the padding of its shorter turns."""
        return self.turns.lengths * self.longest_turns if self.separate else self.source.lengths

    def select(self, indices: np.ndarray) -> "Conversations":
        source, target, turns = (lists.select(indices) for lists in (self.source, self.target, self.turns))
        return Conversations(source, target, None, 0, turns, self.separate)

    def batch(self, indices: np.ndarray, pad: int) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask`, (batch, turns, tokens) for separate turns, and `labels` (batch, target)."""
        if not self.separate:
            return super().batch(indices, pad)
        turns = int(self.turns.lengths[indices].max(initial=1))
        longest = max((int(self.turns[i].max(initial=1)) for i in indices), default=1)
        ids = np.full((len(indices), max(1, turns), longest), pad, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, index in enumerate(indices):
            lengths = self.turns[index]
            for turn, tokens in enumerate(np.split(self.source[index], np.cumsum(lengths)[:-1])):
                ids[row, turn, : len(tokens)] = tokens
                mask[row, turn, : len(tokens)] = 1
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "labels": self.target.padded(indices, IGNORE_INDEX),
        }


def encode_histories(
    histories: Iterable[list[str]], tokenizers: Tokenizers, max_turns: int | None, limit: int | None
) -> tuple[list[list[list[int]]], set[int]]:
    """Tokenize the turns that the model reads of each dialogue; also returns which dialogues exceed `limit` tokens.

    A turn is tokenized once, however many replies follow it.
    """
    recent = [turns if max_turns is None else turns[-max_turns:] for turns in histories]
    distinct = list(dict.fromkeys(turn for turns in recent for turn in turns))
    ids = dict(zip(distinct, tokenizers.encode_source(distinct), strict=True))
    encoded, truncated = [], set()
    for index, turns in enumerate(recent):
        recent_ids, is_truncated = recent_turns([ids[turn] for turn in turns], None, limit)
        encoded.append(recent_ids)
        if is_truncated:
            truncated.add(index)
    return encoded, truncated


def filter_lengths(
    examples: Conversations, data: DialogueData, tokenizers: Tokenizers, limit: int | None
) -> tuple[np.ndarray, dict[str, int]]:
    """Which examples pass the filters of the recipe and fit `limit` positions, and how many each filter drops."""
    # the lengths in a recipe are those of the text, without the tokens that the tokenizer adds
    reply = examples.target.lengths - len(tokenizers.encode_empty_target())
    longest = np.maximum(reply, examples.longest_turns - len(tokenizers.encode_empty_source()))
    return apply_filters(
        {
            EMPTY: reply < 1,
            "max_length": longest > (data.max_length or np.inf),
            POSITIONS: examples.target.lengths > (limit or np.inf),
        }
    )
