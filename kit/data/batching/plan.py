"""The batch plan of data in memory: which examples form which micro-batch of which step.

A plan is a pure function of the lengths and the seed: any process can ask for any step, in any order. All epochs have
the same number of steps, because where batches are cut depends only on the lengths; an epoch decides which examples of
similar length meet, and the order of the batches.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch

from kit.errors import DataError

MIN_LAST_BATCH = 8
"""Examples that the last batch of an epoch should have: divisible by 1, 2, 4 and 8 micro-batches, so that the usual
numbers of micro-batches give the same batches."""


def bucket_lengths(lengths: np.ndarray) -> np.ndarray:
    """Lengths rounded up by at most a sixteenth. Examples with equal rounded lengths are interchangeable in a batch."""
    grain = 2 ** np.maximum(0, np.floor(np.log2(np.maximum(lengths, 1))).astype(np.int64) - 4)
    return np.minimum(-(-lengths // grain) * grain, lengths.max(initial=1))


def micro_batch_seed(seed: int, step: int, index: int) -> int:
    """Seed of all randomness inside the model (dropout, sampling, noise) for one micro-batch."""
    return int(np.random.SeedSequence([seed, step, index]).generate_state(1, np.uint64)[0])


def micro_batch_rng(seed: int, step: int, index: int) -> np.random.Generator:
    """The generator for building one micro-batch (masking, BPE dropout), whichever process builds it."""
    return np.random.default_rng([seed, step, index])


def seed_micro_batch(seed: int, step: int, index: int) -> None:
    """Seed torch for one micro-batch, so that its randomness does not depend on what ran before, or where."""
    torch.manual_seed(micro_batch_seed(seed, step, index))


@dataclass(frozen=True)
class Padding:
    """The tokens that the model computes on in an epoch, without and with padding."""

    real_tokens: int
    padded_tokens: int

    @property
    def share(self) -> float:
        return 1 - self.real_tokens / max(1, self.padded_tokens)


class Plan(Protocol):
    """The interface of the training loop to a plan, over data in memory or over a stream."""

    micro_batches: int

    @property
    def steps_per_epoch(self) -> int | None:
        """The number of steps in an epoch; None if it is not known, as for a stream."""

    def step(self, number: int) -> list[np.ndarray]:
        """The micro-batches of a step (counted from 0 across epochs), as indices of examples."""

    def epochs(self, steps: int) -> float:
        """The number of epochs that this many steps amount to."""

    def padding(self) -> Padding:
        """Real and padded tokens, summed over source and target."""

    def describe(self) -> str:
        """The plan in a few words, for the terminal."""

    def state(self, steps: int) -> dict[str, Any]:
        """What a checkpoint after this many steps must store of the plan, in addition to the number of steps."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint."""

    def close(self) -> None:
        """Release threads and files."""


class EpochPlan(Plan):
    """A plan over data in memory: epochs have a known number of steps, and the number of a step is all of its state."""

    sides: list[np.ndarray]
    """The length of every example on each side."""

    @property
    def steps_per_epoch(self) -> int:
        raise NotImplementedError

    def epochs(self, steps: int) -> float:
        return steps / self.steps_per_epoch

    def state(self, steps: int) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class BatchPlan(EpochPlan):
    """Steps of examples of similar length, each split into the same number of micro-batches."""

    def __init__(
        self,
        sides: list[np.ndarray],
        *,
        seed: int,
        size: int,
        unit: Literal["tokens", "examples"] = "tokens",
        micro_batches: int = 1,
    ):
        """`sides` holds the length of every example on each side (source and target, or a single side).

        A step has at most `size` padded tokens on the longer side, or exactly `size` examples (except the last one of
        an epoch), over all its micro-batches. Raises DataError if an example does not fit, or if a micro-batch would be
        empty.
        """
        self.sides = [np.asarray(side, dtype=np.int64) for side in sides]
        self.seed, self.size, self.unit, self.micro_batches = seed, size, unit, micro_batches
        longest = np.maximum.reduce(self.sides)
        self._check(longest)
        self._buckets = [bucket_lengths(longest), *(bucket_lengths(side) for side in self.sides)]
        self._bounds = self._batch_bounds(np.sort(self._buckets[0])[::-1])
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
                f"has {int(longest.max())} tokens. Set train.tokens_per_batch to {needed} or more, or filter long "
                "examples with data.max_length"
            )
        if self.unit == "examples" and self.size < self.micro_batches:
            raise DataError(
                f"train.batch_size={self.size} is smaller than train.micro_batches={self.micro_batches}: "
                "every micro-batch needs at least one example"
            )

    def _batch_bounds(self, descending: np.ndarray) -> np.ndarray:
        """Where batches start and end among the examples sorted from long to short."""
        bounds, total = [0], len(descending)
        while bounds[-1] < total:
            fitting = self.size // int(descending[bounds[-1]]) if self.unit == "tokens" else self.size
            bounds.append(min(bounds[-1] + fitting, total))
        # The last batch has the shortest examples. If they are few, it takes some from the batch before it, so that
        # batches are the same for any usual number of micro-batches; if that has too few as well, the two are merged.
        if len(bounds) > 2:
            last, last_two = total - bounds[-2], total - bounds[-3]
            for minimum in (max(MIN_LAST_BATCH, self.micro_batches), self.micro_batches):
                if last < minimum and last_two >= 2 * minimum:
                    bounds[-2] = total - minimum
                    break
            else:
                if last < self.micro_batches:
                    del bounds[-2]
        return np.asarray(bounds, dtype=np.int64)

    @property
    def steps_per_epoch(self) -> int:
        return len(self._bounds) - 1

    def _shuffle(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        rng = np.random.default_rng([self.seed, epoch])
        longest, *sides = self._buckets
        # from long to short by the longer side, then by the others, so that every side has little padding
        self._order = np.lexsort((rng.random(len(longest)), *(-side for side in reversed(sides)), -longest))
        self._batch_order = rng.permutation(self.steps_per_epoch)
        self._epoch = epoch

    def step(self, number: int) -> list[np.ndarray]:
        """The micro-batches of a step (counted from 0 across epochs), as indices of examples."""
        epoch, position = divmod(number, self.steps_per_epoch)
        self._shuffle(epoch)
        batch = self._batch_order[position]
        return np.array_split(self._order[self._bounds[batch] : self._bounds[batch + 1]], self.micro_batches)

    def describe(self) -> str:
        return f"{self.steps_per_epoch:,} steps an epoch, {self.padding().share:.1%} padding"

    def padding(self) -> Padding:
        """Real and padded tokens of the first epoch, summed over the sides."""
        self._shuffle(0)
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
    """Batches for evaluation and inference: every example once, from long to short, at most `tokens` padded tokens.

    An example longer than that forms a batch by itself.
    """
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        fitting = max(1, tokens // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + fitting])
        start += fitting
    return batches
