"""Translate lines of text with an encoder-decoder."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from transformers import AutoModelForSeq2SeqLM

from kit.data.batching.ragged import RaggedTokens, TokenPairs
from kit.data.text.sentences import Sentence, join_sentences, split_sentences
from kit.decoding.search import search
from kit.errors import KitError
from kit.prediction.engine import Encoded
from kit.prediction.issues import LineIssues, longer_than
from kit.prediction.options import SAMPLING, GenerateOptions, PlotOptions
from kit.prediction.text import (
    BLANK,
    CHARACTERS_PER_TOKEN,
    MAX_SOURCE_TOKENS,
    Output,
    TextPredictor,
    encode_blank,
)
from kit.pretrained.positions import encode_truncated
from kit.tasks.families.seq2seq.attention_weights import Question
from kit.tasks.families.seq2seq.plots import Maps, figures_of_kinds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class SplitLine(Encoded[list[int]]):
    """A line whose units are its sentences."""

    sentences: list[Sentence] | None = None


class Seq2SeqPredictor(TextPredictor[Any]):
    """An encoder-decoder that reads text."""

    auto_class: ClassVar[Any] = AutoModelForSeq2SeqLM

    @property
    def max_source_tokens(self) -> int:
        """Maximum number of tokens of a source; longer ones are truncated."""
        return self.positions or MAX_SOURCE_TOKENS

    def configure(self, options: GenerateOptions) -> None:
        super().configure(options)
        self.settings = options.seq2seq_settings(self.model, **self.language_tokens(options))
        rows = max(self.settings.num_beams, self.settings.num_return_sequences)
        self.tokens_per_batch = max(1, options.tokens_per_batch // rows)

    def language_tokens(self, options: GenerateOptions) -> dict[str, Any]:
        """The token settings for the target language; empty if none is chosen yet, which `start` reports if one is
        needed."""
        languages = self.tokenizers.languages
        if languages.targets and languages.default_target is None and options.target_language is None:
            return {}
        return self.tokenizers.generation_tokens(options.target_language)

    def start(self) -> None:
        """Seed sampling. Raises RunError if a language is missing or unknown."""
        torch.manual_seed(self.settings.seed)
        self.tokenizers.generation_tokens(self.options.target_language)
        self.tokenizers.encode_source([""], self.options.source_language, self.options.target_language)

    def pairs(self, units: list[Any]) -> TokenPairs:
        """Make examples of encoded sources, with empty targets."""
        return TokenPairs(RaggedTokens(units), RaggedTokens([] for _ in units))

    def lengths(self, units: list[Any]) -> np.ndarray:
        return self.pairs(units).source.lengths

    def predict(self, units: list[Any]) -> list[list[Output]]:
        batch = self.pairs(units).batch(np.arange(len(units)), self.tokenizers.source.pad_token_id)
        batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
        return [self.outputs(best) for best in search(self.model, batch, self.settings)]


class Translator(Seq2SeqPredictor):
    """A trained model and its tokenizers: `next(Translator("runs/dates_rnn").translate(["3 maj 1984"]))[0].text`."""

    description: ClassVar[str] = "a translation model"
    supported: ClassVar[frozenset[str]] = frozenset(
        {"source_language", "target_language", "split_sentences", "attention", *SAMPLING}
    )
    plot_options: ClassVar[frozenset[str]] = frozenset(
        {"sentence", "target", "kind", "layer", "head", "source_language", "target_language", "output"}
    )
    action: ClassVar[str] = "translated"

    def translate(
        self,
        lines: Iterable[str],
        *,
        issues: LineIssues | None = None,
        progress: Callable[[int], object] = lambda lines: None,
        **options: Any,
    ) -> Iterator[list[Output]]:
        """Yield the best outputs of each line, in order; an empty line has one empty output.

        Lines are read in portions, so that any number of them fits into memory. `options` are fields of
        `GenerateOptions`, such as `num_beams=5` or `target_language="fr"`. With `split_sentences`, a language, each
        sentence is translated separately, and the score of the line is the mean of their scores. A line that is too
        long or unreadable raises DataError; with `issues` it is counted there and translated as far as possible.
        """
        return (self.with_options(**options) if options else self).stream(lines, issues, progress)

    def configure(self, options: GenerateOptions) -> None:
        """Also set `languages`, which `start` checks: a model may be opened before a language is chosen."""
        if options.split_sentences is not None and options.n_best > 1:
            raise KitError(
                "--n-best has no effect with --split-sentences, which joins the best output of each sentence"
            )
        super().configure(options)
        self.languages = options.source_language, options.target_language

    def encode(self, lines: list[str]) -> list[Encoded[list[int]]]:
        """Tokenize each line, sentence by sentence where lines are split. Text that is too long is truncated and
        reported."""
        sentences = [self._sentences(line) for line in lines]
        texts = [sentence.text for line in sentences for sentence in line]
        limit = self.max_source_tokens
        max_characters = limit * CHARACTERS_PER_TOKEN
        ids, truncated = encode_truncated(
            limit, self.tokenizers.encode_source, [text[:max_characters] for text in texts], *self.languages
        )
        too_long = {*truncated, *(index for index, text in enumerate(texts) if len(text) > max_characters)}
        encoded: list[Encoded[list[int]]] = []
        start = 0
        for line, line_sentences in zip(lines, sentences, strict=True):
            span = range(start, start + len(line_sentences))
            start = span.stop
            issue = longer_than(limit, "tokens") if too_long.intersection(span) else None
            units = [ids[index] for index in span]
            encoded.append(SplitLine(units, issue, sentences=line_sentences) if units else encode_blank(line))
        return encoded

    def _sentences(self, line: str) -> list[Sentence]:
        if BLANK.fullmatch(line):
            return []
        language = self.options.split_sentences
        return [Sentence("", line, "")] if language is None else split_sentences(line, language)

    def combine(self, encoded: Encoded[Any], outputs: list[list[Output]]) -> list[Output]:
        if len(outputs) < 2:
            return super().combine(encoded, outputs)
        assert isinstance(encoded, SplitLine)
        best = [hypotheses[0] for hypotheses in outputs]
        text = join_sentences(encoded.sentences or [], [output.text for output in best])
        return [Output(text, sum(output.score for output in best) / len(best), all(o.finished for o in best))]

    def line_figure(self, line: str) -> "Figure | None":
        question = Question(line, None, *self.languages)
        return figures_of_kinds(self.model, self.tokenizers, question, settings=self.settings).get("attention")

    def attention_figures(self, options: PlotOptions, examples: Callable[[], list[Any]]) -> "dict[str, Figure]":
        """Plot the attention for the sentence in `options`, or else for the first example; figures by file name."""
        options.require("sentence", "target", "source_language", "target_language")
        maps = Maps.of(options.layer, options.head)
        if options.sentence is not None:
            question = Question(options.sentence, options.target, options.source_language, options.target_language)
        else:
            question = examples()[0]
        return figures_of_kinds(self.model, self.tokenizers, question, options.kind or "cross", maps)
