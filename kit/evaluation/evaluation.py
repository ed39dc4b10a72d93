"""The result of an evaluation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

UNKNOWN_TOKENS = "unknown_tokens"
"""The figure that counts the unknown tokens in generated texts, if there are any."""


@dataclass(frozen=True)
class Evaluation:
    """Figures of a split and the predictions they were computed from, in the order of the data."""

    figures: Mapping[str, Any]
    rows: Sequence[dict[str, Any]]
    config_updates: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the model's configuration that the evaluation determined, such as a threshold that was tuned."""
    losses: Sequence[dict[str, Any]] = ()
    """For a language model, whose figures are not metrics of predictions: the loss of each document, as
    `kit.evaluation.losses` describes it."""


def perplexity(loss: float) -> float:
    """The exponential of a loss; finite also for a loss above 709, where `math.exp` overflows."""
    return math.exp(min(loss, 700))
