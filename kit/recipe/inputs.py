"""The recipe sections that describe the inputs of a run: `model`, `tokenizer` and `data`."""

import codecs
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, MinLen
from pydantic import ConfigDict, PositiveInt

from kit.errors import did_you_mean
from kit.recipe.model_settings import show
from kit.recipe.section import Fraction, Section, Seed, exactly_one


class ModelSection(Section):
    """Model type and settings of a new model, or a pretrained model to start from.

    The settings are fields of the model's config class.
    """

    model_config = ConfigDict(extra="allow")

    type: str | None = None
    """Model type, such as rnn_seq2seq; the model starts from random weights."""

    pretrained: str | None = None
    """Pretrained weights to start from: a run folder, a model folder, or OWNER/NAME[@REVISION] on the Hub. The run
    records the commit that it used."""

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the model's config class that the recipe sets."""
        return dict(self.__pydantic_extra__ or {})

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from exactly_one(self, "model", "type", "pretrained")


class TokenizerSection(Section):
    """Tokenizer to train on the training data, or an existing one to use."""

    training_keys: ClassVar[tuple[str, ...]] = (
        "train", "vocab_size", "min_frequency", "train_examples", "lowercase", "normalize",
    )  # fmt: skip
    """Keys that apply only when a tokenizer is trained."""

    train: Literal["word", "char", "bpe", "byte_bpe", "wordpiece", "unigram"] = "bpe"
    """Type of tokenizer to train. Subword tokenizers (bpe, wordpiece, unigram) split rare words; byte_bpe, as in GPT-2,
    also covers every character and keeps all whitespace; word and char are the easiest to inspect."""

    pretrained: str | None = None
    """Existing tokenizer to use instead of training one: a folder, or OWNER/NAME[@REVISION] on the Hub."""

    vocab_size: Annotated[int, Gt(4)] = 8000
    """Maximum vocabulary size, including the four special tokens. A few thousand suit small datasets."""

    min_frequency: PositiveInt = 2
    """Minimum number of occurrences in the training data for a word or pair to become a token; 2 excludes typos that
    occur once."""

    train_examples: PositiveInt = 1_000_000
    """Maximum number of training examples used to train the tokenizer, spread evenly over the data; more of them rarely
    change the vocabulary."""

    lowercase: bool = False
    """Lowercase all text; the model then generates lowercase text too."""

    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    """Unicode normalization: nfc makes equal-looking characters equal, nfkc also merges variants such as full-width
    letters, none leaves the text unchanged."""

    @property
    def shares_vocabulary(self) -> bool:
        """Whether all text of an example shares one vocabulary."""
        return True

    def without_effect(self) -> dict[str, str]:
        if self.pretrained is not None:
            return dict.fromkeys(self.training_keys, "on an existing tokenizer (tokenizer.pretrained)")
        ineffective = {}
        if self.train == "unigram":
            ineffective["min_frequency"] = "with tokenizer.train: unigram, which chooses tokens by likelihood"
        return ineffective


class Seq2SeqTokenizerSection(TokenizerSection):
    """Tokenizer to train on the training data, or an existing one to use."""

    training_keys: ClassVar[tuple[str, ...]] = (*TokenizerSection.training_keys, "bpe_dropout", "end_of_source")

    shared: bool = True
    """Share one vocabulary between source and target; false trains one for each."""

    bpe_dropout: Fraction = 0.0
    """Probability of skipping each BPE merge during training, so that the model sees words segmented in different ways.
    0.1 is common and helps with small datasets and long training; evaluation never skips a merge."""

    end_of_source: bool = True
    """Append the end-of-sequence token to the source too, so that the encoder sees where it ends."""

    source_language: str | None = None
    """Source language code, for pretrained multilingual tokenizers: deu_Latn (NLLB), de_DE (mBART-50), de (M2M). Set
    both codes, or neither to use those saved with the tokenizer."""

    target_language: str | None = None
    """Target language code, for pretrained multilingual tokenizers; the output begins with it."""

    language_codes: dict[str, str] | None = None
    """Tokenizer code of each language in data.directions (de: deu_Latn), where a pretrained tokenizer uses other
    names."""

    @property
    def shares_vocabulary(self) -> bool:
        return self.shared

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if self.pretrained is None and self.train != "bpe":
            ineffective["bpe_dropout"] = f"with tokenizer.train: {self.train} (only bpe has merges)"
        return ineffective


TABULAR_KEYS = ("columns", "delimiter", "quoting")
"""Data keys for files whose lines are split into cells."""
TEXT_FILE_KEYS = (*TABULAR_KEYS, "encoding")
"""Data keys for the format of text files."""


class DataSection(Section):
    """Location, splits and filters of the data."""

    joins_paragraphs: ClassVar[bool] = False
    """Whether a list of texts in a text column is one text in paragraphs."""

    path: str
    """Hub id, folder or file, or builtin:NAME for data that kit generates offline."""

    name: str | None = None
    """Configuration of a Hub dataset that has several, such as a language pair."""

    revision: str | None = None
    """Branch, tag or commit of a Hub dataset; a commit pins the data permanently."""

    train: str = "train"
    """Name of the training split: a split of a Hub dataset, or the start of a file name in a folder."""

    validation: str | None = "validation"
    """Name of the validation split, which selects the best checkpoint. With the default, the names val, valid and dev
    are accepted too. null ignores any validation split and holds out validation_size training examples instead."""

    test: str = "test"
    """Name of the test split, used only once, at the end."""

    columns: Annotated[list[str], MinLen(1)] | None = None
    """Column names, in order, of files without a header line."""

    delimiter: Annotated[str, MinLen(1)] | None = None
    """Column delimiter; by default a tab or a comma, depending on the file extension."""

    quoting: bool | None = None
    """Whether cells may be enclosed in double quotes, which lets them contain delimiters and line breaks; false treats
    quotation marks as ordinary characters. By default true for csv files only."""

    encoding: str = "utf-8"
    """Encoding of text files, by its Python name."""

    languages: Annotated[list[str], MinLen(1)] | None = None
    """Languages to generate; built-in data only. By default all available languages."""

    sizes: dict[Literal["train", "validation", "test"], PositiveInt] | None = None
    """Number of examples to generate for each split; built-in data only."""

    seed: Seed = 0
    """Random seed for built-in data and for the choice of held-out examples. It is separate from train.seed, so that
    runs with different training seeds use the same data."""

    validation_size: PositiveInt | None = None
    """Number of training examples to hold out for validation if the data has no validation split."""

    test_size: PositiveInt | None = None
    """Number of training examples to hold out for testing if the data has no test split."""

    drop_duplicates: bool = False
    """Drop training examples that already occurred in the training data."""

    max_examples: PositiveInt | None = None
    """Maximum number of training examples, for a quick trial or to study the effect of data size."""

    streaming: bool = False
    """Stream the training data, one buffer at a time, for files or Hub datasets larger than memory and disk; several
    shards (train-00000-of-00008.jsonl) work best. Without a validation or test split, the first rows are held out."""

    buffer_size: PositiveInt = 100_000
    """Number of rows to read, shuffle and sort into batches at a time; memory holds two buffers. Streaming only."""

    fingerprints: dict[str, str] | None = None
    """Fingerprint of each split, which kit writes to the recipe of a run; loading different data from the same path is
    then an error."""

    @property
    def text_columns(self) -> dict[str, str]:
        """Columns (or file suffixes) that hold text, each mapped to the recipe key that names it."""
        raise NotImplementedError

    @property
    def value_columns(self) -> dict[str, str]:
        """Columns that may hold any value, such as numbers or lists, each mapped to the recipe key that names it."""
        return {}

    @property
    def roles(self) -> tuple[str, ...]:
        """The internal names of these columns; the first one identifies an example."""
        return (*self.text_columns.values(), *self.value_columns.values())

    @property
    def language_directions(self) -> Sequence[str]:
        """The directions, such as "de-en"; each row is one example in each of them. Empty if a row is one example."""
        return ()

    @property
    def held_out_by(self) -> tuple[str, ...]:
        """Columns that group rows: a group is held out of the training data as a whole, or not at all."""
        return self.roles[:1]

    def without_effect(self) -> dict[str, str]:
        if self.path.startswith("builtin:"):
            ineffective = dict.fromkeys(("name", "revision", *TEXT_FILE_KEYS), "on built-in data")
        else:
            ineffective = dict.fromkeys(
                ("languages", "sizes"), "on data that is not built-in (data.path: builtin:NAME)"
            )
        if not self.streaming:
            ineffective["buffer_size"] = "without data.streaming"
        return ineffective

    def contradictions(self) -> Iterator[tuple[str, str]]:
        for column, name in (self.text_columns | self.value_columns).items() if self.columns else ():
            if column not in (self.columns or ()):
                yield name, f'"{column}" is not among data.columns.{did_you_mean(column, self.columns or ())}'
        if self.streaming:
            if self.path.startswith("builtin:"):
                yield "streaming", "built-in data is generated in memory. Leave it out."
            for name in self.in_memory_keys():
                yield name, "it needs all training data in memory. Leave out it or data.streaming."
        try:
            codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            yield "encoding", f"Python has no encoding {show(self.encoding)}; the usual one is utf-8."

    def in_memory_keys(self) -> list[str]:
        """The keys set in this recipe that need all training data in memory."""
        return ["drop_duplicates"] if self.drop_duplicates else []
