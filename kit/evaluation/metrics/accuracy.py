"""The share of examples with the right label."""

from kit.evaluation.metrics.label_metric import LabelMetric, LabelSets


class Accuracy(LabelMetric):
    """Share, 0 to 1, of examples that have the right label; of several labels, all and no others."""

    def score(self, examples: LabelSets) -> float:
        pairs = list(zip(examples.predictions, examples.references, strict=True))
        return sum(predicted == right for predicted, right in pairs) / len(pairs)
