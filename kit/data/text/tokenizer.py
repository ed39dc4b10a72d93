"""Tokenizers of both sides: trained from the recipe or loaded, used to encode and decode, saved with the model.

The ids of the special tokens are the same in every tokenizer trained here: <s> 0 (START), <pad> 1, </s> 2 (EOS),
<unk> 3. `decode(encode(text))` gives back the normalised text, spaces and all, unless it has unknown characters.
The saved files are those of transformers, so that `AutoTokenizer` on a model folder gives the source ids that kit
trained with. When the two sides have vocabularies of their own, that of the target is in `target_tokenizer/`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from kit.data.text.languages import PREFIX, Languages, languages_of
from kit.data.text.vocabulary import BERT_SPECIAL_TOKENS, BOS, EOS, PAD, UNK, train_vocabulary
from kit.errors import NetworkError, RecipeError, RunError
from kit.hub.download import download
from kit.hub.names import one_line, parse_repo_id
from kit.system.files import read_json
from kit.system.redaction import redact

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kit.recipe.inputs import Seq2SeqTokenizerSection, TokenizerSection

TARGET_FOLDER = "target_tokenizer"
GENERAL_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of the source and of the target side: one object when they share a vocabulary."""

    source: "PreTrainedTokenizerBase"
    target: "PreTrainedTokenizerBase"

    @property
    def shared(self) -> bool:
        """Whether both sides use one vocabulary."""
        return self.source is self.target

    @cached_property
    def languages(self) -> Languages:
        """How the model is told languages."""
        return languages_of(self.source)

    @property
    def prefix(self) -> str:
        """Text in front of every source."""
        return self.source.init_kwargs.get(PREFIX, "")

    @property
    def target_languages(self) -> list[str]:
        """The languages that the model can be told to write; none if it has one direction."""
        return list(self.languages.targets)

    @property
    def source_languages(self) -> list[str]:
        """The languages that the model can be told to read; none if it need not be told."""
        return list(self.languages.sources)

    @property
    def default_target_language(self) -> str | None:
        """What the model writes when it is told nothing; None beside `target_languages` means that it must be told."""
        return self.languages.default_target

    def encode_source(
        self,
        texts: Iterable[str],
        source_language: str | None = None,
        target_language: str | None = None,
        max_length: int | None = None,
    ) -> list[list[int]]:
        """The ids of each source, as `tokenizer(text)` gives them: with EOS if the recipe says `end_of_source`.

        The prefix is put in front of the text, and the tag of the target language, where the model has one, in front of
        all. Texts are cut such that there are at most `max_length` ids. Raises RunError for languages that the model
        does not have, or must be told.
        """
        in_front = self.languages.in_front(target_language)
        with self.languages.reading(source_language):
            encoded = self._ids(self.source, "text", (self.prefix + text for text in texts))
            ids = [in_front + one for one in encoded]
            return self._cut(ids, max_length, lambda text: in_front + self._ids(self.source, "text", [text])[0])

    def encode_target(
        self, texts: Iterable[str], language: str | None = None, max_length: int | None = None
    ) -> list[list[int]]:
        """The ids of each target, with EOS at the end and, in tokenizers trained here, without START.

        The language matters to models with codes; cut as in `encode_source`.
        """
        with self.languages.writing(language):
            return self._cut(self._targets(texts), max_length, lambda text: self._targets([text])[0])

    def encode_empty_source(self) -> list[int]:
        """What every source has, whatever its text."""
        source, target = (next(iter(names), None) for names in (self.languages.sources, self.languages.targets))
        return self.encode_source([""], source, target)[0]

    def encode_empty_target(self) -> list[int]:
        """What every target has, whatever its text."""
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
    def _cut(ids: list[list[int]], limit: int | None, encode: Callable[[str], list[int]]) -> list[list[int]]:
        """Sequences with the end of too long texts left out, but not what the tokenizer puts behind it."""
        if limit is None or all(len(one) <= limit for one in ids):
            return ids
        without, with_text = encode(""), encode("a")
        behind = 0
        while behind < len(without) and without[-1 - behind] == with_text[-1 - behind]:
            behind += 1
        return [one if len(one) <= limit else one[: limit - behind] + one[len(one) - behind :] for one in ids]

    def search_tokens(self, language: str | None = None) -> dict[str, Any]:
        """What SearchSettings must say for outputs in a language (or the default): nothing for most models."""
        first = self.languages.forced_first_token(language)
        return {} if first is None else {"forced_bos_token_id": first}

    def decode(self, sequences: Iterable[Sequence[int]]) -> list[str]:
        """The text of each sequence of target ids up to the first EOS, without special tokens.

        The first id that `generate()` puts in front must be left out where a model starts with EOS.
        """
        end, languages = end_id(self.target), self.languages.tokens
        cut = []
        for sequence in sequences:
            # not every tokenizer with codes counts them as special
            ids = [int(token) for token in sequence if int(token) not in languages]
            cut.append(ids[: ids.index(end)] if end in ids else ids)
        return [self.target.decode(ids, skip_special_tokens=True) for ids in cut]

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer files into a model folder."""
        # The note tells `load` to look for a second tokenizer, also on the Hub, where folders cannot be probed for.
        self.source.init_kwargs.pop(TARGET_FOLDER, None)
        if not self.shared:
            self.source.init_kwargs[TARGET_FOLDER] = True
            self.target.save_pretrained(Path(folder) / TARGET_FOLDER)
        self.source.save_pretrained(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The tokenizers that `save` wrote, or those of any model folder or Hub id."""
        source = read_tokenizer(str(folder))
        if source.init_kwargs.get(TARGET_FOLDER):
            return cls(source, read_tokenizer(str(folder), TARGET_FOLDER))
        return cls(source, source)


class NoTokenizers(Tokenizers):
    """What stands for the tokenizers of a task that has no text."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def save(self, folder: str | Path) -> None:
        """There is nothing to write."""


def read_tokenizer(folder: str, subfolder: str = "") -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    settings = Path(folder) / subfolder / "tokenizer_config.json"
    if (
        settings.is_file()
        and read_json(settings, "the settings of a tokenizer").get("tokenizer_class") in GENERAL_CLASSES
    ):
        # These need no model beside them; AutoTokenizer would read its config and warn if its type is not registered.
        return PreTrainedTokenizerFast.from_pretrained(folder, subfolder=subfolder)
    try:
        # Code from the Hub is not run; left unset, transformers would ask on the terminal.
        return AutoTokenizer.from_pretrained(folder, subfolder=subfolder, trust_remote_code=False)
    except ImportError as error:
        what = str(error).strip().split(" but ")[0]
        raise RecipeError(
            f'the tokenizer of "{folder}" needs a package: {what} (pip install sentencepiece).'
        ) from error


def end_id(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The id that ends a sequence: EOS, or the separator in tokenizers of encoders such as BERT."""
    token = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if token is None:
        raise RecipeError(
            f'tokenizer.pretrained: "{tokenizer.name_or_path}" has neither an end token nor a separator, '
            "so that no model could learn where a sentence ends. Use another tokenizer."
        )
    return token


def train_tokenizers(section: "Seq2SeqTokenizerSection", sources: Iterable[str], targets: Iterable[str]) -> Tokenizers:
    """Train one tokenizer for both sides, or one for each. The same text gives the same ids in every process."""
    # Some kinds read the text twice.
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
    """Two texts, one after the other, that can be read more than once."""

    first: Iterable[str]
    second: Iterable[str]

    def __iter__(self) -> Iterator[str]:
        return chain(self.first, self.second)


def build_tokenizer(
    section: "TokenizerSection", texts: Iterable[str], side: str, ends: bool, start: str = BOS
) -> "PreTrainedTokenizerBase":
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    backend = train_vocabulary(section, texts, side)
    backend.post_processor = TemplateProcessing(
        single=f"$A {EOS}" if ends else "$A",
        pair=f"$A {EOS} $B {EOS}" if ends else "$A $B",
        special_tokens=[(EOS, backend.token_to_id(EOS))],
    )
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


def train_tokenizer(
    section: "TokenizerSection", texts: Iterable[str], kind: Literal["masked", "causal"]
) -> "PreTrainedTokenizerBase":
    """The tokenizer of a language model: a causal one adds nothing to a text, a masked one [CLS] A [SEP] B [SEP]."""
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    texts = reusable(texts)
    if kind == "causal":
        # a text begins behind the end of another, as in GPT-2: <s> would be a start that the model has never seen
        return build_tokenizer(section, texts, "training", ends=False, start=EOS)
    backend = train_vocabulary(section, texts, "training", BERT_SPECIAL_TOKENS)
    first, pad, separator, unknown, redact = BERT_SPECIAL_TOKENS
    backend.post_processor = TemplateProcessing(
        single=f"{first} $A {separator}",
        pair=f"{first} $A {separator} $B:1 {separator}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (first, separator)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token=first,
        pad_token=pad,
        sep_token=separator,
        unk_token=unknown,
        mask_token=redact,
        clean_up_tokenization_spaces=False,
        # without the segments, next-sentence prediction would in silence see one text
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def load_pretrained_tokenizers(name_or_path: str) -> Tokenizers:
    """The tokenizers of a run folder, a model folder or a Hub id; KitError if there are none."""
    on_hub = parse_repo_id(name_or_path)
    folder = Path(name_or_path)
    try:
        if on_hub is not None:
            return Tokenizers.load(download(on_hub))
    except (NetworkError, RecipeError):
        raise
    except Exception as error:
        raise RecipeError(
            f'tokenizer.pretrained: there is no folder "{name_or_path}", and as a Hub id it could not be loaded: '
            f"{redact(one_line(error))}"
        ) from error
    for place in (folder, folder / "model"):
        if (place / "tokenizer_config.json").is_file():
            return Tokenizers.load(place)
    raise RunError(
        f'"{name_or_path}" holds no tokenizer: expected tokenizer_config.json in it or in its folder "model". '
        "Give a model folder, the folder of a finished run, or a Hub id."
    )
