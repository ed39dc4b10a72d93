"""The share of predictions that are exactly right."""

from collections.abc import Sequence

import numpy as np

from kit.evaluation.metrics.text_metric import Statistics, TextMetric


class ExactMatch(TextMetric):
    """Share, 0 to 1, of predictions that equal a reference character by character.

    Only white space at both ends is left out of the comparison. Case, punctuation and Unicode form count.
    """

    def statistics(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Statistics:
        hits = [
            (prediction.strip() in [text.strip() for text in texts], 1)
            for prediction, texts in zip(predictions, references, strict=True)
        ]
        return Statistics(np.array(hits, dtype=np.float64), score=lambda total: total[0] / total[1])
