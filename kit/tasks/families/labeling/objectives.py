"""What fine-tuning minimizes: the losses of the stock model classes, as sums that any number of micro-batches share.

The classes compute their loss as a mean over a batch; a step in several micro-batches needs the sum, and what to divide
it by. What is the same number for one whole batch is checked in the tests.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kit.data.batching.ragged import IGNORE_INDEX
from kit.training.objective import Batch, Objective

LABELS = ("labels", "start_positions", "end_positions")
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]


class LabelObjective(Objective):
    """A loss between what a model says about its input and labels."""

    def output(self, batch: Batch) -> dict[str, Tensor]:
        """What the model says, by name, in at least 32 bits."""
        found = self.model(**{name: tensor for name, tensor in batch.items() if name not in LABELS})
        names = ("logits", "start_logits", "end_logits")
        logits = {name: found[name] for name in names if name in found}
        return {name: one.to(torch.promote_types(one.dtype, torch.float32)) for name, one in logits.items()}

    def summed_loss(self, output: dict[str, Tensor], batch: Batch, training: bool = False) -> Tensor:
        """The loss summed over a batch; weights and label smoothing are for training alone."""
        raise NotImplementedError

    def normalizers(self, batch: Batch) -> Tensor:
        return self.loss_count(batch, training=True).to(torch.float64).reshape(1)

    def loss_count(self, batch: Batch, training: bool = False) -> Tensor:
        """What the summed loss is divided by."""
        raise NotImplementedError

    def forward(self, batch: Batch, totals: Tensor) -> Tensor:
        loss = self.summed_loss(self.output(batch), batch, training=True)
        return loss / totals[0].clamp(min=1e-12).to(loss.device)


class ClassificationObjective(LabelObjective):
    """Cross-entropy of one label, binary cross-entropy of several, or squared error of a number.

    With class weights the mean is the weighted one of torch: divided by the weights of the labels that are there.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        model: PreTrainedModel,
        problem_type: ProblemType,
        class_weights: Tensor | None = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__(model)
        self.problem_type = problem_type
        self.label_smoothing = label_smoothing
        self.register_buffer("class_weights", class_weights, persistent=False)

    def loss_count(self, batch: Batch, training: bool = False) -> Tensor:
        labels = batch["labels"]
        if self.problem_type != "single_label_classification":
            return torch.tensor(labels.numel())
        if self.class_weights is None or not training:
            return torch.tensor(len(labels))
        return self.class_weights.to(labels.device)[labels].sum()

    def summed_loss(self, output: dict[str, Tensor], batch: Batch, training: bool = False) -> Tensor:
        logits, labels = output["logits"], batch["labels"]  # (examples, labels), (examples) or (examples, labels)
        if self.problem_type == "regression":
            return nn.functional.mse_loss(logits.squeeze(-1), labels.to(logits.dtype), reduction="sum")
        if self.problem_type == "multi_label_classification":
            return nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
        weight = self.class_weights if training else None
        return nn.functional.cross_entropy(
            logits,
            labels,
            weight=None if weight is None else weight.to(logits),
            label_smoothing=self.label_smoothing if training else 0.0,
            reduction="sum",
        )


class TaggingObjective(LabelObjective):
    """Cross-entropy of the tags of tokens, where they have one."""

    def __init__(self, model: PreTrainedModel, label_smoothing: float = 0.0):
        super().__init__(model)
        self.label_smoothing = label_smoothing

    def loss_count(self, batch: Batch, training: bool = False) -> Tensor:
        return (batch["labels"] != IGNORE_INDEX).sum()

    def summed_loss(self, output: dict[str, Tensor], batch: Batch, training: bool = False) -> Tensor:
        return nn.functional.cross_entropy(
            output["logits"].flatten(0, 1),
            batch["labels"].flatten(),
            ignore_index=IGNORE_INDEX,
            label_smoothing=self.label_smoothing if training else 0.0,
            reduction="sum",
        )


class QuestionAnsweringObjective(LabelObjective):
    """Cross-entropy of the token where the answer starts and of that where it ends, the mean of both.

    Padding is no place for an answer: it has no share in the probabilities, so that the loss of a window is the same
    beside longer ones, in any batch. The stock classes leave padding in; without any they compute the same.
    """

    def __init__(self, model: PreTrainedModel, label_smoothing: float = 0.0):
        super().__init__(model)
        self.label_smoothing = label_smoothing

    def loss_count(self, batch: Batch, training: bool = False) -> Tensor:
        return torch.tensor(len(batch["input_ids"]))

    def summed_loss(self, output: dict[str, Tensor], batch: Batch, training: bool = False) -> Tensor:
        padding = batch["attention_mask"] == 0
        smoothing = self.label_smoothing if training else 0.0
        losses = []
        for side in ("start", "end"):
            logits = output[f"{side}_logits"].masked_fill(padding, float("-inf"))  # (windows, tokens)
            spread = logits.log_softmax(-1)
            found = -spread.gather(1, batch[f"{side}_positions"][:, None]).sum()
            if smoothing:
                each = -spread.masked_fill(padding, 0.0).sum(-1) / batch["attention_mask"].sum(-1)
                found = (1 - smoothing) * found + smoothing * each.sum()
            losses.append(found)
        return (losses[0] + losses[1]) / 2
