"""Source and target tokenizers: trained from the recipe or loaded, used to encode and decode, saved with the model.

Special tokens have the same ids in every tokenizer that kit trains: <s> 0 (BOS), <pad> 1, </s> 2 (EOS), <unk> 3.
`decode(encode(text))` restores the normalized text, including spaces, unless it has unknown characters. The saved files
are those of transformers, so `AutoTokenizer` on a model folder gives the ids that kit trained with. If the two sides
have separate vocabularies, it is a `SourceTargetTokenizer`, whose code is saved with it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from kit.data.text.languages import PREFIX_KEY, Languages, languages_of
from kit.data.text.vocabulary import BERT_SPECIAL_TOKENS, BOS, EOS, PAD, UNK, train_vocabulary
from kit.errors import HubError, NetworkError, RecipeError, RunError
from kit.hub.download import resolve_folder
from kit.hub.foreign import check_model_folder
from kit.hub.names import one_line, parse_repo_id
from kit.pipelines.text_to_text import TARGET_FILE, SourceTargetTokenizer, decode_text, unknown_id
from kit.system.files import read_json
from kit.system.load_errors import one_line_errors
from kit.system.redaction import redact

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

    from kit.recipe.model import Seq2SeqTokenizerSection, TokenizerSection

GENERIC_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")


@dataclass(frozen=True)
class Tokenizers:
    """The source and target tokenizers, which are the same object if they share a vocabulary."""

    source: "PreTrainedTokenizerBase"
    target: "PreTrainedTokenizerBase"

    @property
    def shared(self) -> bool:
        """Whether source and target share a vocabulary."""
        return self.source is self.target

    @cached_property
    def languages(self) -> Languages:
        """The languages of the model."""
        return languages_of(self.source)

    @property
    def prefix(self) -> str:
        """Text in front of every source."""
        return self.source.init_kwargs.get(PREFIX_KEY, "")

    def encode_source(
        self,
        texts: Iterable[str],
        source_language: str | None = None,
        target_language: str | None = None,
        max_length: int | None = None,
    ) -> list[list[int]]:
        """The ids of each source, as from `tokenizer(text)`: with EOS if the recipe has `end_of_source`.

        The prefix comes before the text, and the tag of the target language, if the model has one, before both. Longer
        sources are truncated to `max_length` ids. Raises RunError for a language that is unknown, or missing.
        """
        prefix_ids = self.languages.prefix_ids(target_language)
        with self.languages.source_language(source_language):
            encoded = self._ids(self.source, "text", (self.prefix + text for text in texts))
            ids = [prefix_ids + text_ids for text_ids in encoded]
            return self._truncate(ids, max_length, lambda text: prefix_ids + self._ids(self.source, "text", [text])[0])

    def encode_target(
        self, texts: Iterable[str], language: str | None = None, max_length: int | None = None
    ) -> list[list[int]]:
        """The ids of each target, ending in EOS and, for tokenizers that kit trained, without BOS.

        The language matters only for models with codes. Truncated like `encode_source`.
        """
        with self.languages.target_language(language):
            return self._truncate(self._targets(texts), max_length, lambda text: self._targets([text])[0])

    def encode_empty_source(self) -> list[int]:
        """The ids that every source has, whatever its text."""
        source, target = (next(iter(names), None) for names in (self.languages.sources, self.languages.targets))
        return self.encode_source([""], source, target)[0]

    def encode_empty_target(self) -> list[int]:
        """The ids that every target has, whatever its text."""
        return self.encode_target([""], next(iter(self.languages.targets), None))[0]

    def _targets(self, texts: Iterable[str]) -> list[list[int]]:
        end = end_id(self.target)
        encoded = self._ids(self.target, "text_target", texts)
        return [ids if ids[-1:] == [end] else [*ids, end] for ids in encoded]

    @staticmethod
    def _ids(tokenizer: "PreTrainedTokenizerBase", side: str, texts: Iterable[str]) -> list[list[int]]:
        batch = list(texts)
        if not batch:
            return []
        return tokenizer(**{side: batch}, return_attention_mask=False, verbose=False)["input_ids"]

    @staticmethod
    def _truncate(ids: list[list[int]], limit: int | None, encode: Callable[[str], list[int]]) -> list[list[int]]:
        """The sequences, with long texts truncated but the special tokens after them kept."""
        if limit is None or all(len(sequence) <= limit for sequence in ids):
            return ids
        empty, some_text = encode(""), encode("a")
        suffix = 0  # number of special tokens after a text
        while suffix < len(empty) and empty[-1 - suffix] == some_text[-1 - suffix]:
            suffix += 1
        return [s if len(s) <= limit else s[: limit - suffix] + s[len(s) - suffix :] for s in ids]

    def generation_tokens(self, language: str | None = None) -> dict[str, Any]:
        """Token settings for `generate()` in a language (or the default); empty for most models."""
        first = self.languages.forced_first_token(language)
        return {} if first is None else {"forced_bos_token_id": first}

    def decode(self, sequences: Iterable[Sequence[int]]) -> list[str]:
        """The text of each sequence of target ids up to the first EOS, without special tokens except the unknown token.

        The decoder start token must be removed first, since many models start with EOS.
        """
        return [decode_text(self.target, ids) for ids in self._text_ids(sequences)]

    def count_unknown(self, sequences: Iterable[Sequence[int]]) -> int:
        """The number of unknown tokens in what `decode` makes text of."""
        unknown = unknown_id(self.target)
        return 0 if unknown is None else sum(ids.count(unknown) for ids in self._text_ids(sequences))

    def _text_ids(self, sequences: Iterable[Sequence[int]]) -> Iterator[list[int]]:
        end, languages = end_id(self.target), self.languages.tokens
        for sequence in sequences:
            # not every tokenizer with language codes treats them as special
            ids = [int(token) for token in sequence if int(token) not in languages]
            yield ids[: ids.index(end)] if end in ids else ids

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer files into a model folder, in place of those that it has."""
        (Path(folder) / TARGET_FILE).unlink(missing_ok=True)
        self.joined.save_pretrained(folder)

    @property
    def joined(self) -> "PreTrainedTokenizerBase":
        """One tokenizer for both sides, as it is saved."""
        if self.shared:
            return self.source
        of_loading = ("backend", "is_local", "local_files_only")
        settings = {name: value for name, value in self.source.init_kwargs.items() if name not in of_loading}
        return SourceTargetTokenizer(
            tokenizer_object=self.source.backend_tokenizer,
            target_tokenizer_object=self.target.backend_tokenizer,
            **{
                **settings,
                "extra_special_tokens": self.source.extra_special_tokens,
                "model_max_length": self.source.model_max_length,
            },
        )

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The tokenizers that `save` wrote, or those of any model folder or Hub id."""
        tokenizer = read_tokenizer(str(folder))
        if isinstance(tokenizer, SourceTargetTokenizer):
            return cls(tokenizer.source_tokenizer, tokenizer.target_tokenizer)
        return cls(tokenizer, tokenizer)


class NoTokenizers(Tokenizers):
    """The tokenizers of a task without text."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def save(self, folder: str | Path) -> None:
        """Writes nothing."""


def read_tokenizer(folder: str) -> "PreTrainedTokenizerBase":
    """The tokenizer in a folder. Raises RunError if it is damaged, RecipeError if it needs a package."""
    path = Path(folder)
    check_model_folder(path)
    settings = path / "tokenizer_config.json"
    name = read_json(settings, "a tokenizer").get("tokenizer_class") if settings.is_file() else None
    with one_line_errors(path, "the tokenizer"):
        tokenizer = _load_tokenizer(folder, name)
        tokenizer("a")  # what names tokens that are missing fails at the first text
        if isinstance(tokenizer, SourceTargetTokenizer):
            tokenizer(text_target="a")
    if (path / TARGET_FILE).is_file() and not isinstance(tokenizer, SourceTargetTokenizer):
        # the target side would be read and written with the vocabulary of the source
        raise RunError(
            f"{settings} names the class {name!r}, but there is a second vocabulary, {TARGET_FILE}: expected "
            f"{SourceTargetTokenizer.__name__!r}"
        )
    return tokenizer


def _load_tokenizer(folder: str, name: Any) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if name == SourceTargetTokenizer.__name__:  # not by AutoTokenizer, which would take the code in the folder
        return SourceTargetTokenizer.from_pretrained(folder, trust_remote_code=False)
    if name in GENERIC_CLASSES:
        # These need no model config; AutoTokenizer would read it, and warn if its model type is not registered.
        return PreTrainedTokenizerFast.from_pretrained(folder, trust_remote_code=False)
    try:
        # Never run code from the Hub; if this were unset, transformers would ask on the terminal.
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except ImportError as error:
        missing = str(error).strip().split(" but ")[0]
        raise RecipeError(
            f'the tokenizer of "{folder}" needs a package: {missing} (pip install sentencepiece).'
        ) from error


def end_id(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The id that ends a sequence: EOS, or the separator for encoders such as BERT. Raises RecipeError if none."""
    token = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if token is None:
        raise RecipeError(
            f'tokenizer.pretrained: "{tokenizer.name_or_path}" has neither an end token nor a separator, '
            "so no model can learn where a sentence ends. Use another tokenizer."
        )
    return token


def train_tokenizers(section: "Seq2SeqTokenizerSection", sources: Iterable[str], targets: Iterable[str]) -> Tokenizers:
    """Train one tokenizer for both sides, or one each. The same text gives the same ids in every process."""
    # Some kinds iterate over the text twice.
    sources, targets = reusable(sources), reusable(targets)
    if section.shared:
        tokenizer = build_tokenizer(section, Chained(sources, targets), "training", section.end_of_source)
        return Tokenizers(tokenizer, tokenizer)
    return Tokenizers(
        build_tokenizer(section, sources, "source", section.end_of_source),
        build_tokenizer(section, targets, "target", True),
    )


def reusable(texts: Iterable[str]) -> Iterable[str]:
    return list(texts) if isinstance(texts, Iterator) else texts


@dataclass(frozen=True)
class Chained:
    """Texts of two sources in sequence, which can be iterated repeatedly (unlike `itertools.chain`)."""

    first: Iterable[str]
    second: Iterable[str]

    def __iter__(self) -> Iterator[str]:
        return chain(self.first, self.second)


def build_tokenizer(
    section: "TokenizerSection", texts: Iterable[str], side: str, ends: bool, start: str = BOS
) -> "PreTrainedTokenizerBase":
    from transformers import PreTrainedTokenizerFast

    backend = train_vocabulary(section, texts, side)
    end = f" {EOS}" if ends else ""
    set_template(backend, f"$A{end}", f"$A{end} $B{end}", [EOS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=start,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        # A text that happens to contain "</s>" must not end there.
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def set_template(backend: "Tokenizer", single: str, pair: str, special: Sequence[str]) -> None:
    """Let a tokenizer add special tokens to a text and to a pair, after it has trimmed offsets."""
    from tokenizers.processors import Sequence as Processors
    from tokenizers.processors import TemplateProcessing

    ids = [(token, backend.token_to_id(token)) for token in special]
    template = TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    trimming = backend.post_processor
    backend.post_processor = template if trimming is None else Processors([trimming, template])


def train_tokenizer(
    section: "TokenizerSection", texts: Iterable[str], kind: Literal["masked", "causal"]
) -> "PreTrainedTokenizerBase":
    """Train the tokenizer of a language model: a causal one adds no tokens, a masked one [CLS] A [SEP] B [SEP]."""
    from transformers import PreTrainedTokenizerFast

    texts = reusable(texts)
    if kind == "causal":
        # as in GPT-2, a text starts after the end of another: the model would never have seen <s>
        return build_tokenizer(section, texts, "training", ends=False, start=EOS)
    backend = train_vocabulary(section, texts, "training", BERT_SPECIAL_TOKENS)
    first, pad, separator, unknown, mask = BERT_SPECIAL_TOKENS
    set_template(backend, f"{first} $A {separator}", f"{first} $A {separator} $B:1 {separator}:1", [first, separator])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token=first,
        pad_token=pad,
        sep_token=separator,
        unk_token=unknown,
        mask_token=mask,
        clean_up_tokenization_spaces=False,
        # without token_type_ids, next-sentence prediction would silently see a single segment
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def load_pretrained_tokenizers(name_or_path: str) -> Tokenizers:
    """The tokenizers of a run folder, a model folder or a Hub id. Raises KitError if there are none."""
    on_hub = parse_repo_id(name_or_path) is not None
    try:
        folder = resolve_folder(name_or_path)
        if on_hub:
            return Tokenizers.load(folder)
    except (HubError, NetworkError, RecipeError, RunError):
        raise
    except Exception as error:
        raise RecipeError(
            f'tokenizer.pretrained: there is no folder "{name_or_path}", and it could not be '
            "loaded as a Hub id either: "
            f"{redact(one_line(error))}"
        ) from error
    for candidate in (folder, folder / "model"):
        if (candidate / "tokenizer_config.json").is_file():
            return Tokenizers.load(candidate)
    raise RunError(
        f'"{name_or_path}" contains no tokenizer: expected tokenizer_config.json in it or in its folder "model". '
        "Pass a model folder, the folder of a finished run, or a Hub id."
    )
