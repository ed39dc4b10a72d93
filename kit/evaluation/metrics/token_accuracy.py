"""The share of words that are right, position by position."""

from collections.abc import Sequence

import numpy as np

from kit.evaluation.metrics.text_metric import Statistics, TextMetric


class TokenAccuracy(TextMetric):
    """Share, 0 to 1, of positions at which prediction and reference have the same word.

    Words are what white space separates; a text without spaces is one word. Positions are those of the longer
    text, so that missing and surplus words count as errors; all positions of the corpus weigh the same. This
    is the accuracy of free output, not of a decoder that is shown the reference: a word left out shifts all
    that follow. Of several references, the one that fits best counts.
    """

    def statistics(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Statistics:
        rows = [
            max((_hits(prediction, text) for text in texts), key=_share)
            for prediction, texts in zip(predictions, references, strict=True)
        ]
        return Statistics(np.array(rows, dtype=np.float64), score=_share)


def _hits(prediction: str, reference: str) -> tuple[int, int]:
    """(positions that are equal, positions)"""
    predicted, expected = prediction.split(), reference.split()
    equal = sum(word == right for word, right in zip(predicted, expected, strict=False))
    return equal, max(len(predicted), len(expected))


def _share(hits: Sequence[float] | np.ndarray) -> float:
    equal, positions = hits
    return float(equal / positions) if positions else 1.0  # nothing expected and nothing said is right
