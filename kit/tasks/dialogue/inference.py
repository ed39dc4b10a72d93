"""Reply to dialogues with a trained model: lines of a file, or one conversation."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from kit.data.batching.ragged import TokenPairs
from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings
from kit.errors import KitError, RunError
from kit.pipelines.dialogue import SETTINGS, reads_turns, recent_turns
from kit.plots.attention import attention_figure
from kit.plots.curves import save_figure
from kit.prediction.bad_lines import FAILED, longer_than
from kit.pretrained.loading import load_config
from kit.tasks.dialogue.data import Conversations
from kit.tasks.families.seq2seq.inference import CHARACTERS_PER_TOKEN, LONGEST_SOURCE, Request, Result, Translator


class Responder(Translator):
    """A trained dialogue model and its tokenizer, ready to reply."""

    def __init__(self, name_or_path: str | Path, device: str | None = None):
        super().__init__(name_or_path, device)
        config = self.model.config
        settings = getattr(config, SETTINGS, None)
        if settings is None:
            raise RunError(f"{name_or_path} is no dialogue model: it was not trained by a recipe with task: dialogue")
        self.max_turns: int | None = settings.get("max_turns")
        self.apart: bool = reads_turns(config)

    def tokens_of(self, turns: list[str]) -> tuple[list[list[int]], bool]:
        """The tokens of the turns that are read, and whether something had to be left out because it is too long."""
        limit = LONGEST_SOURCE if self.apart else self.positions or LONGEST_SOURCE
        most = limit * CHARACTERS_PER_TOKEN
        read = turns if self.max_turns is None else turns[-self.max_turns :]
        short = [turn[-most:] for turn in read]
        kept, cut = recent_turns(self.tokenizers.encode_source(short), None, limit)
        return kept, cut or short != read

    def reply(self, turns: list[str], settings: GenerationSettings | None = None) -> str:
        """The next turn."""
        batch = self._pairs([self.tokens_of(turns)[0]]).batch(np.array([0]), self.tokenizers.source.pad_token_id)
        batch = {name: part.to(self.model.device) for name, part in batch.items()}
        best = search(self.model, batch, settings or self.settings())[0][0]
        return self.tokenizers.decode([best.tokens])[0]

    def _pairs(self, ids: list[Any]) -> TokenPairs:
        return Conversations.of(ids, [[] for _ in ids], self.apart)

    def _encode(self, texts: list[str], request: Request, results: list[Result]) -> list[Any]:
        found: list[Any] = []
        for text, result in zip(texts, results, strict=True):
            try:
                tokens, cut = self.tokens_of(history_of(text))
            except Exception as error:  # such as a half of a surrogate pair, which is no character
                if isinstance(error, KitError) or request.bad_lines is None:
                    raise
                result.fault, result.error = FAILED, error
                found.append(None)
                continue
            if cut:
                result.fault = longer_than(LONGEST_SOURCE if self.apart else self.positions or LONGEST_SOURCE, "tokens")
            found.append(tokens)
        return found


def history_of(line: str) -> list[str]:
    """The turns in a line: a JSON list of texts, or else the line itself, as a dialogue of one turn."""
    if line.lstrip().startswith("["):
        try:
            turns = json.loads(line)
        except ValueError:
            return [line]
        if isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns):
            return turns
    return [line]


def load_translator(run: str | Path) -> Translator:
    """What answers lines of text with the model of a run, a folder or the Hub."""
    return Responder(run) if hasattr(load_config(run), SETTINGS) else Translator(run)


def draw_history(
    responder: Responder, turns: list[str], path: Path, settings: GenerationSettings | None = None
) -> Path | None:
    """A picture of what the model looks at for each token of its reply: turns, or tokens if it reads them as one text.
    None if it has no attention."""
    kept, _ = responder.tokens_of(turns)
    source = responder.tokenizers.source
    batch = responder._pairs([kept]).batch(np.array([0]), source.pad_token_id)
    batch = {name: part.to(responder.model.device) for name, part in batch.items()}
    best = search(responder.model, batch, settings or responder.settings(), attention=True)[0][0]
    if best.attention is None:
        return None
    tokens = [source.decode([token]) for turn in kept for token in turn]
    labels = turns[-len(kept) :] if responder.apart else tokens
    written = [responder.tokenizers.target.decode([token]) for token in best.tokens]
    names = ("turns" if responder.apart else "tokens of all turns", "reply")
    figure = attention_figure(best.attention.cpu(), labels, written, names=names, of_texts=responder.apart)
    return save_figure(figure, path)
