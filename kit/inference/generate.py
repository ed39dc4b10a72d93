"""What `kit generate` does with lines: translate them, reply to them, go on with them, or caption the pictures that
they name, as the model can."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from kit.decoding.settings import GenerationSettings
from kit.errors import KitError
from kit.tasks.captioning.images import picture_cost
from kit.tasks.captioning.inference import Captioner, is_captioner
from kit.tasks.captioning.plots import draw_caption
from kit.tasks.dialogue.inference import Responder, draw_history, history_of, load_translator
from kit.tasks.families.language_modeling.inference import Completer, goes_on_with_text
from kit.tasks.families.seq2seq.inference import LINES_AT_ONCE, Output, Translator
from kit.tasks.families.seq2seq.plots import Question, draw_sentence

Writer = Callable[..., Iterator[list[Output]]]
"""From lines, with `bad_lines` and `progress`, to the outputs of each line, in order."""


@dataclass(frozen=True)
class Wishes:
    """What a user asks for; None where the model or kit decides."""

    n_best: int = 1
    num_beams: int | None = None
    max_new_tokens: int | None = None
    length_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    sample: bool = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    source_language: str | None = None
    target_language: str | None = None
    split_sentences: str | None = None
    attention: Path | None = None
    """Where to draw what the first line looks at."""
    scores: bool = False
    tokens_per_batch: int = 8192
    at_once: bool = False
    """Whether somebody waits for the output of each line."""

    @property
    def drawing(self) -> dict[str, Any]:
        named = {"--sample": self.sample or None, "--temperature": self.temperature, "--top-p": self.top_p}
        return named | {"--seed": self.seed}

    @property
    def languages(self) -> dict[str, Any]:
        return {"--source-language": self.source_language, "--target-language": self.target_language}

    def search(self, model: Translator | Captioner, **tokens: Any) -> GenerationSettings:
        """The search of a model, changed as asked for."""
        return model.settings(
            num_beams=max(self.num_beams or model.settings().num_beams, self.n_best),
            num_return_sequences=self.n_best,
            max_new_tokens=self.max_new_tokens,
            length_penalty=self.length_penalty,
            no_repeat_ngram_size=self.no_repeat_ngram_size,
            **tokens,
        )


def writer_for(run: str, wishes: Wishes, say: Callable[[str], object]) -> Writer:
    """How the model of a run folder, a model folder or a Hub id writes. Raises KitError for what it cannot do."""
    if goes_on_with_text(run):
        return _completing(run, wishes)
    if is_captioner(run):
        return _captioning(run, wishes, say)
    return _translating(run, wishes, say)


def _refuse(options: dict[str, Any], what: str) -> None:
    """Raise KitError if an option is given that has no meaning here."""
    for name, value in options.items():
        if value is not None:
            raise KitError(f"{name} has no meaning for {what}")


def _completing(run: str, wishes: Wishes) -> Writer:
    """Go on with lines of text."""
    others = {"--split-sentences": wishes.split_sentences, "--attention": wishes.attention}
    _refuse(wishes.languages | others, "a language model")
    if not wishes.sample:
        _refuse(wishes.drawing, "a search; it is for --sample, which is not given")
    completer = Completer(run)
    writing = completer.writing(
        num_beams=wishes.num_beams,
        num_return_sequences=wishes.n_best,
        max_new_tokens=wishes.max_new_tokens,
        sample=wishes.sample,
        temperature=wishes.temperature,
        top_p=wishes.top_p,
        seed=wishes.seed,
        length_penalty=wishes.length_penalty,
        no_repeat_ngram_size=wishes.no_repeat_ngram_size,
        scores=wishes.scores,
    )
    at_once = 1 if wishes.at_once else LINES_AT_ONCE
    return lambda lines, **how: completer.complete(lines, writing, wishes.tokens_per_batch, at_once, **how)


def _captioning(run: str, wishes: Wishes, say: Callable[[str], object]) -> Writer:
    """Caption the pictures that lines name."""
    others = {"--split-sentences": wishes.split_sentences}
    _refuse(wishes.drawing | wishes.languages | others, f"{run}, which captions pictures: leave it out")
    captioner = Captioner(run)
    settings = wishes.search(captioner)
    fitting = wishes.tokens_per_batch // (picture_cost(captioner.model.config) * settings.num_beams)
    at_once = 1 if wishes.at_once else max(1, fitting)

    def caption(lines: Iterator[str], **how: Any) -> Iterator[list[Output]]:
        if (path := wishes.attention) is not None:
            lines = _drawn(lines, path, lambda line: draw_caption(captioner, line, path, settings=settings), say)
        return captioner.caption(lines, settings, at_once, **how)

    return caption


def _translating(run: str, wishes: Wishes, say: Callable[[str], object]) -> Writer:
    """Translate lines, or reply to them."""
    _refuse(wishes.drawing, "a model that translates")
    if wishes.split_sentences is not None and wishes.n_best > 1:
        raise KitError("--n-best has no meaning with --split-sentences, which puts together the best of each sentence")
    translator = load_translator(run)
    if isinstance(translator, Responder):
        what = "a dialogue model: a line is a turn, or a JSON list of turns"
        _refuse({"--split-sentences": wishes.split_sentences}, what)
    settings = wishes.search(translator, **translator.tokenizers.generation_tokens(wishes.target_language))
    languages: dict[str, Any] = {
        "source_language": wishes.source_language,
        "target_language": wishes.target_language,
    }

    def draw(line: str, path: Path) -> Any:
        if isinstance(translator, Responder):
            return draw_history(translator, history_of(line), path, settings)
        return draw_sentence(translator, Question(line, **languages), path, settings)

    def translate(lines: Iterator[str], **how: Any) -> Iterator[list[Output]]:
        if (path := wishes.attention) is not None:
            lines = _drawn(lines, path, lambda line: draw(line, path), say)
        at_once = 1 if wishes.at_once else LINES_AT_ONCE
        how = {"split": wishes.split_sentences, **languages, **how}
        return translator.translate(lines, settings, wishes.tokens_per_batch, at_once, **how)

    return translate


def _drawn(lines: Iterator[str], path: Path, draw: Callable[[str], Any], say: Callable[[str], object]) -> Iterator[str]:
    """The lines as they are, once the attention of the first one is drawn."""
    first = next(lines, None)
    if first is None:
        raise KitError("there is no line to draw the attention of: the input is empty")
    if not draw(first):
        raise KitError("--attention: this model has none; it sees what it reads through a fixed state only")
    say(f"attention of the first line: {path}")
    return chain([first], lines)
