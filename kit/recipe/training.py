"""The recipe sections that describe a run and its result: `train`, `eval` and `hub`, with their key groups."""

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Generic, Literal, TypeVar

from annotated_types import Ge, Gt, Le, Lt

from kit.recipe.section import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    Seed,
    absent,
    exactly_one,
)

Metric = TypeVar("Metric")


class LabelSmoothingKey(Section):
    """Label smoothing, for tasks whose loss is a cross-entropy over target tokens or labels."""

    label_smoothing_factor: Fraction = 0.0
    """Label smoothing: share of the target probability spread over all tokens or labels. 0.1 is common for
    translation."""


class NormalizationKey(Section):
    """Normalization of the loss, for tasks whose models generate a target sequence."""

    normalize_by: Literal["tokens", "sequences"] = "tokens"
    """Divide the summed loss of a step by its number of target tokens, or by its number of sequences."""


class ScheduledSamplingKeys(Section):
    """Schedule of `model.scheduled_sampling`, for tasks with recurrent decoders."""

    sampling_start: NonNegativeInt = 0
    """Number of steps of pure teacher forcing before model.scheduled_sampling begins."""

    sampling_steps: NonNegativeInt = 0
    """Number of steps after sampling_start over which the probability of feeding the model its own predictions rises
    from zero to model.scheduled_sampling; 0 applies the full probability at once."""


class LayerwiseKeys(Section):
    """Freezing and learning rates by layer, for tasks whose models are one stack of layers."""

    freeze: Literal["embeddings"] | PositiveInt | None = None
    """Part of a pretrained model to freeze: embeddings, or a number n for the embeddings and the n layers above them.
    Frozen weights need no gradients, which saves time and memory."""

    layer_decay: Annotated[float, Gt(0), Le(1)] | None = None
    """Layer-wise learning rate decay for pretrained models: each layer learns at this fraction of the rate of the layer
    above it. With 0.9, the second layer from the top gets 0.9 of the learning rate, the third 0.81, down to the
    embeddings; heads get the full rate."""


class TrainSection(Section):
    """Duration, batch size, optimizer and learning rate of training."""

    seed: Seed = 0
    """Random seed of training: initial weights, data order and dropout."""

    max_steps: PositiveInt | None = None
    """Number of optimizer steps. Set this or num_train_epochs."""

    num_train_epochs: PositiveFloat | None = None
    """Number of passes over the training data; fractions such as 0.5 are allowed. Set this or max_steps."""

    max_minutes: PositiveFloat | None = None
    """Stop training after this many minutes, even if steps remain, and run the final evaluation."""

    tokens_per_batch: PositiveInt | None = None
    """Number of padded tokens per step, counted on the longer side and summed over all processes and micro-batches, so
    that more processes change the speed but not the result. Set this or batch_size."""

    batch_size: PositiveInt | None = None
    """Number of examples per step, summed over all processes and micro-batches. Set this or tokens_per_batch."""

    micro_batches: PositiveInt = 1
    """Number of micro-batches per step (gradient accumulation); more of them need less memory. Must be at least the
    number of processes."""

    optimizer: Literal["adamw", "adam", "sgd", "adafactor"] = "adamw"
    """Optimizer: adamw suits most models, adafactor needs the least memory, sgd is the simplest."""

    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate. 1e-3 suits small models trained from scratch; for fine-tuning, start with 5e-5."""

    weight_decay: NonNegativeFloat = 0.0
    """Weight decay (L2 penalty decoupled from the gradient with adamw); 0.01 is common."""

    adam_beta1: Fraction = 0.9
    """Decay rate of Adam's running mean of the gradients; adam and adamw only."""

    adam_beta2: Fraction = 0.999
    """Decay rate of Adam's running mean of the squared gradients; 0.98 is common for Transformers. adam and adamw
    only."""

    adam_epsilon: PositiveFloat = 1e-8
    """Constant that keeps Adam from dividing by zero; adam and adamw only."""

    momentum: Fraction = 0.0
    """Momentum; sgd only, where 0.9 is common."""

    lr_scheduler_type: Literal["linear", "cosine", "inverse_sqrt", "constant", "constant_with_warmup"] = "linear"
    """Learning rate after the warmup: decays to zero (linear, cosine), decays slowly without reaching zero
    (inverse_sqrt), or stays at its peak (constant_with_warmup). constant has no warmup."""

    warmup_steps: NonNegativeInt = 0
    """Number of steps over which the learning rate rises linearly from zero to learning_rate."""

    max_grad_norm: PositiveFloat | None = 1.0
    """Clip gradients to this norm; null disables clipping. Recurrent models need it."""

    ema_decay: Annotated[float, Gt(0), Lt(1)] | None = None
    """Evaluate and save an exponential moving average (EMA) of the weights with this decay; 0.999 averages over roughly
    the last 1,000 steps. Training itself continues with the raw weights."""

    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision: bf16 or fp16 saves memory and time on GPUs that support it, and bf16 is faster on CPUs with
    native support (avx512_bf16 or amx_bf16 among the flags in /proc/cpuinfo). On other CPUs it is slower."""

    dtype: Literal["float32", "float64"] = "float32"
    """Data type of the weights; float64 is for proofs that need high precision."""

    torch_compile: bool = False
    """Compile the model for training steps with torch.compile: speeds up long runs, but takes about a minute at the
    start. Models with recurrent layers stay uncompiled, and a line reports it."""

    save_steps: PositiveInt = 500
    """Number of steps between checkpoints, from which a run can be resumed."""

    save_total_limit: PositiveInt = 2
    """Number of checkpoints to keep, besides the best one."""

    logging_steps: PositiveInt = 50
    """Number of steps between log entries (loss, learning rate, speed) in metrics.jsonl."""

    early_stopping_patience: PositiveInt | None = None
    """Stop when eval.metric_for_best_model has not improved in this many evaluations; null disables early stopping."""

    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = []  # noqa: RUF012 (pydantic copies it)
    """Trackers that receive the metrics too; each must be installed."""

    freeze: ClassVar[Literal["embeddings"] | int | None] = absent(None)
    layer_decay: ClassVar[float | None] = absent(None)

    @property
    def rate_depends_on_length(self) -> bool:
        """Whether the learning rate of a step depends on the number of all steps."""
        return self.lr_scheduler_type in ("linear", "cosine")

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if self.optimizer != "sgd":
            ineffective["momentum"] = f"with train.optimizer: {self.optimizer} (only sgd uses it)"
        if self.optimizer not in ("adam", "adamw"):
            names = ("adam_beta1", "adam_beta2", "adam_epsilon")
            reason = f"with train.optimizer: {self.optimizer} (only adam and adamw use it)"
            ineffective |= dict.fromkeys(names, reason)
        if self.lr_scheduler_type == "constant":
            ineffective["warmup_steps"] = "with train.lr_scheduler_type: constant (constant_with_warmup uses it)"
        return ineffective

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        yield from exactly_one(self, "train", "max_steps", "num_train_epochs")
        yield from exactly_one(self, "train", "tokens_per_batch", "batch_size")
        for name in ("tokens_per_batch", "batch_size"):
            size = getattr(self, name)
            if size is not None and size < self.micro_batches:
                yield "micro_batches", f"a {name} of {size} cannot be split into {self.micro_batches} micro-batches."
        if self.mixed_precision != "no" and self.dtype == "float64":
            yield "mixed_precision", f"{self.mixed_precision} cannot be combined with train.dtype: float64."


class EvalSection(Section, Generic[Metric]):
    """Frequency and metrics of evaluation; `Metric` is the type of the names of metrics."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("metrics", "tokens_per_batch")
    prediction_keys: ClassVar[tuple[str, ...]] = ("tokens_per_batch",)
    reports_all_metrics: ClassVar[bool] = False
    """Whether every metric is always reported, so that eval.metrics has no effect on an evaluation."""

    steps: NonNegativeInt = 500
    """Number of steps between evaluations on the validation split; 0 evaluates only at the end."""

    metrics: list[Metric] = []  # noqa: RUF012
    """Metrics computed on the decoded output, in addition to loss and perplexity."""

    metric_for_best_model: Metric | Literal["loss"] = "loss"
    """Metric that selects the best checkpoint: loss, or one of eval.metrics."""

    average: Annotated[int, Ge(2), Le(1000)] | None = None
    """At the end, average the weights of this many last checkpoints (one every train.save_steps) and compare the
    average with the best checkpoint on the validation split; the better one becomes the model. This many checkpoints
    are kept."""

    tokens_per_batch: PositiveInt = 8192
    """Batch size for evaluation, in padded tokens; affects memory and speed, not results."""

    examples: NonNegativeInt = 4
    """Number of decoded examples to print at each evaluation."""

    @classmethod
    def keys_of(cls, kind: str) -> list[str]:
        return [name for name in super().keys_of(kind) if name != "metrics" or not cls.reports_all_metrics]

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.metric_for_best_model != "loss" and self.metric_for_best_model not in self.metrics:
            yield (
                "metric_for_best_model",
                f'"{self.metric_for_best_model}" is not computed: add it to eval.metrics, or choose loss.',
            )


class HubSection(Section):
    """Metadata for the model card; none of it affects training."""

    license: str | None = None
    """License of the model, by its Hub identifier (apache-2.0)."""

    language: list[str] = []  # noqa: RUF012
    """Language codes of the model, such as en."""

    tags: list[str] = []  # noqa: RUF012
    """Tags that help users find the model on the Hub."""

    datasets: list[str] = []  # noqa: RUF012
    """Hub ids of the datasets that the model was trained on."""

    base_model: str | None = None
    """Base model on the Hub, OWNER/NAME[@REVISION], if model.pretrained is a folder with the same model. An adapter
    that was trained on a folder cannot be pushed without it."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.base_model is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", self.base_model):
            yield "base_model", f'expected OWNER/NAME or OWNER/NAME@REVISION, got "{self.base_model}".'
