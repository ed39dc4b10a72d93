"""Trivial rules that predict the labels of text pairs: a model that learns one has not learned to compare two texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kit.data.batching.ragged import RaggedTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_PAIRS = 50_000
"""Pairs, evenly spaced, on which rules are tried: an accuracy has a standard error of 0.2 % then."""
RANGES = 20
"""Number of ranges into which a length is divided, each with about as many pairs; a rule predicts one label for each.
Finer ranges would fit noise."""
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
    """The value of the property that predicts its label best, and that label: '"=": different'."""

    @property
    def is_shortcut(self) -> bool:
        """Whether the rule beats chance by more than noise."""
        return self.accuracy - self.chance > max(MARGIN, STANDARD_ERRORS * self.error)


def try_rules(pairs: LabeledPairs) -> list[Rule]:
    """Rules that see only a length or a first token of the two texts, from the most to the least accurate.

    A rule predicts the most frequent label among the pairs with the same property. It learns from one half of the pairs
    and is scored on the other.
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
    """Each length that a rule may use, with its name, for the chosen pairs."""
    first, second = (side.lengths[chosen] for side in (pairs.first, pairs.second))
    yield f"the length of the {pairs.sides[0]}", first
    yield f"the length of the {pairs.sides[1]}", second
    yield "the sum of both lengths", first + second
    yield "the difference between both lengths", first - second


def first_tokens(pairs: LabeledPairs, chosen: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The first tokens of the chosen pairs: of the first texts, then of the second ones, each with its name."""
    for name, side in zip(pairs.sides, (pairs.first, pairs.second), strict=True):
        tokens = [side[index][0] if side.lengths[index] else NO_TOKEN for index in chosen.tolist()]
        yield f"the first token of the {name}", np.array(tokens, dtype=np.int64)


def label_counts(values: np.ndarray, labels: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
    """Number of pairs by value and label, both numbered from 0; `sizes` is the shape (values, labels)."""
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
    """The token whose count with one label most exceeds the count expected by chance, and that label."""
    distinct, numbers = np.unique(tokens, return_inverse=True)
    counts = label_counts(numbers, labels, (len(distinct), len(pairs.names)))
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    best, label = np.unravel_index(int((counts - expected).argmax()), counts.shape)
    token = int(distinct[best])
    text = "no token" if token == NO_TOKEN else f'"{pairs.tokenizer.convert_ids_to_tokens(token)}"'
    return f"{text}: {pairs.names[int(label)]}"
