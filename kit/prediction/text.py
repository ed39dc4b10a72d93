"""Predictors that write text for lines: what `kit generate` and `kit chat` run."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TextIO

import regex

from kit.data.text.tokenizer import Tokenizers
from kit.decoding.search import Hypothesis
from kit.decoding.settings import GenerationSettings
from kit.errors import RunError
from kit.prediction.engine import PORTION_SIZE, Encoded, Predictor, U
from kit.prediction.issues import UNREADABLE_LINE
from kit.prediction.options import COMMON_OPTIONS, GenerateOptions, PlotOptions, reject_unsupported
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import load_for_inference
from kit.pretrained.positions import position_limit
from kit.pretrained.vocabulary import check_folder
from kit.system.json_files import to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_OPTIONS = GenerateOptions()

BLANK = regex.compile(r"[\s\p{Cc}\p{Cf}\p{Cs}\ufffd]*")
"""A text without anything to read: spaces, control characters, replaced bytes."""

LINE_BREAK = regex.compile(r"\r\n|[\r\n]")
"""What ends a line of a file. Other separators, such as U+2028, are characters of the text."""

MAX_SOURCE_TOKENS = 8192
"""Most tokens of an input for a model without a limit."""
CHARACTERS_PER_TOKEN = 16
"""More than any language has on average; tokenizing what exceeds the limit anyway would take time and memory."""


@dataclass(frozen=True)
class Output:
    """One text that a model wrote for a line."""

    text: str
    score: float
    finished: bool


EMPTY = Output("", 0.0, True)


class TextPredictor(Predictor[Any, U, list[Output]]):
    """A model that writes one or more texts for each line, best first."""

    auto_class: ClassVar[Any]
    """The class of transformers that loads the model."""
    description: ClassVar[str]
    """The name of the model in messages, such as "a translation model"."""
    supported: ClassVar[frozenset[str]] = frozenset()
    """Fields of GenerateOptions that it supports, beside the common ones."""
    chats: ClassVar[bool] = False
    """Whether it replies to the turns of a dialogue."""
    plot_options: ClassVar[frozenset[str]] = frozenset()
    """Fields of PlotOptions that it supports."""
    settings: GenerationSettings
    unknown_tokens: int = 0
    """Unknown tokens in what the model has written so far."""

    empty = [EMPTY]  # noqa: RUF012

    def __init__(
        self,
        name_or_path: str | Path | ModelFolder,
        options: GenerateOptions = DEFAULT_OPTIONS,
        device: str | None = None,
    ):
        """`name_or_path` is a run folder, a model folder or a Hub id; the default device is that of training."""
        self.folder = ModelFolder.open(name_or_path)
        self.config = self.folder.config
        self.read_config()
        self.model: Any = load_for_inference(self.folder, self.auto_class, device)
        check_folder(self.folder.name, self.model, self.tokenizers)
        self.positions = position_limit(self.config)
        self.configure(options)

    def read_config(self) -> None:
        """Take what matters from the configuration. Raises RunError if the model is of another kind."""
        return None

    @property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers of the model."""
        return self.folder.tokenizers

    def configure(self, options: GenerateOptions) -> None:
        """Check the options and set `settings`. Raises KitError for what the model cannot do."""
        reject_unsupported(options, COMMON_OPTIONS | self.supported, f"{self.folder.name}, {self.description}")
        self.options = options
        self.portion_size = options.portion_size or PORTION_SIZE

    def with_options(self, **changes: Any) -> Self:
        """A predictor with the same model and other options, the fields of GenerateOptions."""
        other = copy.copy(self)
        other.configure(replace(self.options, **changes))
        return other

    def outputs(self, hypotheses: list[Hypothesis]) -> list[Output]:
        """Hypotheses as text."""
        sequences = [hypothesis.tokens for hypothesis in hypotheses]
        self.unknown_tokens += self.tokenizers.count_unknown(sequences)
        return [
            Output(text, hypothesis.score, hypothesis.finished)
            for text, hypothesis in zip(self.tokenizers.decode(sequences), hypotheses, strict=True)
        ]

    def notes(self) -> list[str]:
        """Messages about the outputs, to be printed when all are written."""
        if not self.unknown_tokens:
            return []
        token = self.tokenizers.target.unk_token
        plural = "s stand for words that are" if self.unknown_tokens > 1 else " stands for a word that is"
        return [f"{self.unknown_tokens:,} unknown token{plural} not in the vocabulary, written as {token}"]

    def line_figure(self, line: Any) -> "Figure | None":
        """The attention while the model writes its output for a line; None if the model has no attention."""
        raise NotImplementedError

    def attention_figures(self, options: PlotOptions, examples: Callable[[], list[Any]]) -> "dict[str, Figure]":
        """The figures of `kit plot` by name: of the example that the user gives, or of those of the run.

        Empty for a model without attention. Raises KitError for what the model cannot show.
        """
        raise RunError(f"{self.folder.name} is {self.description}: `kit plot` shows no attention of such models")

    def reply(self, turns: list[str]) -> str:
        """The next turn of a dialogue, for models that chat."""
        raise NotImplementedError


def encode_blank(line: str) -> Encoded[Any]:
    """A line without anything to read; it is an issue unless it is empty."""
    return Encoded([], UNREADABLE_LINE if line.strip() else None)


def write_texts(outputs: Iterator[list[Output]], file: TextIO, details: bool, as_json: bool) -> int:
    """Write one text per line; with `details` the columns line, rank, score, finished, text; or JSON lines.

    Returns the number of lines that were read.
    """
    number = 0
    for number, hypotheses in enumerate(outputs, start=1):
        for rank, output in enumerate(hypotheses, start=1):
            text = LINE_BREAK.sub(" ", output.text.strip("\r\n"))  # one line for each output
            if as_json:
                print(to_json({"line": number, "rank": rank, **vars(output)}), file=file)
            elif details:
                finished = "yes" if output.finished else "no"
                print(number, rank, f"{output.score:.6f}", finished, text, sep="\t", file=file)
            else:
                print(text, file=file)
    return number
