"""What the stages of a task hand to one another, as immutable values: the state of a model, and encoded examples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from kit.data.batching.ragged import RaggedTokens
from kit.data.text.tokenizer import Tokenizers


@dataclass(frozen=True)
class TaskState:
    """What the training data and the tokenizers determine about a model.

    `Task.fit` computes it from the data; `Task.restore` reads it from a trained model.
    """

    tokenizers: Tokenizers
    """Completely configured: nothing changes them afterwards."""

    config: PreTrainedConfig
    """The complete configuration of the model: vocabulary, labels, and the settings of the task."""


class Examples(Protocol):
    """The encoded examples of a split."""

    @property
    def truncated(self) -> int:
        """Number of examples that were truncated to what the model can read."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class EvaluatedSplit:
    """A finished model and its evaluation on a split, from which figures are drawn."""

    model_folder: Path
    split: str
    results: Mapping[str, Any]
    """The figures of the split, as results.json has them."""
    predictions: Sequence[Mapping[str, Any]]
    rows: Callable[[], Dataset]
    """Returns the rows of the split, which a finished run must load. Raises DataError if they are not available."""


S = TypeVar("S", bound=TaskState)
E = TypeVar("E", bound=Examples)


@dataclass(frozen=True)
class Encoded(Generic[E]):
    """The encoded examples of one split, with an account of the rows that were dropped on the way."""

    examples: E
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of training examples that each filter dropped, by filter."""
    kept: np.ndarray | None = None
    """Indices of the rows that passed the filters; None for all of them."""
    notes: tuple[str, ...] = ()
    """Notes on the split for the terminal and the model card."""


@dataclass(frozen=True)
class TokenView:
    """Tokens of a batch for display: token ids (batch, length), and a mask that is false for padding."""

    tokenizer: PreTrainedTokenizerBase
    ids: Tensor
    mask: Tensor


@dataclass(frozen=True)
class TextTokens:
    """The tokens of one text per example, such as the sources, for statistics."""

    lists: RaggedTokens
    tokenizer: PreTrainedTokenizerBase
    special: int = 0
    """Number of tokens that the tokenizer adds to each text."""
    column: str | None = None
    """Column of the rows with the texts: list i holds the tokens of row i. None if a row has no text of its own."""
    as_target: bool = False
    """Whether the tokenizer encodes the text as a target."""
    full_lengths: np.ndarray | None = None
    """Number of tokens of each text before truncation, where that differs."""
