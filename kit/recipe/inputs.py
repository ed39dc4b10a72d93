"""What a run starts from: the sections `model`, `tokenizer` and `data` as every task has them."""

import codecs
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, MinLen
from pydantic import ConfigDict, PositiveInt

from kit.errors import did_you_mean
from kit.recipe.model_settings import show
from kit.recipe.section import Fraction, Section, Seed, exactly_one


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


class Seq2SeqTokenizerSection(TokenizerSection):
    """How text becomes numbers: a tokenizer trained on the training data, or one that exists."""

    of_training: ClassVar[tuple[str, ...]] = (*TokenizerSection.of_training, "bpe_dropout", "end_of_source")

    shared: bool = True
    """One vocabulary for source and target (true), or one for each side (false)."""

    bpe_dropout: Fraction = 0.0
    """Leave out each merge with this probability while training, so that words are seen in many cuts; 0.1 is usual, and
    helps where data are few and training is long. Evaluation cuts as ever."""

    end_of_source: bool = True
    """Put the end marker after the source too, so that the encoder sees where it ends."""

    source_language: str | None = None
    """Code of the source's language, for pretrained tokenizers that have codes: deu_Latn (NLLB), de_DE (mBART-50),
    de (M2M). Give both codes, or neither to go on with those that a tokenizer was saved with."""

    target_language: str | None = None
    """Code of the target's language, with which output begins then."""

    language_codes: dict[str, str] | None = None
    """Code of each language of data.directions (de: deu_Latn), where a pretrained tokenizer has other names."""

    @property
    def one_vocabulary(self) -> bool:
        return self.shared

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        if self.pretrained is None and self.train != "bpe":
            idle["bpe_dropout"] = f"with tokenizer.train: {self.train} (only bpe has merges)"
        return idle


OF_CELLS = ("columns", "delimiter", "quoting")
"""Keys of the data about files whose lines are cut into cells."""
OF_TEXT_FILES = (*OF_CELLS, "encoding")
"""Keys of the data that say what text files look like inside."""


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

    quoting: bool | None = None
    """Whether cells may stand in double quotes, and hold delimiters and line ends there, as programs write csv; false
    takes a quotation mark for a character as any other. By default true for csv files alone."""

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
    def language_directions(self) -> Sequence[str]:
        """The directions, such as "de-en", in which each row is an example; empty if a row is one example."""
        return ()

    @property
    def held_out_by(self) -> tuple[str, ...]:
        """Columns by which rows belong together: they are held out of the training data all, or not at all."""
        return self.roles[:1]

    def without_effect(self) -> dict[str, str]:
        if self.path.startswith("builtin:"):
            idle = dict.fromkeys(("name", "revision", *OF_TEXT_FILES), "on built-in data")
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
