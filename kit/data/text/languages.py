"""How a model is told what to read and what to write: the one place that knows languages.

Models trained here on several directions have a tag such as <2en> in front of the source, which names the language to
write (Johnson et al., 2017). mBART-50, NLLB and M2M have codes: their tokenizers put one in front of the source, and
output begins with that of the target. The first mBART, which has them behind the text, is rejected. All other
models are told nothing but, on request, a prefix of plain text ("summarize: ", ">>fra<< ").

What a model needs is saved with its tokenizer: its classes keep `src_lang` and `tgt_lang`, and the notes below stand
beside them in tokenizer_config.json.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from kit.errors import RecipeError, RunError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kit.recipe.inputs import Seq2SeqTokenizerSection

TAGGED = "target_languages"
"""Note of tokenizers trained here: languages that have a tag."""

CODES = "language_names"
"""Note of tokenizers with codes, fine-tuned on several directions: the code of each language, by the data's name."""

PREFIX = "source_prefix"
"""Note of any tokenizer: text in front of every source."""

CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")


def tag(language: str) -> str:
    """The token that asks for a language."""
    return f"<2{language}>"


class Languages:
    """Those of a model that is told none: it has one direction."""

    by_row = False
    """Whether every example has languages of its own."""

    sources: Sequence[str] = ()
    """Languages that it can be told to read."""

    targets: Sequence[str] = ()
    """Languages that it can be told to write."""

    default_source: str | None = None
    """What it reads when nothing is said."""

    default_target: str | None = None
    """What it writes when nothing is said."""

    tokens: Collection[int] = ()
    """Tokens of outputs that name a language."""

    def in_front(self, target: str | None) -> list[int]:
        """Tokens in front of a source that is to be translated into `target`."""
        if target is not None:
            raise RunError(f'the model cannot be told to write "{target}": it has one direction.')
        return []

    @contextmanager
    def reading(self, source: str | None) -> Iterator[None]:
        """Encode sources in this language."""
        if source is not None and not self.targets:
            raise RunError(f'the model cannot be told to read "{source}": it has one direction.')
        yield

    @contextmanager
    def writing(self, target: str | None) -> Iterator[None]:
        """Encode targets in this language."""
        yield

    def forced_first_token(self, target: str | None) -> int | None:
        """The token that every output in this language begins with, if there is one."""
        return None


class Tags(Languages):
    """Those of a model trained here: a tag in front of the source names the target."""

    by_row = True

    def __init__(self, tokenizer: "PreTrainedTokenizerBase"):
        self.targets = list(tokenizer.init_kwargs[TAGGED])
        self.default_target = self.targets[0] if len(self.targets) == 1 else None
        self._ids = {name: tokenizer.convert_tokens_to_ids(tag(name)) for name in self.targets}

    def in_front(self, target: str | None) -> list[int]:
        name = target if target is not None else self.default_target
        if name not in self._ids:
            refuse("target", name, self.targets)
        return [self._ids[name]]


class Codes(Languages):
    """Those of a tokenizer that has a code for each language."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase"):
        if problem := codes_problem(tokenizer):
            raise RunError(problem)
        self._tokenizer = tokenizer
        self.ids = code_ids(tokenizer)
        self.tokens = set(self.ids.values())
        several: dict[str, str] | None = tokenizer.init_kwargs.get(CODES)
        self.by_row = several is not None
        self._codes = {**{code: code for code in self.ids}, **(several or {})}
        self.sources = self.targets = list(several or self.ids)
        if several is None:
            self.default_source, self.default_target = chosen_codes(tokenizer) or (None, None)

    def code(self, side: str, language: str | None) -> str:
        """The code of a language, or of the default of a side."""
        name = language or (self.default_source if side == "source" else self.default_target)
        if name not in self._codes:
            refuse(side, name, list(self._codes))
        return self._codes[name]

    def in_front(self, target: str | None) -> list[int]:
        self.code("target", target)  # the source does not tell it, but nobody should wait for the search to complain
        return []

    @contextmanager
    def reading(self, source: str | None) -> Iterator[None]:
        tokenizer, before = self._tokenizer, self._tokenizer.src_lang
        tokenizer.src_lang = self.code("source", source)
        try:
            yield
        finally:
            tokenizer.src_lang = before

    @contextmanager
    def writing(self, target: str | None) -> Iterator[None]:
        tokenizer, before = self._tokenizer, self._tokenizer.tgt_lang
        tokenizer.tgt_lang = self.code("target", target)
        try:
            yield
        finally:
            tokenizer.tgt_lang = before

    def forced_first_token(self, target: str | None) -> int | None:
        return self.ids[self.code("target", target)]


def languages_of(tokenizer: "PreTrainedTokenizerBase") -> Languages:
    """How the model of this tokenizer is told languages."""
    if tokenizer.init_kwargs.get(TAGGED):
        return Tags(tokenizer)
    return Codes(tokenizer) if takes_codes(tokenizer) else Languages()


def takes_codes(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether this is one of the classes that encode by language (mBART, mBART-50, NLLB, M2M)."""
    return hasattr(tokenizer, "set_tgt_lang_special_tokens")


def codes_problem(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """Why kit rejects a tokenizer with codes: it does not know them, or they stand behind the text; None otherwise."""
    if not code_ids(tokenizer):  # as of PLBart and SeamlessM4T
        return f"{described(tokenizer)} has language codes that kit does not know. Use mBART-50, NLLB or M2M-100"
    if tokenizer("")["input_ids"][-1:] == [tokenizer.eos_token_id]:
        return None
    return (
        f"{described(tokenizer)} puts the language code behind the text, as in first-generation mBART, which kit does "
        "not support. Use mBART-50, NLLB or M2M-100 (NLLB without legacy_behaviour in tokenizer_config.json)"
    )


def chosen_codes(tokenizer: "PreTrainedTokenizerBase") -> tuple[str, str] | None:
    """The codes of source and target that a tokenizer was saved with, if somebody chose them.

    Its class saves English as the source when nobody did, but no target.
    """
    source, target = (tokenizer.init_kwargs.get(name) for name in ("src_lang", "tgt_lang"))
    return (source, target) if source and target else None


def code_ids(tokenizer: "PreTrainedTokenizerBase") -> dict[str, int]:
    """The codes that a tokenizer knows, each with its token."""
    named = getattr(tokenizer, "lang_code_to_token", None)  # M2M, where the token of "de" is "__de__"
    if named is not None:
        return {code: tokenizer.get_lang_id(code) for code in named}
    tokens = [token for token in tokenizer.all_special_tokens if CODE.fullmatch(token)]
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tokens}
    return {code: number for code, number in ids.items() if number != tokenizer.unk_token_id}


def refuse(side: str, language: str | None, known: Sequence[str]) -> NoReturn:
    """Say that a language is missing or unknown, and which there are."""
    verb = "write" if side == "target" else "read"
    shown = ", ".join(known[:8]) + ("" if len(known) <= 8 else f" … ({len(known)} in all)")
    if language is None:
        raise RunError(f"the model must be told which language to {verb}: give the {side} language, one of {shown}.")
    raise RunError(f'the model has no {side} language "{language}", only {shown}.{nearest(language, known)}')


def nearest(language: str, known: Sequence[str]) -> str:
    """The nearest of the known languages as a sentence; "de" is near "deu_Latn"."""
    alike = did_you_mean(language, known)
    begins = [f'"{name}"' for name in known if name.lower().startswith(language.lower()[:2])]
    return alike or (f" Did you mean {' or '.join(begins)}?" if 0 < len(begins) < 4 else "")


def set_language_codes(
    tokenizer: "PreTrainedTokenizerBase", section: "Seq2SeqTokenizerSection", directions: Sequence[Sequence[str]]
) -> None:
    """Note in the source's tokenizer what a recipe says about languages; RecipeError if the tokenizer cannot do that.

    `directions` are those of the data, if it has several.
    """
    fixed = {"source_language": section.source_language, "target_language": section.target_language}
    if not takes_codes(tokenizer):
        given = [name for name in (*fixed, "language_codes") if getattr(section, name) is not None]
        if given:
            raise RecipeError(
                f"tokenizer.{given[0]}: {described(tokenizer)} has no language codes. Leave it out; a model that reads "
                "its task from the text is told by data.source_prefix."
            )
        tagged = tokenizer.init_kwargs.get(TAGGED, [])
        if directions:
            add_tags(tokenizer, [target for _, target in directions])
        elif len(tagged) > 1:
            raise RecipeError(
                f"data.directions is missing: the model must be told which of its languages ({', '.join(tagged)}) to "
                "write, also where the data has one direction (data.directions: [SOURCE-TARGET])."
            )
    elif problem := codes_problem(tokenizer):
        raise RecipeError(f"tokenizer: {problem}.")
    elif directions:
        named = {name: (section.language_codes or {}).get(name, name) for pair in directions for name in pair}
        for name, code in named.items():
            check_code(tokenizer, f"language_codes.{name}", code)
        tokenizer.init_kwargs[CODES] = named
    else:
        tokenizer.init_kwargs.pop(CODES, None)
        if fixed == dict.fromkeys(fixed) and (pair := chosen_codes(tokenizer)):
            fixed = dict(zip(fixed, pair, strict=True))
        for (key, chosen), attribute in zip(fixed.items(), ("src_lang", "tgt_lang"), strict=True):
            check_code(tokenizer, key, chosen)
            setattr(tokenizer, attribute, chosen)
            tokenizer.init_kwargs[attribute] = chosen


def add_tags(tokenizer: "PreTrainedTokenizerBase", languages: Sequence[str]) -> None:
    """Give each language a tag, beside those that have one already."""
    names = list(dict.fromkeys([*tokenizer.init_kwargs.get(TAGGED, []), *languages]))
    tokens = {"extra_special_tokens": [tag(name) for name in names]}
    tokenizer.add_special_tokens(tokens, replace_extra_special_tokens=False)
    tokenizer.init_kwargs[TAGGED] = names


def check_code(tokenizer: "PreTrainedTokenizerBase", key: str, code: str | None) -> None:
    """Raise RecipeError if a tokenizer does not know a code."""
    known = list(code_ids(tokenizer))
    if code is None:
        raise RecipeError(
            f"tokenizer.{key} is missing: {described(tokenizer)} must be told languages by one of its {len(known)} "
            f"codes ({', '.join(known[:5])}, …)."
        )
    if code not in known:
        raise RecipeError(
            f'tokenizer.{key}: {described(tokenizer)} has no code "{code}", but {len(known)} others '
            f"({', '.join(known[:5])}, …).{nearest(code, known)}"
        )


def described(tokenizer: "PreTrainedTokenizerBase") -> str:
    """A tokenizer as a message names it."""
    name = f' of "{tokenizer.name_or_path}"' if tokenizer.name_or_path else ""
    return f"the tokenizer{name} ({type(tokenizer).__name__})"
