"""The sections of a recipe: every key that decides the outcome of a run, with what it means."""

import codecs
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Ge, Gt, Lt, MinLen
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
from kit.recipe_model import show

Metric = Literal["bleu", "chrf", "ter", "rouge1", "rouge2", "rougeL", "rougeLsum", "exact_match", "token_accuracy"]
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
    """A Hub id, a run folder or a model folder whose weights training goes on from."""

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the model's config class that the recipe gives."""
        return dict(self.__pydantic_extra__ or {})

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from exactly_one(self, "model", "type", "pretrained")


class TokenizerSection(Section):
    """How text becomes numbers: a tokenizer trained on the training data, or one that exists."""

    of_training: ClassVar[tuple[str, ...]] = (
        "train", "vocab_size", "min_frequency", "lowercase", "normalize", "bpe_dropout", "end_of_source",
        "train_examples",
    )  # fmt: skip

    train: Literal["word", "char", "bpe", "wordpiece", "unigram"] = "bpe"
    """Kind of tokenizer to train. Subwords (bpe, wordpiece, unigram) know no unknown words; word and char are
    the easiest to look into."""

    pretrained: str | None = None
    """A Hub id or folder of a tokenizer to use instead of training one."""

    vocab_size: Annotated[int, Gt(4)] = 8000
    """Largest number of tokens, the four special ones included. A few thousand suit small data."""

    min_frequency: PositiveInt = 2
    """How often a word or pair must occur in the training data to become a token: 2 leaves out single typos."""

    train_examples: PositiveInt = 1_000_000
    """Most training examples to learn the vocabulary from, spread over the data; more of them change little."""

    shared: bool = True
    """One vocabulary for source and target (true), or one for each side (false)."""

    lowercase: bool = False
    """Turn all text into lower case; the model's output is lower case then, too."""

    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode normalization: nfc makes equal-looking characters equal; nfkc also unites variants such as full
    width letters; none leaves text as it is."""

    bpe_dropout: Fraction = 0.0
    """Leave out each merge with this probability while training, so that words are seen in many cuts; 0.1 is usual, and
    helps where data are few and training is long. Evaluation cuts as ever."""

    end_of_source: bool = True
    """Put the end marker after the source too, so that the encoder sees where it ends."""

    source_language: str | None = None
    """Code of the source's language, for pretrained tokenizers that have codes: deu_Latn (NLLB), de_DE (mBART), de
    (M2M). Give both codes, or neither to go on with those that a tokenizer was saved with."""

    target_language: str | None = None
    """Code of the target's language, with which output begins then."""

    language_codes: dict[str, str] | None = None
    """Code of each language of data.directions (de: deu_Latn), where a pretrained tokenizer has other names."""

    def without_effect(self) -> dict[str, str]:
        if self.pretrained is not None:
            return dict.fromkeys(self.of_training, "on a tokenizer that exists (tokenizer.pretrained)")
        idle = {}
        if self.train == "unigram":
            idle["min_frequency"] = "with tokenizer.train: unigram, which chooses tokens by likelihood"
        if self.train != "bpe":
            idle["bpe_dropout"] = f"with tokenizer.train: {self.train} (only bpe has merges)"
        return idle


class DataSection(Section):
    """The text: where it is, which columns and splits to use, and what to leave out of the training data."""

    path: str
    """A Hub id, a folder, a file, or builtin:NAME for data that kit makes itself, offline."""

    name: str | None = None
    """Configuration of a Hub dataset that has several, such as a language pair."""

    revision: str | None = None
    """Branch, tag or commit of a Hub dataset; a commit pins the data for good."""

    train: str = "train"
    """Name of the training split: a split of a Hub dataset, or the beginning of a file name in a folder."""

    validation: str = "validation"
    """Name of the validation split, on which the best checkpoint is chosen. At the default, val, valid
    and dev are found too."""

    test: str = "test"
    """Name of the test split, which is looked at once, at the end."""

    source: str = "source"
    """Column of the input text, or file suffix of parallel text (de for train.de)."""

    target: str = "target"
    """Column of the output text, or file suffix of parallel text (en for train.en)."""

    source_prefix: str | None = None
    """Text in front of every source, for models that read their task from it: "summarize: ", ">>fra<< ". It is saved
    with the model. By default the one that a pretrained model was saved with by kit, if any."""

    directions: Annotated[list[str], MinLen(1)] | None = None
    """Directions that one model learns, such as [de-en, en-fr], instead of source and target: each names two columns
    or file suffixes, and every row of the data is an example in each direction. A tag in front of the source tells the
    model the target language. A row held out (validation_size, test_size) is held out in all directions."""

    direction_sizes: dict[str, PositiveInt] | None = None
    """Most training examples of a direction, such as {fr-en: 2000}; the others have all. Seed and text choose them, so
    that both directions of a pair of languages keep the same ones, and fewer are a part of more."""

    direction_repeats: dict[str, PositiveInt] | None = None
    """How often a pass over the training data has each example of a direction, such as {fr-en: 8}; by default once. A
    direction with few examples is hardly learned beside large ones unless it is seen more often."""

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

    max_length: PositiveInt | None = None
    """Leave out training examples with more tokens than this on a side; they are counted. Other splits
    keep all."""

    min_length: PositiveInt = 1
    """Leave out training examples with fewer tokens than this on a side: 1 leaves out empty text."""

    max_length_ratio: Annotated[float, Ge(1)] | None = None
    """Leave out training examples of which one side is more than this many times as long as the other."""

    drop_duplicates: bool = False
    """Leave out training examples that occur before in the training data."""

    max_examples: PositiveInt | None = None
    """Use only this many training examples: for a quick trial, or to study the effect of the size."""

    join: PositiveInt = 1
    """Join up to this many consecutive examples into one, with a space between, to get longer texts: how many is drawn
    anew, by data.seed, from 1 to this number for each. It applies to train, validation and test alike, after all other
    choices of rows; 1 joins none."""

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
        if self.directions is None:
            return {self.source: "source", self.target: "target"}
        return {language: "directions" for direction in self.directions for language in direction.split("-")}

    def without_effect(self) -> dict[str, str]:
        if self.path.startswith("builtin:"):
            idle = dict.fromkeys(("name", "revision", "columns", "delimiter", "encoding"), "on built-in data")
        else:
            idle = dict.fromkeys(("languages", "sizes"), "on data that is not built in (data.path: builtin:NAME)")
        if not self.streaming:
            idle["buffer_size"] = "without data.streaming"
        if self.directions is None:
            return idle | dict.fromkeys(("direction_sizes", "direction_repeats"), "without data.directions")
        return idle | dict.fromkeys(("source", "target"), "beside data.directions")

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.source == self.target:
            yield "target", f'source and target are both "{self.target}": the model would learn to copy.'
        directions = self.directions or []
        for direction in dict.fromkeys(directions):
            languages = direction.split("-")
            if len(languages) != 2 or not all(languages) or len(set(languages)) == 1:
                yield (
                    "directions",
                    f"{show(direction)} does not name two languages as SOURCE-TARGET (de-en). A column or file suffix "
                    "that has a hyphen itself cannot be named.",
                )
            if directions.count(direction) > 1:
                yield "directions", f"{show(direction)} is there twice."
        for name in ("direction_sizes", "direction_repeats") if directions else ():
            for direction in (getattr(self, name) or {}).keys() - set(directions):
                hint = did_you_mean(direction, directions)
                yield name, f"{show(direction)} is not among data.directions.{hint}"
        for column, name in self.text_columns.items() if self.columns else ():
            if column not in (self.columns or ()):
                yield name, f'"{column}" is not among data.columns.{did_you_mean(column, self.columns or ())}'
        if self.streaming:
            yield from self._beyond_a_stream()
        if self.max_length is not None and self.max_length < self.min_length:
            yield (
                "max_length",
                f"{self.max_length} is below data.min_length ({self.min_length}): nothing is left.",
            )
        try:
            codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            yield "encoding", f"Python knows no encoding {show(self.encoding)}; the usual one is utf-8."

    def _beyond_a_stream(self) -> Iterator[tuple[str, str]]:
        """What needs all of the training data at once."""
        if self.path.startswith("builtin:"):
            yield "streaming", "built-in data is made in memory. Leave it out."
        wanted = {
            "drop_duplicates": self.drop_duplicates,
            "direction_sizes": self.direction_sizes is not None,
            "direction_repeats": self.direction_repeats is not None,
            "join": self.join > 1,
        }
        for name in (name for name, given in wanted.items() if given):
            yield name, "it needs all training data in memory. Leave it out, or data.streaming."


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
    """Evaluation: when, by which metrics, and how output is searched for."""

    steps: NonNegativeInt = 500
    """Evaluate on the validation split every so many steps; 0 evaluates at the end only."""

    metrics: list[Metric] = []
    """What is computed on decoded output, besides loss and perplexity."""

    select_by: Metric | Literal["loss"] = "loss"
    """What makes a checkpoint the best one: the loss, or one of eval.metrics."""

    average: Annotated[int, Ge(2)] | None = None
    """At the end the mean of the weights of this many last checkpoints (one every train.save_steps) competes with
    the best step on the validation split, and the better one becomes the model. So many checkpoints are kept."""

    num_beams: PositiveInt = 1
    """Width of the beam search of the final evaluation and of the saved model; 1 is greedy."""

    num_beams_while_training: PositiveInt = 1
    """Width of the beam search of evaluations during training; 1, greedy, is the fastest."""

    length_penalty: float = 1.0
    """Exponent of the length that a beam's score is divided by: above 0 favours longer output, below 0
    shorter; 1 is the mean log-probability of a token."""

    max_new_tokens: PositiveInt = 128
    """Longest output, in tokens; what is not finished by then is cut."""

    early_stopping: bool | Literal["never"] = False
    """When beam search ends: true with num_beams finished outputs, false when better ones are unlikely, never
    when better ones are impossible."""

    no_repeat_ngram_size: NonNegativeInt = 0
    """No sequence of this many tokens occurs twice in an output; 0 allows all."""

    tokens_per_batch: PositiveInt = 8192
    """Size of a batch for evaluation, in padded tokens: changes memory and speed, not results."""

    group_by: list[str] = []
    """Report metrics for groups too: by a column of the data, such as language, or by "length" (source)."""

    examples: NonNegativeInt = 4
    """Number of decoded examples that each evaluation shows."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.select_by != "loss" and self.select_by not in self.metrics:
            yield "select_by", f'"{self.select_by}" is not computed: add it to eval.metrics, or choose loss.'


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
