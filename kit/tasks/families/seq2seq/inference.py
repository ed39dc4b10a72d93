"""Translate lines of text with a trained model: in order, streaming, in memory that does not grow with the file."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import regex
import torch

from kit.data.batching.plan import length_sorted_batches
from kit.data.batching.ragged import RaggedTokens, TokenPairs
from kit.data.text.sentences import Sentence, join_sentences, split_sentences
from kit.data.text.tokenizer import Tokenizers, load_pretrained_tokenizers
from kit.decoding.search import Hypothesis, search
from kit.decoding.settings import GenerationSettings, saved_settings
from kit.errors import DataError, KitError
from kit.prediction.bad_lines import FAILED, NOTHING, BadLines, Fault, in_halves, longer_than
from kit.prediction.output import EMPTY, Output
from kit.pretrained.loading import load_seq2seq, weights_dir
from kit.pretrained.positions import encode_within, position_limit

LINES_AT_ONCE = 1024
CHARACTERS_AT_ONCE = 2**20
LONGEST_SOURCE = 8192
"""Most tokens that are read at once, where the model itself has no limit."""
CHARACTERS_PER_TOKEN = 16
"""More than any language has on average: what is beyond need not be cut into tokens, which takes time and memory."""

UNREADABLE = regex.compile(r"[\s\p{Cc}\p{Cf}\p{Cs}\ufffd]*")


@dataclass
class Result:
    """What became of a text."""

    outputs: list[Output]
    fault: Fault | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Request:
    """How lines are to be translated."""

    settings: GenerationSettings
    tokens_per_batch: int
    source_language: str | None
    target_language: str | None
    split: str | None
    bad_lines: BadLines | None
    progress: Callable[[int], object]


class Translator:
    """A trained model and its tokenizers, ready to translate."""

    def __init__(self, name_or_path: str | Path, device: str | None = None):
        """`name_or_path` is a run folder, a model folder or a Hub id; by default a GPU is used if there is one."""
        self.model = load_seq2seq(name_or_path).eval()
        self.model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.tokenizers = load_pretrained_tokenizers(weights_dir(name_or_path))
        self.positions = position_limit(self.model.config)

    def settings(self, **changes: object) -> GenerationSettings:
        """The search that the model was saved with, with changes."""
        return saved_settings(self.model, **changes)

    def translate(
        self,
        lines: Iterable[str],
        settings: GenerationSettings | None = None,
        tokens_per_batch: int = 8192,
        lines_at_once: int = LINES_AT_ONCE,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        split: str | None = None,
        bad_lines: BadLines | None = None,
        progress: Callable[[int], object] = lambda lines: None,
    ) -> Iterator[list[Output]]:
        """The best outputs of each line, in the order of the lines; an empty line gives one empty output.

        Lines are read in portions and sorted by length within each, so that little is padded; no more than a portion is
        ever held. With `split`, a language, each line is split into sentences that are translated one by one;
        its score is the mean of theirs. `progress` is called with the number of lines that are done.

        A line that the model cannot read, or not as a whole, is an error; with `bad_lines` it is noted there, and
        translated as far as possible.
        """
        settings = settings or self.settings()
        if split is not None and settings.num_return_sequences > 1:
            raise KitError("only the best output of a sentence can be put together to a paragraph: ask for one")
        # languages that the model does not have, or must be told, are noticed before anything is read
        settings = replace(settings, **self.tokenizers.generation_tokens(target_language))
        self.tokenizers.encode_source([""], source_language, target_language)
        request = Request(settings, tokens_per_batch, source_language, target_language, split, bad_lines, progress)
        return self._stream(iter(lines), request, lines_at_once)

    def _stream(self, lines: Iterator[str], request: Request, lines_at_once: int) -> Iterator[list[Output]]:
        read = 0
        while portion := take(lines, lines_at_once, CHARACTERS_AT_ONCE):
            yield from self._portion(portion, read, request)
            read += len(portion)

    def _portion(self, lines: list[str], read: int, request: Request) -> Iterator[list[Output]]:
        """The outputs of some lines, of which the first has the number `read` + 1."""
        sentences = [sentences_of(line, request.split) for line in lines]
        owners = [line for line, own in enumerate(sentences) for _ in own]
        left = [len(own) for own in sentences]
        request.progress(left.count(0))

        def done(place: int) -> None:
            left[owners[place]] -= 1
            if left[owners[place]] == 0:
                request.progress(1)

        results = iter(self._results([sentence.text for own in sentences for sentence in own], request, done))
        for number, (line, own) in enumerate(zip(lines, sentences, strict=True), start=read + 1):
            found = [next(results) for _ in own]
            faults = {result.fault: result.error for result in found if result.fault is not None}
            if line.strip() and not own:
                faults[NOTHING] = None
            for fault, error in faults.items():
                if request.bad_lines is None:
                    raise DataError(f"line {number} {fault.what}. With bad_lines it is noted, and translation goes on")
                request.bad_lines.add(fault, number, error)
            yield put_together(own, [result.outputs for result in found])

    def _results(self, texts: list[str], request: Request, done: Callable[[int], None]) -> list[Result]:
        """What became of each text; `done` is called with the place of each as soon as that is known."""
        results = [Result([EMPTY]) for _ in texts]
        ids = self._encode(texts, request, results)
        places = np.array([place for place, own in enumerate(ids) if own is not None], dtype=np.int64)
        pairs = self._pairs([own for own in ids if own is not None])
        for place in set(range(len(texts))) - set(places.tolist()):
            done(place)
        budget = max(1, request.tokens_per_batch // request.settings.num_beams)
        work = partial(self._search, pairs, request=request)
        for indices in length_sorted_batches(pairs.source.lengths, budget):
            for index, found in in_halves(indices, work, raising=request.bad_lines is None):
                result = results[places[index]]
                if isinstance(found, Exception):
                    result.fault, result.error = FAILED, found
                else:
                    result.outputs = outputs_of(self.tokenizers, found)
                done(int(places[index]))
        return results

    def _pairs(self, ids: list[list[int]]) -> TokenPairs:
        """Sources to search outputs for."""
        return TokenPairs(RaggedTokens(ids), RaggedTokens([] for _ in ids))

    def _encode(self, texts: list[str], request: Request, results: list[Result]) -> list[list[int] | None]:
        """The tokens of each text, as many as can be read at once; None where there are none to be had."""
        limit = self.positions or LONGEST_SOURCE
        languages = request.source_language, request.target_language
        most = limit * CHARACTERS_PER_TOKEN
        short = [text[:most] for text in texts]
        try:
            encoded, long = encode_within(limit, self.tokenizers.encode_source, short, *languages)
        except Exception as error:  # such as a half of a surrogate pair, which is no character
            if isinstance(error, KitError) or request.bad_lines is None:
                raise
            if len(texts) == 1:
                results[0].fault, results[0].error = FAILED, error
                return [None]
            parts = [self._encode([text], request, [result]) for text, result in zip(texts, results, strict=True)]
            return [part[0] for part in parts]
        for place in {*long, *(place for place, text in enumerate(texts) if len(text) > most)}:
            results[place].fault = longer_than(limit, "tokens")
        return list(encoded)

    def _search(self, pairs: TokenPairs, indices: np.ndarray, request: Request) -> list[list[Hypothesis]]:
        batch = pairs.batch(indices, self.tokenizers.source.pad_token_id)
        batch = {name: part.to(self.model.device) for name, part in batch.items()}
        return search(self.model, batch, request.settings)


def outputs_of(tokenizers: Tokenizers, hypotheses: list[Hypothesis]) -> list[Output]:
    """Hypotheses as text."""
    texts = tokenizers.decode([hypothesis.tokens for hypothesis in hypotheses])
    return [
        Output(text, hypothesis.score, hypothesis.finished) for text, hypothesis in zip(texts, hypotheses, strict=True)
    ]


def take(lines: Iterator[str], count: int, characters: int) -> list[str]:
    """The next lines: at most `count`, and not much more than so many characters."""
    taken: list[str] = []
    for line in islice(lines, count):
        taken.append(line)
        characters -= len(line)
        if characters <= 0:
            break
    return taken


def sentences_of(line: str, language: str | None) -> list[Sentence]:
    """What of a line is translated: nothing if there is nothing to read, all, or the sentences of a language."""
    if UNREADABLE.fullmatch(line):
        return []
    return [Sentence("", line, "")] if language is None else split_sentences(line, language)


def put_together(sentences: list[Sentence], outputs: list[list[Output]]) -> list[Output]:
    """The outputs of a line from those of its sentences."""
    if len(outputs) < 2:
        return outputs[0] if outputs else [EMPTY]
    best = [found[0] for found in outputs]
    return [
        Output(
            join_sentences(sentences, [output.text for output in best]),
            sum(output.score for output in best) / len(best),
            all(output.finished for output in best),
        )
    ]
