"""Training objectives: the loss of a step as a sum over its micro-batches.

Accelerate prepares the objective, not the bare model, so that everything a task computes around its model happens
inside the wrapped forward pass, where data-parallel and sharding hooks see every parameter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kit.data.batching.ragged import IGNORE_INDEX
from kit.decoding.inputs import Batch, source_of
from kit.models.recurrent import shift_right
from kit.recipe.model import ModelSection
from kit.recipe.training import ScheduledSamplingKeys


@dataclass(frozen=True)
class SamplingSchedule:
    """The probability of scheduled sampling per step: a pure function of the step, so that resuming is exact.

    Rises linearly from 0 to `full` over `steps` steps, beginning at step `start`.
    """

    full: float
    start: int
    steps: int

    @classmethod
    def of(cls, model: ModelSection, train: ScheduledSamplingKeys) -> "SamplingSchedule | None":
        """The schedule of a recipe with these sections.

        None without scheduled sampling, or if the full probability applies from the first step.
        """
        full = model.settings.get("scheduled_sampling", 0.0)
        if not full or not (train.sampling_start or train.sampling_steps):
            return None
        return cls(full, train.sampling_start, train.sampling_steps)

    def at(self, step: int) -> float:
        """The probability at a step, counted from 0."""
        if step < self.start:
            return 0.0
        return self.full * min(1.0, (step - self.start + 1) / self.steps) if self.steps else self.full


class Objective(nn.Module):
    """The loss of a step as a sum over its micro-batches.

    `normalizers(batch)` is what a micro-batch adds to the step's normalizers, known before any forward pass;
    `forward(batch, totals)` returns the micro-batch's share of the step's loss, already divided by the totals of the
    whole step. The loss of a step is then the plain sum of its shares, however they are spread over processes.

    Normalizers and counts are numbers of Python: Apple GPUs have no float64, and a tensor with it would make the loss
    float64.
    """

    model: PreTrainedModel
    unit: ClassVar[str] = "tokens"
    """What `token_counts` counts, for messages."""

    def __init__(self, model: PreTrainedModel, sampling: SamplingSchedule | None = None):
        super().__init__()
        self.model = model
        self.sampling = sampling
        self.sampling_arguments: dict[str, float] = {}
        """Extra arguments of the model's `forward`: the sampling probability of this step, if it follows a schedule."""

    def begin_step(self, step: int) -> None:
        """Set the sampling probability of a step, counted from 0; called before its forward passes."""
        if self.sampling is not None:
            self.sampling_arguments = {"sampling_probability": self.sampling.at(step)}

    def normalizers(self, batch: Batch) -> list[float]:
        """Normalizers of the loss for this micro-batch, one per loss term."""
        raise NotImplementedError

    def forward(self, batch: Batch, totals: Sequence[float]) -> Tensor:
        """This micro-batch's share of the step's loss."""
        raise NotImplementedError

    def token_counts(self, batch: Batch) -> list[int]:
        """For the log, three counts of a micro-batch: tokens that measure speed, real tokens, tokens with padding.

        By default, speed is measured in all tokens that the model reads.
        """
        real = int(batch["attention_mask"].sum())
        return [real, real, batch["attention_mask"].numel()]

    def carried_state(self) -> dict[str, Tensor]:
        """State carried from step to step besides the weights, by name: (streams, …), one row per stream of text."""
        return {}

    def load_carried_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore the carried state from a checkpoint."""

    def local_streams(self) -> Tensor:
        """Mask of the streams that this process has read since it started, (streams,)."""
        return torch.zeros(0, dtype=torch.bool)


class Seq2SeqObjective(Objective):
    """Cross-entropy of the labels with optional label smoothing, averaged per target token or per sequence."""

    def __init__(
        self,
        model: PreTrainedModel,
        label_smoothing: float = 0.0,
        normalize_by: Literal["tokens", "sequences"] = "tokens",
        sampling: SamplingSchedule | None = None,
    ):
        super().__init__(model, sampling)
        self.label_smoothing = label_smoothing
        self.normalize_by = normalize_by

    def normalizers(self, batch: Batch) -> list[float]:
        return [label_count(batch) if self.normalize_by == "tokens" else len(batch["labels"])]

    def token_counts(self, batch: Batch) -> list[int]:
        """Speed is measured in target tokens. Source tokens count as padded tokens too, but images do not."""
        target = label_count(batch)
        source = batch.get("attention_mask", batch["labels"].new_zeros(0))
        return [target, target + int(source.sum()), batch["labels"].numel() + source.numel()]

    def forward(self, batch: Batch, totals: Sequence[float]) -> Tensor:
        return self.summed_loss(batch, self.label_smoothing) / totals[0]

    def summed_loss(self, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Cross-entropy summed over the target tokens of the batch."""
        logits = self.model(
            **source_of(batch),
            decoder_input_ids=decoder_inputs(self.model, batch["labels"]),
            use_cache=False,
            **self.sampling_arguments,
        ).logits  # (batch, target, vocabulary)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return nn.functional.cross_entropy(
            logits.flatten(0, 1),
            batch["labels"].flatten(),
            ignore_index=IGNORE_INDEX,
            reduction="sum",
            label_smoothing=label_smoothing,
        )


def label_count(batch: Batch) -> int:
    """The number of labels that enter the loss."""
    return int((batch["labels"] != IGNORE_INDEX).sum())


def decoder_inputs(model: PreTrainedModel, labels: Tensor) -> Tensor:
    """Decoder inputs for teacher forcing: the labels, shifted as the model itself shifts them."""
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return model.prepare_decoder_input_ids_from_labels(labels)
    # M2M100 and NLLB shift labels like most models, but without a public method for it
    return shift_right(labels, model.config.decoder_start_token_id, model.config.pad_token_id)
