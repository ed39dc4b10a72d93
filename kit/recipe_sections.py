"""The sections that every recipe has, with what their keys mean; what a task adds to them is in a file of its own."""

import codecs
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kit.errors import did_you_mean
from kit.recipe_file import write_yaml
from kit.recipe_model import show

Seed = Annotated[int, Ge(0), Lt(2**32)]
Fraction = Annotated[float, Ge(0), Lt(1)]


class Section(BaseModel):
    """A part of the recipe; its fields are checked one by one, then for contradictions among them."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def without_effect(self) -> dict[str, str]:
        """Fields that do nothing beside the other values, and why; they must keep their default."""
        return {}

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Key (or "", for the section as a whole) and message of each mistake that involves several fields."""
        yield from ()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        found = list(self.contradictions())
        for name, reason in self.without_effect().items():
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                found.append((name, f"it has no effect {reason}. Leave it out."))
        if found:
            raise PydanticCustomError("contradictions", "fields contradict each other", {"found": found})
        return self

    def values(self) -> dict[str, Any]:
        """What a resolved recipe says: every value but those without effect and those not given."""
        idle = self.without_effect()
        fields = type(self).model_fields
        return {
            name: value
            for name, value in self.model_dump().items()
            if name not in idle and not (value is None and name in fields and fields[name].default is None)
        }


class ModelSection(Section):
    """The model: `type` to train one from scratch, or `pretrained` to go on from one; then its settings.

    The settings are fields of the model's config class.
    """

    model_config = ConfigDict(extra="allow")

    type: str | None = None
    """A model type of kit (such as rnn_seq2seq), built anew with random weights."""

    pretrained: str | None = None
    """A run folder, a model folder, or OWNER/NAME[@REVISION] on the Hub whose weights training goes on from; a run
    notes the commit that it used."""

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the model's config class that the recipe gives."""
        return dict(self.__pydantic_extra__ or {})

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from exactly_one(self, "model", "type", "pretrained")


class TokenizerSection(Section):
    """How text becomes numbers: a tokenizer trained on the training data, or one that exists."""

    of_training: ClassVar[tuple[str, ...]] = (
        "train", "vocab_size", "min_frequency", "train_examples", "lowercase", "normalize",
    )  # fmt: skip
    """Keys that concern tokenizers that are trained."""

    train: Literal["word", "char", "bpe", "byte_bpe", "wordpiece", "unigram"] = "bpe"
    """Kind of tokenizer to train. Subwords (bpe, wordpiece, unigram) know no unknown words; byte_bpe, as in GPT-2, no
    unknown characters either, and keeps all white space; word and char are the easiest to look into."""

    pretrained: str | None = None
    """A folder, or OWNER/NAME[@REVISION] on the Hub, of a tokenizer to use instead of training one."""

    vocab_size: Annotated[int, Gt(4)] = 8000
    """Largest number of tokens, the four special ones included. A few thousand suit small data."""

    min_frequency: PositiveInt = 2
    """How often a word or pair must occur in the training data to become a token: 2 leaves out single typos."""

    train_examples: PositiveInt = 1_000_000
    """Most training examples to learn the vocabulary from, spread over the data; more of them change little."""

    lowercase: bool = False
    """Turn all text into lower case; the model's output is lower case then, too."""

    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode normalization: nfc makes equal-looking characters equal; nfkc also unites variants such as full
    width letters; none leaves text as it is."""

    @property
    def one_vocabulary(self) -> bool:
        """Whether all text of an example has the same vocabulary."""
        return True

    def without_effect(self) -> dict[str, str]:
        if self.pretrained is not None:
            return dict.fromkeys(self.of_training, "on a tokenizer that exists (tokenizer.pretrained)")
        idle = {}
        if self.train == "unigram":
            idle["min_frequency"] = "with tokenizer.train: unigram, which chooses tokens by likelihood"
        return idle


class DataSection(Section):
    """The data: where it is, which splits to use, and what to leave out of the training data."""

    joins_paragraphs: ClassVar[bool] = False
    """Whether a list of texts in a text column is one text in paragraphs."""

    path: str
    """A Hub id, a folder, a file, or builtin:NAME for data that kit makes itself, offline."""

    name: str | None = None
    """Configuration of a Hub dataset that has several, such as a language pair."""

    revision: str | None = None
    """Branch, tag or commit of a Hub dataset; a commit pins the data for good."""

    train: str = "train"
    """Name of the training split: a split of a Hub dataset, or the beginning of a file name in a folder."""

    validation: str | None = "validation"
    """Name of the validation split, on which the best checkpoint is chosen. At the default, val, valid
    and dev are found too; null uses none that the data has, and holds validation_size out of train."""

    test: str = "test"
    """Name of the test split, which is looked at once, at the end."""

    columns: Annotated[list[str], MinLen(1)] | None = None
    """Names of the columns, in order, of files without a header line."""

    delimiter: Annotated[str, MinLen(1)] | None = None
    """What separates columns in a file; by default a tab or a comma, by the file's ending."""

    encoding: str = "utf-8"
    """Encoding of text files, as Python names it."""

    languages: Annotated[list[str], MinLen(1)] | None = None
    """Languages to make; built-in data only. By default all that the data has."""

    sizes: dict[Literal["train", "validation", "test"], PositiveInt] | None = None
    """Number of examples to make for each split; built-in data only."""

    seed: Seed = 0
    """Seed of built-in data and of the choice of held-out examples; apart from train.seed, so that several
    training seeds see the same data."""

    validation_size: PositiveInt | None = None
    """Number of training examples held out for validation when the data has no such split."""

    test_size: PositiveInt | None = None
    """Number of training examples held out for the test when the data has no such split."""

    drop_duplicates: bool = False
    """Leave out training examples that occur before in the training data."""

    max_examples: PositiveInt | None = None
    """Use only this many training examples: for a quick trial, or to study the effect of the size."""

    streaming: bool = False
    """Read the training data while training, a buffer at a time, for data that is larger than memory and disk: files,
    or a Hub dataset, best in several shards (train-00000-of-00008.jsonl). Where the data has no validation or test
    split, they are its first rows."""

    buffer_size: PositiveInt = 100_000
    """Number of rows that are read, shuffled and sorted into batches at a time; two buffers are in memory. Streaming
    only."""

    fingerprints: dict[str, str] | None = None
    """Fingerprint of each split, written by kit into the recipe of a run: loading other data under the same
    path is an error then."""

    @property
    def text_columns(self) -> dict[str, str]:
        """Columns (or file suffixes) that hold text, each with the key of the recipe that asks for it."""
        raise NotImplementedError

    @property
    def value_columns(self) -> dict[str, str]:
        """Columns that may hold anything, such as numbers or lists, each with the key that asks for it."""
        return {}

    @property
    def roles(self) -> tuple[str, ...]:
        """The names by which the rest of kit knows these columns; the first is what an example is recognised by."""
        return (*self.text_columns.values(), *self.value_columns.values())

    @property
    def held_out_by(self) -> tuple[str, ...]:
        """Columns by which rows belong together: they are held out of the training data all, or not at all."""
        return self.roles[:1]

    def without_effect(self) -> dict[str, str]:
        if self.path.startswith("builtin:"):
            idle = dict.fromkeys(("name", "revision", "columns", "delimiter", "encoding"), "on built-in data")
        else:
            idle = dict.fromkeys(("languages", "sizes"), "on data that is not built in (data.path: builtin:NAME)")
        if not self.streaming:
            idle["buffer_size"] = "without data.streaming"
        return idle

    def contradictions(self) -> Iterator[tuple[str, str]]:
        for column, name in (self.text_columns | self.value_columns).items() if self.columns else ():
            if column not in (self.columns or ()):
                yield name, f'"{column}" is not among data.columns.{did_you_mean(column, self.columns or ())}'
        if self.streaming:
            if self.path.startswith("builtin:"):
                yield "streaming", "built-in data is made in memory. Leave it out."
            for name in self.needing_all_data():
                yield name, "it needs all training data in memory. Leave it out, or data.streaming."
        try:
            codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            yield "encoding", f"Python knows no encoding {show(self.encoding)}; the usual one is utf-8."

    def needing_all_data(self) -> list[str]:
        """Keys that are given and need all of the training data at once."""
        return ["drop_duplicates"] if self.drop_duplicates else []


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

    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = []
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


class EvalSection(Section):
    """Evaluation: when, and by which metrics."""

    steps: NonNegativeInt = 500
    """Evaluate on the validation split every so many steps; 0 evaluates at the end only."""

    metrics: list[str] = []
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


class PeftSection(Section):
    """Adapters: train a few new weights beside those of a pretrained model, which stay as they are, and save these."""

    method: Literal["lora", "dora", "ia3", "prompt_tuning"] | None = None
    """What is trained: lora adds a product of two thin matrices to layers; dora also learns the length of their
    columns; ia3 scales what layers give, with the fewest weights; prompt_tuning puts learned vectors before the text.
    null trains the model itself."""

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

    num_virtual_tokens: PositiveInt = 20
    """Number of vectors before the text; they take up as many positions. prompt_tuning only."""

    modules_to_save: list[str] = []
    """Parts that are trained as a whole and saved with the adapter, by the end of their names. Heads, and whatever else
    the pretrained model has no weights for, are among them in any case."""

    def without_effect(self) -> dict[str, str]:
        of_method: dict[str | None, tuple[str, ...]] = {
            "lora": ("target_modules", "rank", "alpha", "dropout", "modules_to_save"),
            "dora": ("target_modules", "rank", "alpha", "dropout", "modules_to_save"),
            "ia3": ("target_modules", "feedforward_modules", "modules_to_save"),
            "prompt_tuning": ("num_virtual_tokens",),
            None: (),
        }
        why = "without peft.method" if self.method is None else f"with peft.method: {self.method}"
        used = ("method", *of_method[self.method])
        return {name: why for name in type(self).model_fields if name not in used}


class HubSection(Section):
    """What the model card says about the model when it is shared; nothing here changes training."""

    license: str | None = None
    """License of the model, as the Hub names it (apache-2.0)."""

    language: list[str] = []
    """Codes of the languages that the model deals with."""

    tags: list[str] = []
    """Words by which the model is to be found."""

    datasets: list[str] = []
    """Hub ids of the data that the model was trained on."""


class Recipe(Section):
    """A whole recipe: the task and one section for each part of a run. Each task has sections of its own kind."""

    own_types: ClassVar[tuple[str, ...]] = ()
    """Model types of kit that suit the task."""

    mapping: ClassVar[str | None] = None
    """Name of transformers' mapping of model types that suit it."""

    adapters: ClassVar[tuple[str, ...]] = ()
    """Values of peft.method that suit the task."""

    task: str
    """What the model learns to do."""

    model: ModelSection
    """The model: a type and its settings, or a pretrained one."""

    tokenizer: TokenizerSection = TokenizerSection()
    """How text becomes numbers."""

    data: DataSection
    """The data: where it is and what to use of it."""

    train: TrainSection
    """Training: how long, how many examples at a time, and how the optimizer moves."""

    peft: PeftSection = PeftSection()
    """Adapters: whether to train a few new weights beside those of a pretrained model, and which."""

    eval: EvalSection = EvalSection()
    """Evaluation: when, and by which metrics."""

    hub: HubSection = HubSection()
    """What the model card says when the model is shared."""

    measured: dict[str, int | float | str] | None = None
    """Figures of a real run of this recipe, written by `kit record`; or `none: why` if there are none."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.train.early_stopping_patience is not None and self.eval.steps == 0:
            yield (
                "train.early_stopping_patience",
                "it counts evaluations, but eval.steps is 0: there is only the last.",
            )
        if self.model.pretrained is not None and self.tokenizer.pretrained is None:
            for name in self.tokenizer.of_training:
                if getattr(self.tokenizer, name) != type(self.tokenizer).model_fields[name].default:
                    yield f"tokenizer.{name}", "it has no effect on the tokenizer of model.pretrained. Leave it out."
        yield from self.of_pretrained_models()
        for name in ("sampling_start", "sampling_steps"):
            if getattr(self.train, name) and not self.model.settings.get("scheduled_sampling"):
                yield f"train.{name}", "it has no effect without model.scheduled_sampling. Leave it out."
        if self.data.streaming:
            yield from self.beyond_a_stream()
        if self.measured and "none" in self.measured and len(self.measured) > 1:
            yield "measured.none", "there are figures beside the reason why there are none. Keep one of both."

    def of_pretrained_models(self) -> Iterator[tuple[str, str]]:
        """What makes no sense on new weights, or not with adapters."""
        method = self.peft.method
        if method is not None and method not in self.adapters:
            suited = f"use {', '.join(self.adapters)}" if self.adapters else "leave the section peft out"
            yield "peft.method", f"{method} does not work with task: {self.task}: {suited}."
        given = {"peft.method": method, "train.freeze": self.train.freeze, "train.layer_decay": self.train.layer_decay}
        for key, value in given.items():
            if value is not None and self.model.pretrained is None:
                yield key, "it is for pretrained models (model.pretrained), and this one is new. Leave it out."
        if method is not None and self.train.freeze is not None:
            yield "train.freeze", "with peft.method all of the pretrained model is frozen already. Leave it out."
        if method == "prompt_tuning" and self.train.layer_decay is not None:
            yield "train.layer_decay", "prompt_tuning trains nothing within layers. Leave it out."

    def beyond_a_stream(self) -> Iterator[tuple[str, str]]:
        """What needs to know all of the training data before the first step."""
        if self.train.num_train_epochs is not None:
            yield (
                "train.num_train_epochs",
                "with data.streaming nobody knows how many steps an epoch has. Give train.max_steps instead.",
            )

    def to_yaml(self) -> str:
        """The whole recipe, defaults included, as YAML that `load_recipe` reads as an equal recipe."""
        parts = {name: getattr(self, name) for name in type(self).model_fields}
        shown = {name: part.values() if isinstance(part, Section) else part for name, part in parts.items()}
        if self.peft.method is None:
            del shown["peft"]
        return "".join(write_yaml({name: part}) for name, part in shown.items() if part is not None)

    def differences(self, other: "Recipe") -> list[str]:
        """The dotted keys ("train.max_steps") whose values differ, in the order of the recipe."""
        mine, theirs = self.flat(), other.flat()
        missing = object()
        return [key for key in mine | theirs if mine.get(key, missing) != theirs.get(key, missing)]

    def with_values(self, section: str, **values: Any) -> "Recipe":
        """This recipe with other values in a section; they are the program's own, so they are not checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    def flat(self) -> dict[str, Any]:
        """Every value by its dotted key; `task` and `measured` stand for themselves."""
        found: dict[str, Any] = {}
        for name, part in self.model_dump().items():
            if isinstance(getattr(self, name), Section):
                found |= {f"{name}.{key}": value for key, value in part.items()}
            else:
                found[name] = part
        return found


def exactly_one(section: Section, name: str, first: str, second: str) -> Iterator[tuple[str, str]]:
    given = [key for key in (first, second) if getattr(section, key) is not None]
    if not given:
        yield "", f"give {name}.{first} or {name}.{second}."
    elif len(given) == 2:
        yield (
            second,
            f"it is given beside {name}.{first}, but only one can hold. "
            f"Take one away (on the command line: {name}.{first}=null).",
        )
