"""Matthews correlation of labels, by scikit-learn."""

from sklearn.metrics import matthews_corrcoef

from kit.evaluation.metrics.label_metric import LabelMetric, LabelSets


class Matthews(LabelMetric):
    """Correlation, -1 to 1, of predicted and right labels, of which there may be any number.

    0 is chance, whatever the shares of the labels; it is 0 also where all predictions, or all references, are the same.
    """

    def score(self, examples: LabelSets) -> float:
        predictions, references = examples.single("matthews")
        # of a single label scikit-learn knows the value, too, but warns
        return matthews_corrcoef(references, predictions) if len(examples.names) > 1 else 0.0
