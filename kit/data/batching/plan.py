"""The plan of batches: which examples make up which micro-batch of which step.

A plan is a pure function of the lengths and the seed: a step can be asked for in any order, by any process, without
the steps before it. The number of steps in an epoch is the same in every epoch, because where batches are cut depends
on the lengths alone; an epoch only decides which of the examples of like length meet, and the order of the batches.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch

from kit.errors import DataError

MIN_LAST_BATCH = 8


def bucket_lengths(lengths: np.ndarray) -> np.ndarray:
    """Round lengths up so that classes are at most a sixteenth too long: examples of one class are exchangeable."""
    grain = 2 ** np.maximum(0, np.floor(np.log2(np.maximum(lengths, 1))).astype(np.int64) - 4)
    return np.minimum(-(-lengths // grain) * grain, lengths.max(initial=1))


def micro_batch_seed(seed: int, step: int, index: int) -> int:
    """Seed of all randomness (dropout, sampling, noise) of one micro-batch."""
    return int(np.random.SeedSequence([seed, step, index]).generate_state(1, np.uint64)[0])


def micro_batch_rng(seed: int, step: int, index: int) -> np.random.Generator:
    """What is random in making micro-batch `index` of a step, whichever process makes it."""
    return np.random.default_rng([seed, step, index])


def seed_micro_batch(seed: int, step: int, index: int) -> None:
    """Make the randomness of a micro-batch its own, whatever ran before it and wherever it runs."""
    torch.manual_seed(micro_batch_seed(seed, step, index))


@dataclass(frozen=True)
class Padding:
    """How much of what the model computes on is padding."""

    real_tokens: int
    padded_tokens: int

    @property
    def share(self) -> float:
        return 1 - self.real_tokens / max(1, self.padded_tokens)


class Plan(Protocol):
    """What a training loop asks of a plan, be it over data in memory or over a stream."""

    micro_batches: int

    def step(self, number: int) -> list[np.ndarray]:
        """The micro-batches of a step (counted from 0 over all epochs), as indices of examples."""

    def epochs(self, steps: int) -> float:
        """How many times the data has been gone through after so many steps."""

    def padding(self) -> Padding:
        """Real and padded tokens, all sides together."""

    def describe(self) -> str:
        """Where batches come from, in a few words."""

    def state(self, steps: int) -> dict[str, Any]:
        """What has to be known to go on after so many steps, besides their number."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""

    def close(self) -> None:
        """Let go of everything."""


class BatchPlan:
    """Steps of examples of like length, each split into the same number of micro-batches."""

    def __init__(
        self,
        sides: list[np.ndarray],
        *,
        seed: int,
        size: int,
        unit: Literal["tokens", "examples"] = "tokens",
        micro_batches: int = 1,
    ):
        """`sides` holds the length of every example on each side (source, target; or one side only).

        A step holds at most `size` padded tokens of the longer side, or exactly `size` examples (the last of an epoch
        may differ), over all its micro-batches.
        """
        self.sides = [np.asarray(side, dtype=np.int64) for side in sides]
        self.seed, self.size, self.unit, self.micro_batches = seed, size, unit, micro_batches
        longest = np.maximum.reduce(self.sides)
        self._check(longest)
        self._classes = [bucket_lengths(longest), *(bucket_lengths(side) for side in self.sides)]
        self._bounds = self._cut(np.sort(self._classes[0])[::-1])
        self._epoch = -1
        self._order = self._batch_order = np.empty(0, dtype=np.int64)

    def _check(self, longest: np.ndarray) -> None:
        if len(longest) < self.micro_batches:
            raise DataError(
                f"there are {len(longest)} training examples, too few for train.micro_batches={self.micro_batches}: "
                "every micro-batch needs at least one"
            )
        needed = int(longest.max()) * self.micro_batches
        if self.unit == "tokens" and needed > self.size:
            each = f" in each of {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
            raise DataError(
                f"train.tokens_per_batch={self.size} is smaller than one sentence{each}: the longest training example "
                f"has {int(longest.max())} tokens. Set train.tokens_per_batch to {needed} or more, or leave out long "
                "examples with data.max_length"
            )
        if self.unit == "examples" and self.size < self.micro_batches:
            raise DataError(
                f"train.batch_size={self.size} is smaller than train.micro_batches={self.micro_batches}: "
                "every micro-batch needs at least one example"
            )

    def _cut(self, descending: np.ndarray) -> np.ndarray:
        """Where batches start and end in the examples sorted from long to short."""
        bounds, total = [0], len(descending)
        while bounds[-1] < total:
            fitting = self.size // int(descending[bounds[-1]]) if self.unit == "tokens" else self.size
            bounds.append(min(bounds[-1] + fitting, total))
        # The last batch holds the shortest examples. If they are few, it borrows from its neighbour, so that batches
        # are the same for any usual number of micro-batches; it joins it where that has too few to give each one.
        if len(bounds) > 2:
            last, both = total - bounds[-2], total - bounds[-3]
            for few in (max(MIN_LAST_BATCH, self.micro_batches), self.micro_batches):
                if last < few and both >= 2 * few:
                    bounds[-2] = total - few
                    break
            else:
                if last < self.micro_batches:
                    del bounds[-2]
        return np.asarray(bounds, dtype=np.int64)

    @property
    def steps_per_epoch(self) -> int:
        return len(self._bounds) - 1

    def _arrange(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        random = np.random.default_rng([self.seed, epoch])
        longest, *sides = self._classes
        # from long to short by the longer side, then by the others, so that all sides are padded little
        self._order = np.lexsort((random.random(len(longest)), *(-side for side in reversed(sides)), -longest))
        self._batch_order = random.permutation(self.steps_per_epoch)
        self._epoch = epoch

    def step(self, number: int) -> list[np.ndarray]:
        """The micro-batches of a step (counted from 0 over all epochs), as indices of examples."""
        epoch, position = divmod(number, self.steps_per_epoch)
        self._arrange(epoch)
        batch = self._batch_order[position]
        return np.array_split(self._order[self._bounds[batch] : self._bounds[batch + 1]], self.micro_batches)

    def epochs(self, steps: int) -> float:
        return steps / self.steps_per_epoch

    def describe(self) -> str:
        return f"{self.steps_per_epoch:,} steps an epoch, {self.padding().share:.1%} padding"

    def state(self, steps: int) -> dict[str, Any]:
        """Nothing: the number of a step says all."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass

    def padding(self, epoch: int = 0) -> Padding:
        """Real and padded tokens of a whole epoch, all sides together."""
        self._arrange(epoch)
        starts = np.concatenate(
            [
                start + np.cumsum([0, *map(len, np.array_split(np.arange(start, end), self.micro_batches))])[:-1]
                for start, end in zip(self._bounds[:-1], self._bounds[1:], strict=True)
            ]
        )
        sizes = np.diff(np.append(starts, len(self._order)))
        padded = sum(int((np.maximum.reduceat(side[self._order], starts) * sizes).sum()) for side in self.sides)
        return Padding(real_tokens=sum(int(side.sum()) for side in self.sides), padded_tokens=padded)


def length_sorted_batches(lengths: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Batches for evaluation and inference: every example once, from long to short, at most `tokens` padded tokens each
    (an example longer than that is alone)."""
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        fitting = max(1, tokens // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + fitting])
        start += fitting
    return batches
