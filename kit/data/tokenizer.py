"""Tokenizers of both sides: trained from the recipe or loaded, used to encode and decode, saved with the model.

The ids of the special tokens are the same in every tokenizer trained here: <s> 0 (START), <pad> 1, </s> 2 (EOS),
<unk> 3. `decode(encode(text))` gives back the normalised text, spaces and all, unless it has unknown characters.
The saved files are those of transformers, so that `AutoTokenizer` on a model folder gives the source ids that kit
trained with. When the two sides have vocabularies of their own, that of the target is in `target_tokenizer/`.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kit.data.hub_names import reason
from kit.data.vocabulary import END, PAD, START, UNKNOWN, train_vocabulary
from kit.errors import RecipeError, RunError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kit.recipe import TokenizerSection

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

    def encode_source(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of each source, as `tokenizer(text)` gives them: with EOS if the recipe says `end_of_source`."""
        batch = list(texts)
        return self.source(batch, return_attention_mask=False, verbose=False)["input_ids"] if batch else []

    def encode_target(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of each target, with EOS at the end and, in tokenizers trained here, without START."""
        batch = list(texts)
        if not batch:
            return []
        encoded = self.target(text_target=batch, return_attention_mask=False, verbose=False)["input_ids"]
        end = end_id(self.target)
        return [ids if ids and ids[-1] == end else [*ids, end] for ids in encoded]

    def decode(self, sequences: Iterable[Sequence[int]]) -> list[str]:
        """The text of each sequence of target ids up to the first EOS, without special tokens.

        The first id that `generate()` puts in front must be left out where a model starts with EOS.
        """
        end = end_id(self.target)
        cut = []
        for sequence in sequences:
            ids = [int(token) for token in sequence]
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


def read_tokenizer(folder: str, subfolder: str = "") -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    settings = Path(folder) / subfolder / "tokenizer_config.json"
    if settings.is_file() and json.loads(settings.read_text("utf-8")).get("tokenizer_class") in GENERAL_CLASSES:
        # These need no model beside them; AutoTokenizer would read its config and warn if its type is not registered.
        return PreTrainedTokenizerFast.from_pretrained(folder, subfolder=subfolder)
    # Code from the Hub is not run; left unset, transformers would ask on the terminal.
    return AutoTokenizer.from_pretrained(folder, subfolder=subfolder, trust_remote_code=False)


def end_id(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The id that ends a sequence: EOS, or the separator in tokenizers of encoders such as BERT."""
    token = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if token is None:
        raise RecipeError(
            f'tokenizer.pretrained: "{tokenizer.name_or_path}" has neither an end token nor a separator, '
            "so that no model could learn where a sentence ends. Use another tokenizer."
        )
    return token


def train_tokenizers(section: "TokenizerSection", sources: Iterable[str], targets: Iterable[str]) -> Tokenizers:
    """Train one tokenizer for both sides, or one for each. The same text gives the same ids in every process."""
    # Some kinds read the text twice.
    sources, targets = reusable(sources), reusable(targets)
    if section.shared:
        tokenizer = train_one(section, Both(sources, targets), "training", section.end_of_source)
        return Tokenizers(tokenizer, tokenizer)
    return Tokenizers(
        train_one(section, sources, "source", section.end_of_source), train_one(section, targets, "target", True)
    )


def reusable(texts: Iterable[str]) -> Iterable[str]:
    return list(texts) if isinstance(texts, Iterator) else texts


@dataclass(frozen=True)
class Both:
    """Two texts, one after the other, that can be read more than once."""

    first: Iterable[str]
    second: Iterable[str]

    def __iter__(self) -> Iterator[str]:
        return chain(self.first, self.second)


def train_one(section: "TokenizerSection", texts: Iterable[str], side: str, ends: bool) -> "PreTrainedTokenizerBase":
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    backend = train_vocabulary(section, texts, side)
    backend.post_processor = TemplateProcessing(
        single=f"$A {END}" if ends else "$A",
        pair=f"$A {END} $B {END}" if ends else "$A $B",
        special_tokens=[(END, backend.token_to_id(END))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=START,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        # A text that happens to contain "</s>" must not end there.
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def load_pretrained_tokenizers(name_or_path: str) -> Tokenizers:
    """The tokenizers of a run folder, a model folder or a Hub id; KitError if there are none."""
    folder = Path(name_or_path)
    if folder.exists():
        for place in (folder, folder / "model"):
            if (place / "tokenizer_config.json").is_file():
                return Tokenizers.load(place)
        raise RunError(
            f'"{name_or_path}" holds no tokenizer: expected tokenizer_config.json in it or in its folder "model". '
            "Give a model folder, the folder of a finished run, or a Hub id."
        )
    try:
        return Tokenizers.load(name_or_path)
    except Exception as error:
        raise RecipeError(
            f'tokenizer.pretrained: there is no folder "{name_or_path}", and as a Hub id it could not be loaded: '
            f"{reason(error)}"
        ) from error
