"""Losses of fine-tuning: those of transformers' model classes, as sums over the micro-batches of a step.

The classes compute a mean over a batch. A step of several micro-batches needs the sum and its normalizer; for a single
batch, the tests compare both forms.
"""

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from transformers import PreTrainedModel

from kit.data.batching.ragged import IGNORE_INDEX
from kit.training.lm_objectives import upcast
from kit.training.objective import Batch, Objective, label_count

LABELS = ("labels", "start_positions", "end_positions")
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]


class LabelObjective(Objective):
    """A loss between the logits of a model and labels."""

    def __init__(self, model: PreTrainedModel, label_smoothing: float = 0.0):
        super().__init__(model)
        self.label_smoothing = label_smoothing

    def output(self, batch: Batch) -> dict[str, Tensor]:
        """The logits for a batch by name, in at least 32 bits."""
        output = self.model(**{name: tensor for name, tensor in batch.items() if name not in LABELS})
        return {name: upcast(output[name]) for name in ("logits", "start_logits", "end_logits") if name in output}

    def summed_loss(self, output: dict[str, Tensor], batch: Batch, training: bool = False) -> Tensor:
        """The loss summed over a batch; class weights and label smoothing apply to training only."""
        raise NotImplementedError

    def normalizers(self, batch: Batch) -> list[float]:
        return [self.loss_count(batch, training=True)]

    def loss_count(self, batch: Batch, training: bool = False) -> float:
        """The normalizer of the summed loss."""
        raise NotImplementedError

    def forward(self, batch: Batch, totals: Sequence[float]) -> Tensor:
        # Without labels, or with labels of weight 0 only, the loss is 0 instead of 0 / 0. The reciprocal is computed in
        # Python: a sum of class weights is not a float32, and dividing by it would round twice.
        return self.summed_loss(self.output(batch), batch, training=True) * (1 / max(totals[0], 1e-12))


class ClassificationObjective(LabelObjective):
    """Cross-entropy of one label, binary cross-entropy of several, or squared error of a number.

    With class weights the mean is weighted as in torch: the sum is divided by the weights of the labels in the batch.
    With several labels they are torch's `pos_weight`, the weights of the examples that have a label.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        problem_type: ProblemType,
        class_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__(model, label_smoothing)
        self.problem_type = problem_type
        self.class_weights = class_weights

    def loss_count(self, batch: Batch, training: bool = False) -> float:
        labels = batch["labels"]
        if self.problem_type != "single_label_classification":
            return labels.numel()
        if self.class_weights is None or not training:
            return len(labels)
        return math.fsum(self.class_weights[label] for label in labels.tolist())

    def summed_loss(self, output: dict[str, Tensor], batch: Batch, training: bool = False) -> Tensor:
        logits, labels = output["logits"], batch["labels"]  # (examples, labels), (examples) or (examples, labels)
        if self.problem_type == "regression":
            return nn.functional.mse_loss(logits.squeeze(-1), labels.to(logits.dtype), reduction="sum")
        weight = logits.new_tensor(self.class_weights) if training and self.class_weights is not None else None
        if self.problem_type == "multi_label_classification":
            return nn.functional.binary_cross_entropy_with_logits(
                logits, labels.to(logits.dtype), pos_weight=weight, reduction="sum"
            )
        return nn.functional.cross_entropy(
            logits,
            labels,
            weight=weight,
            label_smoothing=self.label_smoothing if training else 0.0,
            reduction="sum",
        )


class TaggingObjective(LabelObjective):
    """Cross-entropy of the tags of those tokens that have one."""

    def loss_count(self, batch: Batch, training: bool = False) -> float:
        return label_count(batch)

    def summed_loss(self, output: dict[str, Tensor], batch: Batch, training: bool = False) -> Tensor:
        return nn.functional.cross_entropy(
            output["logits"].flatten(0, 1),
            batch["labels"].flatten(),
            ignore_index=IGNORE_INDEX,
            label_smoothing=self.label_smoothing if training else 0.0,
            reduction="sum",
        )


class QuestionAnsweringObjective(LabelObjective):
    """The mean of two cross-entropies: of the token where the answer starts, and of the one where it ends.

    Padding gets no probability, so that the loss of a window does not depend on the longer windows of its batch. The
    classes of transformers include padding; without any, they compute the same loss.
    """

    def loss_count(self, batch: Batch, training: bool = False) -> float:
        return len(batch["input_ids"])

    def summed_loss(self, output: dict[str, Tensor], batch: Batch, training: bool = False) -> Tensor:
        padding = batch["attention_mask"] == 0
        smoothing = self.label_smoothing if training else 0.0
        losses = []
        for side in ("start", "end"):
            logits = output[f"{side}_logits"].masked_fill(padding, float("-inf"))  # (windows, tokens)
            log_probabilities = logits.log_softmax(-1)
            loss = -log_probabilities.gather(1, batch[f"{side}_positions"][:, None]).sum()
            if smoothing:
                uniform = -log_probabilities.masked_fill(padding, 0.0).sum(-1) / batch["attention_mask"].sum(-1)
                loss = (1 - smoothing) * loss + smoothing * uniform.sum()
            losses.append(loss)
        return (losses[0] + losses[1]) / 2
