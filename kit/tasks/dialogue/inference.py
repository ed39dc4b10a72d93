"""Reply to dialogues: lines of a file, or one conversation."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kit.data.batching.ragged import TokenPairs
from kit.decoding.search import search
from kit.errors import KitError, RunError
from kit.pipelines.dialogue import SETTINGS, reads_turns, recent_turns
from kit.plots.attention import attention_figure
from kit.prediction.engine import Encoded
from kit.prediction.issues import longer_than
from kit.prediction.options import SAMPLING, PlotOptions
from kit.prediction.text import BLANK, CHARACTERS_PER_TOKEN, MAX_SOURCE_TOKENS, encode_blank
from kit.tasks.dialogue.examples import Conversations
from kit.tasks.families.seq2seq.inference import Seq2SeqPredictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Responder(Seq2SeqPredictor):
    """A dialogue model and its tokenizer. A line is a turn, or a JSON list of turns."""

    description: ClassVar[str] = "a dialogue model"
    supported: ClassVar[frozenset[str]] = frozenset({"attention", *SAMPLING})
    action: ClassVar[str] = "replied to"
    plot_options: ClassVar[frozenset[str]] = frozenset({"sentence", "kind", "output"})
    chats: ClassVar[bool] = True

    def read_config(self) -> None:
        if not hasattr(self.config, SETTINGS):
            raise RunError(f"{self.folder.name} is not a dialogue model: it was not trained by a recipe for dialogues")
        self.max_turns: int | None = getattr(self.config, SETTINGS).get("max_turns")
        self.separate_turns: bool = reads_turns(self.config)

    @property
    def max_source_tokens(self) -> int:
        """The maximum number of tokens of all turns together; not limited by positions if turns are encoded
        separately."""
        return MAX_SOURCE_TOKENS if self.separate_turns else super().max_source_tokens

    def tokenize(self, turns: list[str]) -> tuple[list[list[int]], bool]:
        """Tokenize the turns that the model reads; also returns whether any text was left out for its length."""
        max_characters = self.max_source_tokens * CHARACTERS_PER_TOKEN
        recent = turns if self.max_turns is None else turns[-self.max_turns :]
        short = [turn[-max_characters:] for turn in recent]
        tokens, truncated = recent_turns(self.tokenizers.encode_source(short), None, self.max_source_tokens)
        return tokens, truncated or short != recent

    def reply(self, turns: list[str]) -> str:
        return self.predict([self.tokenize(turns)[0]])[0][0].text

    def pairs(self, units: list[Any]) -> TokenPairs:
        return Conversations.of(units, [[] for _ in units], self.separate_turns)

    def encode(self, lines: list[str]) -> list[Encoded[list[list[int]]]]:
        return [encode_blank(line) if BLANK.fullmatch(line) else self._encode_line(line) for line in lines]

    def _encode_line(self, line: str) -> Encoded[list[list[int]]]:
        tokens, truncated = self.tokenize(turns_in(line))
        return Encoded([tokens], longer_than(self.max_source_tokens, "tokens") if truncated else None)

    def line_figure(self, line: str) -> "Figure | None":
        return self.turns_figure(turns_in(line))

    def attention_figures(self, options: PlotOptions, examples: Callable[[], list[Any]]) -> "dict[str, Figure]":
        if options.kind not in (None, "cross"):
            raise KitError(f"--kind {options.kind}: `kit plot` shows the cross-attention of dialogue models only")
        line = options.sentence if options.sentence is not None else examples()[0].sentence
        figure = self.line_figure(line)
        return {} if figure is None else {"attention": figure}

    def turns_figure(self, turns: list[str]) -> "Figure | None":
        """Plot the attention over turns, or over tokens if the model reads all turns as one text; None if it has no
        attention."""
        tokens, _ = self.tokenize(turns)
        source = self.tokenizers.source
        batch = self.pairs([tokens]).batch(np.array([0]), source.pad_token_id)
        batch = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
        best = search(self.model, batch, self.settings, attention=True)[0][0]
        if best.attention is None:
            return None
        source_tokens = [source.decode([token]) for turn in tokens for token in turn]
        labels = turns[-len(tokens) :] if self.separate_turns else source_tokens
        written = [self.tokenizers.target.decode([token]) for token in best.tokens]
        weights = best.attention.cpu()  # (heads, reply, tokens or turns)
        if self.separate_turns:  # turns are rows, where long texts can be read
            return attention_figure(weights.mT, written, labels, names=("reply", "turns"), rows_are_texts=True)
        return attention_figure(weights, labels, written, names=("tokens of all turns", "reply"))


def turns_in(line: str) -> list[str]:
    """The turns in a line: a JSON list of texts, or the line itself as the only turn."""
    if line.lstrip().startswith("["):
        try:
            turns = json.loads(line)
        except ValueError:
            return [line]
        if isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns):
            return turns
    return [line]
