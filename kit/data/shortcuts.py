"""Trivial rules that predict the labels of text pairs: a model that learns one has not learned to compare two texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kit.data.batching.ragged import RaggedTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_PAIRS = 50_000
"""Pairs that rules are tried on, evenly spaced."""
RANGES = 20
"""Ranges of a length with about the same number of pairs; for each of them a rule predicts one label."""
MARGIN = 0.03
"""Smallest gain in accuracy over the most frequent label that is worth a warning."""
STANDARD_ERRORS = 4
"""Number of standard errors that the gain must exceed: several rules are tried."""
NO_TOKEN = -1
"""Stands for the first token of an empty text."""


@dataclass(frozen=True)
class LabeledPairs:
    """Pairs of texts with a label each."""

    first: RaggedTokens
    second: RaggedTokens
    labels: np.ndarray
    """The index of the label of each pair."""
    names: Sequence[str]
    """The names of the labels."""
    sides: tuple[str, str]
    """What the two texts of a pair are called."""
    tokenizer: "PreTrainedTokenizerBase"

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self) -> dict[str, int]:
        """Number of pairs by label."""
        return dict(zip(self.names, np.bincount(self.labels, minlength=len(self.names)).tolist(), strict=True))


@dataclass(frozen=True)
class Rule:
    """How well one property of a pair predicts its label."""

    name: str
    """The property: "the length of the first segment"."""
    accuracy: float
    """Share of right predictions, each learned from other pairs."""
    chance: float
    """Share of the most frequent label."""
    error: float
    """Standard error of that share."""
    example: str = ""
    """The value of the property that gives most labels away, and the label."""

    @property
    def is_shortcut(self) -> bool:
        """Whether the rule beats chance by more than noise."""
        return self.accuracy - self.chance > max(MARGIN, STANDARD_ERRORS * self.error)


def try_rules(pairs: LabeledPairs) -> list[Rule]:
    """The rules that know only the length of a text, or of both, or the first token of a text; the best one first.

    A rule predicts for half of the pairs the label that is most frequent among those of the other half with the same
    property.
    """
    chosen = np.arange(0, len(pairs), max(1, -(-len(pairs) // MAX_PAIRS)))
    if len(chosen) < 2:
        return []
    labels = pairs.labels[chosen]
    chance = float(np.bincount(labels).max() / len(labels))
    error = (chance * (1 - chance) / len(labels)) ** 0.5
    rules = []
    for name, lengths in lengths_of(pairs, chosen):
        edges = np.unique(np.quantile(lengths, np.arange(1, RANGES) / RANGES))
        rules.append(Rule(name, accuracy_of(np.digitize(lengths, edges), labels), chance, error))
    for name, tokens in first_tokens(pairs, chosen):
        example = most_decisive(tokens, labels, pairs)
        rules.append(Rule(name, accuracy_of(tokens, labels), chance, error, example))
    return sorted(rules, key=lambda rule: -rule.accuracy)


def lengths_of(pairs: LabeledPairs, chosen: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The lengths of the chosen pairs that a rule may know, each with its name."""
    first, second = (side.lengths[chosen] for side in (pairs.first, pairs.second))
    yield f"the length of the {pairs.sides[0]}", first
    yield f"the length of the {pairs.sides[1]}", second
    yield "the sum of both lengths", first + second
    yield "the difference between both lengths", first - second


def first_tokens(pairs: LabeledPairs, chosen: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The first token of either text of the chosen pairs, with the name of the property."""
    for name, side in zip(pairs.sides, (pairs.first, pairs.second), strict=True):
        tokens = [side[index][0] if side.lengths[index] else NO_TOKEN for index in chosen.tolist()]
        yield f"the first token of the {name}", np.array(tokens, dtype=np.int64)


def label_counts(values: np.ndarray, labels: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
    """How often each value, a number from 0, occurs with each label (values, labels)."""
    return np.bincount(values * sizes[1] + labels, minlength=sizes[0] * sizes[1]).reshape(sizes)


def accuracy_of(values: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of the rule "the most frequent label of this value", cross-validated on two random halves.

    For a value that does not occur in the other half, the rule is the most frequent label of that half.
    """
    distinct, numbers = np.unique(values, return_inverse=True)
    sizes, right = (len(distinct), int(labels.max()) + 1), 0
    in_second = np.random.default_rng(0).permutation(len(labels)) % 2 == 1  # labels may alternate
    for half in (in_second, ~in_second):
        counts = label_counts(numbers[half], labels[half], sizes)
        predictions = np.where(counts.any(axis=1), counts.argmax(axis=1), counts.sum(axis=0).argmax())
        right += int((predictions[numbers[~half]] == labels[~half]).sum())
    return right / len(labels)


def most_decisive(tokens: np.ndarray, labels: np.ndarray, pairs: LabeledPairs) -> str:
    """The token that occurs with one label most often beyond the share of that label, and the label."""
    distinct, numbers = np.unique(tokens, return_inverse=True)
    counts = label_counts(numbers, labels, (len(distinct), len(pairs.names)))
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    best, label = np.unravel_index(int((counts - expected).argmax()), counts.shape)
    token = int(distinct[best])
    text = "no token" if token == NO_TOKEN else f'"{pairs.tokenizer.convert_ids_to_tokens(token)}"'
    return f"{text}: {pairs.names[int(label)]}"
