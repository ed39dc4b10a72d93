"""The training objective of forecasters."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from kit.training.objective import Batch, Objective


class ForecastObjective(Objective):
    """The loss per number to predict: squared error or negative log-likelihood, depending on the model."""

    unit: ClassVar[str] = "time steps"

    def normalizers(self, batch: Batch) -> list[float]:
        return [int(batch["future_mask"].sum()) * batch["future_values"].shape[-1]]

    def token_counts(self, batch: Batch) -> list[int]:
        """The numbers of steps by which speed is measured: to predict, to read and predict, and with padding."""
        predicted = int(batch["future_mask"].sum())
        past = batch["past_mask"]
        return [predicted, predicted + int(past.sum()), batch["future_mask"].numel() + past.numel()]

    def forward(self, batch: Batch, totals: Sequence[float]) -> Tensor:
        return self.model(**batch, num_items_in_batch=totals[0], **self.sampling_arguments).loss

    def summed_loss(self, batch: Batch) -> Tensor:
        """The loss summed over all numbers of a batch."""
        return self.model(**batch, num_items_in_batch=1).loss


def past_inputs(batch: Batch) -> Batch:
    """The inputs of a forecast: a training batch without the values to predict."""
    return {name: tensor for name, tensor in batch.items() if name not in ("future_values", "future_mask")}
