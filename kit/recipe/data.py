"""The recipe section `data`: its key groups, and the section that every task extends."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import MinLen
from pydantic import AfterValidator, PrivateAttr

from kit.errors import did_you_mean
from kit.recipe.messages import show
from kit.recipe.section import PositiveInt, Section, Seed, Share, absent, at_most_one

TABULAR_KEYS = ("columns", "delimiter", "quoting")
"""Data keys for files whose lines are split into cells."""
TEXT_FILE_KEYS = (*TABULAR_KEYS, "encoding")
"""Data keys for the format of text files."""
NOT_BUILTIN = "on data that is not built-in (data.path: builtin:NAME)"
IN_MEMORY = "in-memory data"
"""Value of `data.path` for rows that a Python program passes to kit. A recipe does not store them."""


def with_tabs(delimiter: str) -> str:
    r"""The delimiter with a tab for each `\t`, as people type it on the command line."""
    return delimiter.replace(r"\t", "\t")


class SourceKeys(Section):
    """Location of the data, and the names of its splits."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("path", "name", "revision", "train", "validation", "test")
    source_keys: ClassVar[tuple[str, ...]] = ("name", "revision", "train", "validation", "test")
    """Keys of this group that describe where rows are read from, and do not apply to rows passed from Python."""

    path: str
    """Hub id, folder or file, or builtin:NAME for data that kit generates offline. kit writes "in-memory data" for rows
    that were passed from Python."""

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

    @property
    def is_builtin(self) -> bool:
        """Whether kit generates the data."""
        return self.path.startswith("builtin:")

    def without_effect(self) -> dict[str, str]:
        return dict.fromkeys(("name", "revision"), "on built-in data") if self.is_builtin else {}


class FileKeys(SourceKeys):
    """Format of text files."""

    evaluation_keys: ClassVar[tuple[str, ...]] = TEXT_FILE_KEYS
    prediction_keys: ClassVar[tuple[str, ...]] = TEXT_FILE_KEYS
    source_keys: ClassVar[tuple[str, ...]] = TEXT_FILE_KEYS

    columns: Annotated[list[str], MinLen(1)] | None = None
    """Column names, in order, of files without a header line."""

    delimiter: Annotated[str, MinLen(1), AfterValidator(with_tabs)] | None = None
    """Column delimiter, such as ";" or \\t for a tab; by default a tab or a comma, depending on the file extension."""

    quoting: bool | None = None
    """Whether cells may be enclosed in double quotes, which lets them contain delimiters and line breaks; false treats
    quotation marks as ordinary characters. By default true for csv files only."""

    encoding: str = "utf-8"
    """Encoding of text files, by its Python name."""

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if self.is_builtin:
            ineffective |= dict.fromkeys(TEXT_FILE_KEYS, "on built-in data")
        return ineffective

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        try:
            codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            yield "encoding", f"Python has no encoding {show(self.encoding)}; the usual one is utf-8."


class BuiltinKeys(SourceKeys):
    """Amount of built-in data."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("sizes",)
    source_keys: ClassVar[tuple[str, ...]] = ("sizes",)

    sizes: dict[Literal["train", "validation", "test"], PositiveInt] | None = None
    """Number of examples to generate for each split; built-in data only."""

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        return ineffective if self.is_builtin else {**ineffective, "sizes": NOT_BUILTIN}


class LanguagesKey(SourceKeys):
    """Languages of built-in data, for tasks that have such data in several languages."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("languages",)
    source_keys: ClassVar[tuple[str, ...]] = ("languages",)

    languages: Annotated[list[str], MinLen(1)] | None = None
    """Languages to generate; built-in data only. By default all available languages."""

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        return ineffective if self.is_builtin else {**ineffective, "languages": NOT_BUILTIN}


class HoldoutKeys(Section):
    """Training examples to hold out for splits that the data does not have."""

    own_data_keys: ClassVar[tuple[str, ...]] = ("validation_size", "test_size")

    validation_size: PositiveInt | None = None
    """Number of training examples to hold out for validation if the data has no validation split. A dialogue or a time
    series counts as one example."""

    test_size: PositiveInt | None = None
    """Number of training examples to hold out for testing if the data has no test split."""


class HoldoutShareKeys(HoldoutKeys):
    """Hold-out sizes as fractions of the training data."""

    own_data_keys: ClassVar[tuple[str, ...]] = ("validation_share", "test_share")

    validation_share: Share | None = None
    """Fraction of the training data to hold out for validation if the data has no validation split: of the text, from
    its end, or of the images with all captions of each. Alternatively, set validation_size."""

    test_share: Share | None = None
    """Fraction of the training data to hold out for testing if the data has no test split."""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for split in ("validation", "test"):
            yield from at_most_one(self, "data", f"{split}_size", f"{split}_share")
        if (self.validation_share or 0) + (self.test_share or 0) >= 1:
            yield "validation_share", "together with data.test_share it holds out all data: none is left to train on."


class FilterKeys(Section):
    """Limits on the training data."""

    own_data_keys: ClassVar[tuple[str, ...]] = ("drop_duplicates", "max_examples")

    drop_duplicates: bool = False
    """Drop training examples that already occurred in the training data."""

    max_examples: PositiveInt | None = None
    """Maximum number of training examples, for a quick trial or to study the effect of data size. A dialogue or a time
    series counts as one example."""


class StreamingKeys(SourceKeys):
    """Streaming of training data that is larger than memory, for tasks that encode each row on its own."""

    in_memory_keys: ClassVar[tuple[str, ...]] = ("drop_duplicates",)
    """Keys that need all training data in memory."""
    own_data_keys: ClassVar[tuple[str, ...]] = ("streaming",)
    source_keys: ClassVar[tuple[str, ...]] = ("streaming", "buffer_size")

    streaming: bool = False
    """Stream the training data, one buffer at a time, for files or Hub datasets larger than memory and disk; several
    shards (train-00000-of-00008.jsonl) work best. Without a validation or test split, the first rows are held out."""

    buffer_size: PositiveInt = 100_000
    """Number of rows to read, shuffle and sort into batches at a time; memory holds two buffers. Streaming only."""

    def without_effect(self) -> dict[str, str]:
        ineffective = super().without_effect()
        if not self.streaming:
            ineffective["buffer_size"] = "without data.streaming"
        return ineffective

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        if self.streaming:
            if self.is_builtin:
                yield "streaming", "built-in data is generated in memory. Leave it out."
            for name in filter(self.is_set, self.in_memory_keys):
                yield name, "it needs all training data in memory. Remove it or data.streaming."


class DataSection(FilterKeys, HoldoutKeys, BuiltinKeys, FileKeys):
    """Location, splits and filters of the data."""

    evaluation_keys: ClassVar[tuple[str, ...]] = ("seed", "fingerprints")
    encoding_keys: ClassVar[tuple[str, ...]] = ()
    """Further evaluation keys of this group: they change how a model reads the rows, and not which rows there are."""
    own_data_keys: ClassVar[tuple[str, ...]] = ("fingerprints",)
    """Keys of this group that select rows of the run's own data, and do not apply to other data that a trained model is
    evaluated on."""

    languages: ClassVar[list[str] | None] = absent(None)
    streaming: ClassVar[bool] = absent(False)
    buffer_size: ClassVar[int]

    text_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that name a column (or file suffix) of text."""
    value_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that name a column that may hold anything, such as numbers or lists."""
    joins_paragraphs: ClassVar[bool] = False
    """Whether a list of texts in a text column is one text in paragraphs."""

    seed: Seed = 0
    """Random seed for built-in data and for the choice of held-out examples. It is separate from train.seed, so that
    runs with different training seeds use the same data."""

    fingerprints: dict[str, str] | None = None
    """Fingerprint of each split, which kit writes to the recipe of a run; loading different data from the same path is
    then an error."""

    _rows: Mapping[str, Any] | None = PrivateAttr(default=None)

    @property
    def rows(self) -> Mapping[str, Any] | None:
        """The datasets of the splits, if a Python program passed them; they stay in their process."""
        return self._rows

    def with_rows(self, rows: Mapping[str, Any] | None) -> Self:
        """The section with these datasets of train, validation and test."""
        copied = self.model_copy()
        copied._rows = rows
        return copied

    def __getstate__(self) -> dict[Any, Any]:
        """What is sent to other processes: everything but the rows, of which each process has its own."""
        state = super().__getstate__()
        return {**state, "__pydantic_private__": {**(state["__pydantic_private__"] or {}), "_rows": None}}

    @property
    def text_columns(self) -> dict[str, str]:
        """Columns (or file suffixes) that hold text, each mapped to the recipe key that names it."""
        return dict(self._named_columns(self.text_keys))

    @property
    def value_columns(self) -> dict[str, str]:
        """Columns that may hold any value, such as numbers or lists, each mapped to the recipe key that names it."""
        return dict(self._named_columns(self.value_keys))

    @property
    def roles(self) -> tuple[str, ...]:
        """The internal names of these columns; the first one identifies an example."""
        return (*self.text_columns.values(), *self.value_columns.values())

    @property
    def text_roles(self) -> tuple[str, ...]:
        """The internal names of the columns in which a training example must not be empty."""
        return tuple(role for role in self.roles if role in self.text_columns.values())

    @property
    def input_roles(self) -> tuple[str, ...]:
        """The internal names of the columns that a model reads."""
        return self.roles[:1]

    @property
    def target_roles(self) -> tuple[str, ...]:
        """The internal names of the columns with texts that a model learns to write."""
        return ()

    @property
    def identity_roles(self) -> tuple[str, ...]:
        """The internal names of the columns that make two examples equal."""
        return self.roles

    @property
    def language_directions(self) -> Sequence[str]:
        """The directions, such as "de-en"; each row is one example in each of them. Empty if a row is one example."""
        return ()

    @property
    def held_out_by(self) -> tuple[str, ...]:
        """Columns that group rows: a group is held out of the training data as a whole, or not at all."""
        return self.roles[:1]

    @property
    def fixes_micro_batches(self) -> str | None:
        """The key, if any, with which train.micro_batches decides what a step reads, so that it cannot change within a
        run."""
        return "streaming" if self.streaming else None

    @classmethod
    def keys_of(cls, kind: str) -> list[str]:
        listed = {*super().keys_of(kind)}
        if kind == "evaluation_keys":
            listed |= {*cls.text_keys, *cls.value_keys, *super().keys_of("encoding_keys")}
        return [name for name in cls.model_fields if name in listed]

    def is_held_out(self, split: str) -> bool:
        """Whether the content of the training data decides which of its rows are in this split."""
        splits = ("validation", "test") if split == "train" else (split,)
        return any(self.is_set(f"{name}_{unit}") for name in splits for unit in ("size", "share"))

    def unused_in_evaluation(self) -> dict[str, str]:
        return super().unused_in_evaluation() | ({} if self.is_builtin else {"seed": NOT_BUILTIN})

    def contradictions(self) -> Iterator[tuple[str, str]]:
        yield from super().contradictions()
        for column, key in (self.text_columns | self.value_columns).items() if self.columns else ():
            if column not in (self.columns or ()):
                yield key, f'"{column}" is not among data.columns.{did_you_mean(column, self.columns or ())}'
        first_keys: dict[str, str] = {}
        for column, key in self._named_columns((*self.text_keys, *self.value_keys)):
            first = first_keys.setdefault(column, key)
            if first != key:
                yield key, f'{first} and {key} are both "{column}"; they must be different columns.'

    def _named_columns(self, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
        for key in keys:
            if (column := getattr(self, key)) is not None:
                yield column, key
