"""The recipe sections about the model: `model`, `tokenizer` and `peft`."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Le, MinLen
from pydantic import ConfigDict

from kit.recipe.section import MAX_COUNT, Fraction, PositiveFloat, PositiveInt, Section, exactly_one


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

    vocab_size: Annotated[int, Gt(4), Le(MAX_COUNT)] = 8000
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
        if self.train == "unigram":
            return {"min_frequency": "with tokenizer.train: unigram, which chooses tokens by likelihood"}
        return {}


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


class PeftSection(Section):
    """Adapter to train on top of a frozen pretrained model: a few new weights, and only those are saved."""

    method: Literal["lora", "dora", "ia3"] | None = None
    """Adapter method: lora adds a low-rank update to each layer, dora also learns the magnitude of the weights, ia3
    rescales activations and has the fewest parameters. null trains the model itself."""

    target_modules: Literal["all-linear"] | Annotated[list[str], MinLen(1)] = "all-linear"
    """Layers that get an adapter, by the end of their names ([query, value]); all-linear selects every linear layer
    except the output layer and the heads."""

    rank: PositiveInt = 8
    """Rank of the low-rank matrices; a higher rank can learn more but makes the adapter larger. lora and dora only."""

    alpha: PositiveFloat = 16
    """Scaling: the low-rank update is multiplied by alpha / rank. Twice the rank is common. lora and dora only."""

    dropout: Fraction = 0.0
    """Dropout probability on the inputs of the adapters. lora and dora only."""

    feedforward_modules: Annotated[list[str], MinLen(1)] | None = None
    """Those of target_modules whose input is scaled instead of their output; the ia3 paper does so for the second layer
    of feed-forward networks. ia3 only."""

    modules_to_save: list[str] = []  # noqa: RUF012 (pydantic copies it)
    """Modules that are trained in full and saved with the adapter, by the end of their names. Heads, and any other
    module without pretrained weights, are always included."""

    def without_effect(self) -> dict[str, str]:
        if self.method is None:
            names, reason = set(type(self).model_fields) - {"method"}, "without peft.method"
        else:
            names = {"rank", "alpha", "dropout"} if self.method == "ia3" else {"feedforward_modules"}
            reason = f"with peft.method: {self.method}"
        return dict.fromkeys(sorted(names), reason)
