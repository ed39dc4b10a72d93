"""What a run does and what becomes of it: the sections `train`, `peft`, `eval` and `hub` as every task has them."""

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from kit.recipe.section import Fraction, Section, Seed, exactly_one


class TrainSection(Section):
    """Training: how long, how many examples at a time, and how the optimizer moves."""

    seed: Seed = 0
    """Seed of everything random in training: first weights, order, dropout. Another seed is another run."""

    max_steps: PositiveInt | None = None
    """Number of optimizer steps; give this or num_train_epochs."""

    num_train_epochs: PositiveFloat | None = None
    """Number of passes over the training data, parts allowed (0.5); give this or max_steps."""

    max_minutes: PositiveFloat | None = None
    """Stop after this many minutes if the steps are not done by then, and evaluate what is there."""

    tokens_per_batch: PositiveInt | None = None
    """Size of a step in padded tokens of the longer side, over all processes and micro-batches, so that more
    processes change the speed and not the result. Give this or batch_size."""

    batch_size: PositiveInt | None = None
    """Size of a step in examples, over all processes and micro-batches. Give this or tokens_per_batch."""

    micro_batches: PositiveInt = 1
    """Number of parts that a step is computed in: more parts need less memory. With several processes it must
    be at least their number."""

    optimizer: Literal["adamw", "adam", "sgd", "adafactor"] = "adamw"
    """Optimizer: adamw suits most; adafactor needs the least memory; sgd is the plainest."""

    learning_rate: PositiveFloat = 1e-3
    """Highest learning rate of the schedule. 1e-3 suits small models from scratch; fine-tuning needs
    about 5e-5."""

    weight_decay: NonNegativeFloat = 0.0
    """How strongly weights are drawn towards zero; 0.01 is usual with adamw."""

    adam_beta1: Fraction = 0.9
    """Memory of Adam's mean of gradients; adam and adamw only."""

    adam_beta2: Fraction = 0.999
    """Memory of Adam's mean of squared gradients; 0.98 is usual for Transformers. adam and adamw only."""

    adam_epsilon: PositiveFloat = 1e-8
    """What keeps Adam from dividing by zero; adam and adamw only."""

    momentum: Fraction = 0.0
    """Memory of past gradients; sgd only, where 0.9 is usual."""

    lr_scheduler_type: Literal["linear", "cosine", "inverse_sqrt", "constant", "constant_with_warmup"] = "linear"
    """How the learning rate goes on after the warm-up: down to zero (linear, cosine), slowly down without
    an end (inverse_sqrt), or not at all."""

    warmup_steps: NonNegativeInt = 0
    """Number of steps in which the learning rate rises from zero to learning_rate."""

    label_smoothing_factor: Fraction = 0.0
    """Share of the target probability that is spread over all tokens; 0.1 is usual for translation."""

    normalize_by: Literal["tokens", "sequences"] = "tokens"
    """What the loss of a step is the mean over: all target tokens weigh the same, or all sequences."""

    sampling_start: NonNegativeInt = 0
    """Number of steps of pure teacher forcing before model.scheduled_sampling sets in."""

    sampling_steps: NonNegativeInt = 0
    """Number of steps, after those of sampling_start, in which the probability that the model reads its own predictions
    rises from zero to model.scheduled_sampling; 0 is at once."""

    max_grad_norm: PositiveFloat | None = 1.0
    """Longer gradients are scaled down to this length; null never scales. Recurrent models need it."""

    ema_decay: Annotated[float, Gt(0), Lt(1)] | None = None
    """Evaluate and keep an exponential moving average of the weights, of which each step keeps this share; 0.999
    looks back over about 1,000 steps. Training itself goes on with the weights as they are."""

    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    """Compute in 16 bits where it is safe: faster and smaller on GPUs that have it (bf16 on newer ones), and faster on
    CPUs that have bf16 (avx512_bf16 or amx_bf16 among the flags of /proc/cpuinfo); on others it is slower."""

    dtype: Literal["float32", "float64"] = "float32"
    """Precision of the weights; float64 is for proofs that need exact arithmetic."""

    torch_compile: bool = False
    """Compile the model before training: pays on long runs, costs a minute or so at the start."""

    save_steps: PositiveInt = 500
    """A checkpoint that a run can be resumed from is written every so many steps."""

    save_total_limit: PositiveInt = 2
    """Number of checkpoints that are kept besides the best one."""

    logging_steps: PositiveInt = 50
    """Loss, learning rate and speed are written to metrics.jsonl every so many steps."""

    early_stopping_patience: PositiveInt | None = None
    """Stop when eval.select_by has not become better in this many evaluations; null trains to the end."""

    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = []  # noqa: RUF012 (pydantic copies it)
    """Services that get the metrics too, each of which must be installed."""

    freeze: Literal["embeddings"] | PositiveInt | None = None
    """Parts of a pretrained model that stay as they are: embeddings, or a number, which freezes the embeddings and so
    many of the layers above them. What is frozen needs no gradients, which saves time and memory."""

    layer_decay: Annotated[float, Gt(0), Le(1)] | None = None
    """How much slower each layer of a pretrained model learns than the one above it: 0.9 gives the layer below the top
    0.9 of the learning rate, the next 0.81, down to the embeddings. Heads learn at the full rate."""

    def without_effect(self) -> dict[str, str]:
        idle = {}
        if self.optimizer != "sgd":
            idle["momentum"] = f"with train.optimizer: {self.optimizer} (only sgd has it)"
        if self.optimizer not in ("adam", "adamw"):
            names = ("adam_beta1", "adam_beta2", "adam_epsilon")
            idle |= dict.fromkeys(names, f"with train.optimizer: {self.optimizer} (only adam and adamw have it)")
        if self.lr_scheduler_type == "constant":
            idle["warmup_steps"] = "with train.lr_scheduler_type: constant (constant_with_warmup has it)"
        return idle

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from exactly_one(self, "train", "max_steps", "num_train_epochs")
        yield from exactly_one(self, "train", "tokens_per_batch", "batch_size")
        for name in ("tokens_per_batch", "batch_size"):
            size = getattr(self, name)
            if size is not None and size < self.micro_batches:
                yield "micro_batches", f"{self.micro_batches} parts cannot be made of a {name} of {size}."
        if self.mixed_precision != "no" and self.dtype == "float64":
            yield "mixed_precision", f"{self.mixed_precision} makes no sense with train.dtype: float64."


class PeftSection(Section):
    """Adapters: train a few new weights beside those of a pretrained model, which stay as they are, and save these."""

    method: Literal["lora", "dora", "ia3"] | None = None
    """What is trained: lora adds a product of two thin matrices to layers; dora also learns the length of their
    columns; ia3 scales what layers give, with the fewest weights. null trains the model itself."""

    target_modules: Literal["all-linear"] | Annotated[list[str], MinLen(1)] = "all-linear"
    """Layers that get an adapter, by the end of their names ([query, value]); all-linear takes all linear layers but
    the output layer and heads."""

    rank: PositiveInt = 8
    """Width of the thin matrices; more can learn more, and makes the adapter larger. lora and dora only."""

    alpha: PositiveFloat = 16
    """The product is scaled by alpha / rank; twice the rank is usual. lora and dora only."""

    dropout: Fraction = 0.0
    """Share of the inputs of adapters that is dropped in training. lora and dora only."""

    feedforward_modules: Annotated[list[str], MinLen(1)] | None = None
    """Those of target_modules whose input is scaled instead of what they give, as ia3's authors do it with the second
    layer of feed-forward networks. ia3 only."""

    modules_to_save: list[str] = []  # noqa: RUF012
    """Parts that are trained as a whole and saved with the adapter, by the end of their names. Heads, and whatever else
    the pretrained model has no weights for, are among them in any case."""

    def without_effect(self) -> dict[str, str]:
        of_method: dict[str | None, tuple[str, ...]] = {
            "lora": ("target_modules", "rank", "alpha", "dropout", "modules_to_save"),
            "dora": ("target_modules", "rank", "alpha", "dropout", "modules_to_save"),
            "ia3": ("target_modules", "feedforward_modules", "modules_to_save"),
            None: (),
        }
        why = "without peft.method" if self.method is None else f"with peft.method: {self.method}"
        used = ("method", *of_method[self.method])
        return {name: why for name in type(self).model_fields if name not in used}


class EvalSection(Section):
    """Evaluation: when, and by which metrics."""

    steps: NonNegativeInt = 500
    """Evaluate on the validation split every so many steps; 0 evaluates at the end only."""

    metrics: list[str] = []  # noqa: RUF012
    """What is computed on decoded output, besides loss and perplexity."""

    select_by: str = "loss"
    """What makes a checkpoint the best one: the loss, or one of eval.metrics."""

    average: Annotated[int, Ge(2)] | None = None
    """At the end the mean of the weights of this many last checkpoints (one every train.save_steps) competes with
    the best step on the validation split, and the better one becomes the model. So many checkpoints are kept."""

    tokens_per_batch: PositiveInt = 8192
    """Size of a batch for evaluation, in padded tokens: changes memory and speed, not results."""

    examples: NonNegativeInt = 4
    """Number of decoded examples that each evaluation shows."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.select_by != "loss" and self.select_by not in self.metrics:
            yield "select_by", f'"{self.select_by}" is not computed: add it to eval.metrics, or choose loss.'


class HubSection(Section):
    """What the model card says about the model when it is shared; nothing here changes training."""

    license: str | None = None
    """License of the model, as the Hub names it (apache-2.0)."""

    language: list[str] = []  # noqa: RUF012
    """Codes of the languages that the model deals with."""

    tags: list[str] = []  # noqa: RUF012
    """Words by which the model is to be found."""

    datasets: list[str] = []  # noqa: RUF012
    """Hub ids of the data that the model was trained on."""
