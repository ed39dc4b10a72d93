"""Source and target languages of multilingual models.

Models that kit trains on several directions have a tag such as <2en> in front of the source, which names the target
language (Johnson et al., 2017). mBART-50, NLLB and M2M have codes: their tokenizers put one in front of the source, and
the output starts with that of the target. First-generation mBART, which puts them after the text, is rejected. Other
models get no language, but a prefix of plain text if the recipe has one ("summarize: ", ">>fra<< ").

The setting is saved with the tokenizer: its classes save `src_lang` and `tgt_lang`, and tokenizer_config.json has the
keys below in addition.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, NoReturn

from kit.errors import RecipeError, RunError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kit.recipe.model import Seq2SeqTokenizerSection

TAGS_KEY = "target_languages"
"""Key of tokenizers that kit trained: the languages that have a tag."""

CODES_KEY = "language_names"
"""Key of tokenizers with codes, fine-tuned on several directions: the code of each language by its name in the data."""

PREFIX_KEY = "source_prefix"
"""Key of any tokenizer: text in front of every source."""

CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")


def tag_token(language: str) -> str:
    """The token in front of a source that requests a target language."""
    return f"<2{language}>"


class Languages:
    """The languages of a model. This base class is a model with a single direction, which needs no language."""

    per_example = False
    """Whether the languages differ between examples."""

    sources: Sequence[str] = ()
    """Source languages to choose from."""

    targets: Sequence[str] = ()
    """Target languages to choose from."""

    default_source: str | None = None
    """The source language if none is given."""

    default_target: str | None = None
    """The target language if none is given. If None while there are `targets`, one must be given."""

    tokens: Collection[int] = ()
    """Tokens in outputs that name a language rather than belong to the text."""

    def prefix_ids(self, target: str | None) -> list[int]:
        """Tokens in front of a source that request the target language. Raises RunError for an unknown one."""
        if target is not None:
            raise RunError(
                f'the model cannot translate into "{target}": it has a single direction. Leave out the target language.'
            )
        return []

    def source_language(self, source: str | None) -> AbstractContextManager[None]:
        """Set the language in which the tokenizer encodes sources. Raises RunError for an unknown one."""
        if source is not None and not self.targets:
            raise RunError(
                f'the model cannot translate from "{source}": it has a single direction. Leave out the source language.'
            )
        return nullcontext()

    def target_language(self, target: str | None) -> AbstractContextManager[None]:
        """Set the language in which the tokenizer encodes targets. Raises RunError for an unknown one."""
        return nullcontext()

    def forced_first_token(self, target: str | None) -> int | None:
        """The token that every output in this language starts with, if there is one."""
        return None


class LanguageTags(Languages):
    """The languages of a model that kit trained: a tag in front of the source names the target language."""

    per_example = True

    def __init__(self, tokenizer: "PreTrainedTokenizerBase"):
        self.targets = list(tokenizer.init_kwargs[TAGS_KEY])
        self.default_target = self.targets[0] if len(self.targets) == 1 else None
        self._ids = {name: tokenizer.convert_tokens_to_ids(tag_token(name)) for name in self.targets}

    def prefix_ids(self, target: str | None) -> list[int]:
        name = target if target is not None else self.default_target
        if name not in self._ids:
            raise_unknown_language("target", name, self.targets)
        return [self._ids[name]]


class LanguageCodes(Languages):
    """The languages of a tokenizer that has a code for each of them."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase"):
        if problem := unsupported_codes(tokenizer):
            raise RunError(problem)
        self._tokenizer = tokenizer
        self.ids = code_ids(tokenizer)
        self.tokens = set(self.ids.values())
        named_codes: dict[str, str] | None = tokenizer.init_kwargs.get(CODES_KEY)
        self.per_example = named_codes is not None
        self._codes = {**{code: code for code in self.ids}, **(named_codes or {})}
        self.sources = self.targets = list(named_codes or self.ids)
        if named_codes is None:
            self.default_source, self.default_target = saved_codes(tokenizer) or (None, None)

    def code(self, side: str, language: str | None) -> str:
        """The code of a language, or of the default language of a side."""
        name = language or (self.default_source if side == "source" else self.default_target)
        if name not in self._codes:
            raise_unknown_language(side, name, list(self._codes))
        return self._codes[name]

    def prefix_ids(self, target: str | None) -> list[int]:
        self.code("target", target)  # not encoded here; reports an unknown language before anything is decoded
        return []

    def source_language(self, source: str | None) -> AbstractContextManager[None]:
        return self._temporarily("src_lang", self.code("source", source))

    def target_language(self, target: str | None) -> AbstractContextManager[None]:
        return self._temporarily("tgt_lang", self.code("target", target))

    @contextmanager
    def _temporarily(self, attribute: str, code: str) -> Iterator[None]:
        """Context manager: set a language of the tokenizer inside the block."""
        previous = getattr(self._tokenizer, attribute)
        setattr(self._tokenizer, attribute, code)
        try:
            yield
        finally:
            setattr(self._tokenizer, attribute, previous)

    def forced_first_token(self, target: str | None) -> int | None:
        return self.ids[self.code("target", target)]


def languages_of(tokenizer: "PreTrainedTokenizerBase") -> Languages:
    """The languages of a tokenizer's model."""
    if tokenizer.init_kwargs.get(TAGS_KEY):
        return LanguageTags(tokenizer)
    return LanguageCodes(tokenizer) if has_language_codes(tokenizer) else Languages()


def has_language_codes(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether the tokenizer class encodes by language (mBART, mBART-50, NLLB, M2M)."""
    return hasattr(tokenizer, "set_tgt_lang_special_tokens")


def unsupported_codes(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """Why kit rejects a tokenizer with codes, if it does: they must be known, and in front of the text."""
    if not code_ids(tokenizer):  # PLBart, SeamlessM4T
        return (
            f"{describe_tokenizer(tokenizer)} has language codes that kit does not know. Use mBART-50, NLLB or M2M-100"
        )
    if tokenizer("")["input_ids"][-1:] == [tokenizer.eos_token_id]:
        return None
    return (
        f"{describe_tokenizer(tokenizer)} puts the language code after the text, as in first-generation mBART, which "
        "kit does not support. Use mBART-50, NLLB or M2M-100 (NLLB without legacy_behaviour in tokenizer_config.json)"
    )


def saved_codes(tokenizer: "PreTrainedTokenizerBase") -> tuple[str, str] | None:
    """The codes of source and target that a tokenizer was saved with, if they were chosen.

    If they were not, the classes save English as the source, but no target.
    """
    source, target = (tokenizer.init_kwargs.get(name) for name in ("src_lang", "tgt_lang"))
    return (source, target) if source and target else None


def code_ids(tokenizer: "PreTrainedTokenizerBase") -> dict[str, int]:
    """The codes of a tokenizer, with their token ids."""
    named = getattr(tokenizer, "lang_code_to_token", None)  # M2M, where the token of "de" is "__de__"
    if named is not None:
        return {code: tokenizer.get_lang_id(code) for code in named}
    tokens = [token for token in tokenizer.all_special_tokens if CODE.fullmatch(token)]
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tokens}
    return {code: number for code, number in ids.items() if number != tokenizer.unk_token_id}


def raise_unknown_language(side: str, language: str | None, known: Sequence[str]) -> NoReturn:
    """Raise RunError for a language that is missing (None) or unknown; the message lists the known ones."""
    verb = "write" if side == "target" else "read"
    listed = ", ".join(known[:8]) + ("" if len(known) <= 8 else f" … ({len(known)} in all)")
    if language is None:
        raise RunError(
            f"the model needs to know which language to {verb}: choose one of {listed} with --{side}-language "
            f"({side}_language in Python)."
        )
    raise RunError(f'the model has no {side} language "{language}", only {listed}.{nearest(language, known)}')


def nearest(language: str, known: Sequence[str]) -> str:
    """A sentence that suggests the nearest known languages, "deu_Latn" for "de", or an empty string."""
    similar = did_you_mean(language, known)
    same_start = [f'"{name}"' for name in known if name.lower().startswith(language.lower()[:2])]
    return similar or (f" Did you mean {' or '.join(same_start)}?" if 0 < len(same_start) < 4 else "")


def set_language_codes(
    tokenizer: "PreTrainedTokenizerBase", section: "Seq2SeqTokenizerSection", directions: Sequence[Sequence[str]]
) -> None:
    """Store the recipe's languages in the source tokenizer. Raises RecipeError if the tokenizer does not support them.

    `directions` are the translation directions of the data, if it has several.
    """
    codes = {"source_language": section.source_language, "target_language": section.target_language}
    if not has_language_codes(tokenizer):
        keys = [name for name in (*codes, "language_codes") if getattr(section, name) is not None]
        if keys:
            raise RecipeError(
                f"tokenizer.{keys[0]}: {describe_tokenizer(tokenizer)} has no language codes. Remove it; for a model "
                "that reads its task from the text, set data.source_prefix."
            )
        tagged = tokenizer.init_kwargs.get(TAGS_KEY, [])
        if directions:
            add_tags(tokenizer, [target for _, target in directions])
        elif len(tagged) > 1:
            raise RecipeError(
                f"data.directions is missing: the model needs to know which of its languages ({', '.join(tagged)}) to "
                "write, even if the data has a single direction (data.directions: [SOURCE-TARGET])."
            )
    elif problem := unsupported_codes(tokenizer):
        raise RecipeError(f"tokenizer: {problem}.")
    elif directions:
        named = {name: (section.language_codes or {}).get(name, name) for pair in directions for name in pair}
        for name, code in named.items():
            check_code(tokenizer, f"language_codes.{name}", code)
        tokenizer.init_kwargs[CODES_KEY] = named
    else:
        tokenizer.init_kwargs.pop(CODES_KEY, None)
        if codes == dict.fromkeys(codes) and (pair := saved_codes(tokenizer)):
            codes = dict(zip(codes, pair, strict=True))
        for (key, chosen), attribute in zip(codes.items(), ("src_lang", "tgt_lang"), strict=True):
            check_code(tokenizer, key, chosen)
            setattr(tokenizer, attribute, chosen)
            tokenizer.init_kwargs[attribute] = chosen


def add_tags(tokenizer: "PreTrainedTokenizerBase", languages: Sequence[str]) -> None:
    """Add a tag for each language that has none yet."""
    names = list(dict.fromkeys([*tokenizer.init_kwargs.get(TAGS_KEY, []), *languages]))
    tokens = {"extra_special_tokens": [tag_token(name) for name in names]}
    tokenizer.add_special_tokens(tokens, replace_extra_special_tokens=False)
    tokenizer.init_kwargs[TAGS_KEY] = names


def check_code(tokenizer: "PreTrainedTokenizerBase", key: str, code: str | None) -> None:
    """Raise RecipeError if a code is missing, or unknown to the tokenizer."""
    known = list(code_ids(tokenizer))
    if code is None:
        raise RecipeError(
            f"tokenizer.{key} is missing: {describe_tokenizer(tokenizer)} needs one of its {len(known)} language codes "
            f"({', '.join(known[:5])}, …)."
        )
    if code not in known:
        raise RecipeError(
            f'tokenizer.{key}: {describe_tokenizer(tokenizer)} has no code "{code}", but {len(known)} others '
            f"({', '.join(known[:5])}, …).{nearest(code, known)}"
        )


def describe_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> str:
    """How messages refer to a tokenizer."""
    name = f' of "{tokenizer.name_or_path}"' if tokenizer.name_or_path else ""
    return f"the tokenizer{name} ({type(tokenizer).__name__})"
