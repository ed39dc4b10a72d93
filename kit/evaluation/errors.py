"""What a classifier gets wrong: figures of every label, and which labels are taken for which."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

LABELS, CONFUSIONS = "labels", "confusions"
"""Names of both tables among the figures of an evaluation."""

MAX_CONFUSIONS = 100
"""Confusions that are stored with the figures; plots/confusions.csv has all."""


def label_table(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """Precision, recall and F1 of each label, the number of examples that have it and that it was predicted for.

    `true` and `predicted` are the labels of each example. Labels are sorted; what would divide by zero is 0.
    """
    examples = Counter(label for labels in true for label in labels)
    predictions = Counter(label for labels in predicted for label in labels)
    correct = Counter(label for pair in zip(true, predicted, strict=True) for label in set(pair[0]) & set(pair[1]))
    return {
        label: {
            "precision": correct[label] / max(predictions[label], 1),
            "recall": correct[label] / max(examples[label], 1),
            "f1": 2 * correct[label] / (examples[label] + predictions[label]),
            "examples": examples[label],
            "predictions": predictions[label],
        }
        for label in sorted(examples.keys() | predictions.keys())
    }


def confused_pairs(true: Sequence[str], predicted: Sequence[str]) -> list[tuple[str, str, int]]:
    """Each true label with a label that was predicted for it by mistake, and how often; the most frequent first."""
    counts = Counter(pair for pair in zip(true, predicted, strict=True) if pair[0] != pair[1])
    return [(*pair, count) for pair, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def number_of_errors(scores: dict[str, Any]) -> int:
    """How often a label was missed, or predicted by mistake."""
    correct = round(scores["recall"] * scores["examples"])
    return int(scores["examples"] + scores["predictions"] - 2 * correct)
