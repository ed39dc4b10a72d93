"""What a task is to the rest of kit: all that differs between tasks, station by station on the way of the data."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from kit.cards.card import write_card
from kit.data.batching.plan import BatchPlan, EpochPlan, Plan
from kit.data.batching.ragged import RaggedTokens
from kit.data.splits import Splits, load_splits
from kit.data.steps import RowSteps
from kit.data.streaming.plan import StreamCounts, StreamEncoder, StreamPlan, single_process
from kit.data.text.tokenizer import Tokenizers
from kit.errors import RecipeError, RunError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.prediction.engine import Predictor
from kit.pretrained.loading import ModelFolder
from kit.recipe.base import Recipe
from kit.training.objective import Batch, Objective
from kit.training.processes import gather
from kit.verify.proof import Proof
from kit.verify.subject import Subject

MakeBatch = Callable[[np.ndarray, np.random.Generator], Batch]
"""From what the plan gives for a micro-batch to tensors; what is random in them comes from the generator."""


class Examples(Protocol):
    """The encoded examples of a split."""

    @property
    def cut(self) -> int:
        """Number of examples that were too long for the model, and end early."""

    def __len__(self) -> int: ...


E = TypeVar("E", bound=Examples)


@dataclass(frozen=True)
class Encoded(Generic[E]):
    """The examples of each split as token ids, and how many training examples each filter left out."""

    splits: dict[str, E]
    left_out: dict[str, int] = field(default_factory=dict)
    kept: np.ndarray | None = None
    """Indices of the training rows that passed the filters; None for all of them."""


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
    special: int = 0  # tokens that the tokenizer adds to each text
    column: str | None = None  # of the rows, where list i is the text of row i
    as_target: bool = False  # whether the tokenizer encodes it as a target


class Task(ABC, Generic[E]):
    """What a recipe of this task does at each station."""

    card_template: ClassVar[str]
    """Name of the template of the model card, in model_cards/."""

    command: ClassVar[Literal["generate", "predict", "embed"]] = "generate"
    """The command that runs trained models of this task."""

    proofs: ClassVar[Sequence[Proof]]
    """What `kit verify` proves about models of this task."""

    new_parts: Sequence[str] = ()
    """Names of parts of the model that has been built that a pretrained one has no weights for, such as its head."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Tasks of `pipeline()` whose code is saved with the model, because transformers does not have them."""
        return ()

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        """Whether a trained model with this configuration belongs to the task; registry order decides between tasks."""
        return False

    @classmethod
    def predictor(cls, folder: ModelFolder, options: Any) -> Predictor[Any, Any, Any]:
        """What runs a trained model in `command`. Raises KitError for options that the model does not support."""
        raise RunError(f"{folder.name} writes no text and predicts no rows: use `kit {cls.command}`")

    def row_steps(self) -> RowSteps:
        """What the task does to rows while its data is loaded."""
        return RowSteps(self.recipe.data)

    # ---- text → tokens → batches -------------------------------------------------------------------------------------

    def load(self) -> Splits:
        """The data of the recipe."""
        return load_splits(self.recipe.data, self.row_steps())

    @property
    def identity(self) -> list[str]:
        """The columns of the loaded data that make two examples the same one if they are equal; the first is what a
        model reads."""
        return self.row_steps().identity

    @abstractmethod
    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        """Train them on the training split, or load those that the recipe names."""

    def load_tokenizers(self, folder: Path) -> Tokenizers:
        """Those of a trained model."""
        return Tokenizers.load(folder)

    def vocabulary_rows(self, splits: Splits) -> Dataset:
        """The training rows that vocabularies are learned from."""
        most = self.recipe.tokenizer.train_examples
        if splits.stream is not None:
            return splits.stream.sample(most)
        train = splits.datasets["train"]
        return train if len(train) <= most else train.select(np.arange(most) * len(train) // most)

    @abstractmethod
    def encode(self, splits: Splits, tokenizers: Tokenizers) -> Encoded[E]:
        """Every split as examples; a stream is encoded as it is read."""

    @abstractmethod
    def encode_split(self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig) -> E:
        """The rows of a split that is evaluated as examples, for a model of this configuration; all of them."""

    @abstractmethod
    def plan(self, examples: E, seed: int | None = None) -> EpochPlan:
        """The plan of training batches, by the seed of the recipe or another."""

    def plan_lengths(self, sides: list[np.ndarray], seed: int | None = None) -> BatchPlan:
        """The plan for examples of which only the lengths are known, side by side."""
        train = self.recipe.train
        return BatchPlan(
            sides,
            seed=train.seed if seed is None else seed,
            size=train.tokens_per_batch or train.batch_size or 1,
            unit="tokens" if train.tokens_per_batch is not None else "examples",
            micro_batches=train.micro_batches,
        )

    def making(self, tokenizers: Tokenizers) -> StreamEncoder[E]:
        """What is done to the rows of a stream, in another thread."""
        raise RecipeError(f"data.streaming: {self.recipe.task} needs its training data in memory. Leave it out.")

    def stream_plan(
        self, splits: Splits, encoded: Encoded[E], tokenizers: Tokenizers, process: int = 0, processes: int = 1
    ) -> StreamPlan[E]:
        """The plan of training batches over a stream; it counts in `splits` and `encoded` what is left out."""
        assert splits.stream is not None
        train = self.recipe.train
        return StreamPlan(
            splits.stream,
            self.making(copy.deepcopy(tokenizers)),  # one that encodes in another thread must not be used in this
            seed=train.seed,
            buffer_size=self.recipe.data.buffer_size,
            micro_batches=train.micro_batches,
            counts=StreamCounts(splits.report.splits["train"], encoded.left_out),
            process=process,
            processes=processes,
            exchange=(lambda mine: gather([mine])) if processes > 1 else single_process,
        )

    @abstractmethod
    def batch_maker(self, encoded: Encoded[E], tokenizers: Tokenizers, plan: Plan) -> MakeBatch:
        """How training batches are made of examples."""

    @abstractmethod
    def token_lists(self, examples: E, tokenizers: Tokenizers) -> dict[str, TextTokens]:
        """The tokens of each text of the examples, by name."""

    def describe_batch(self, batch: Batch, tokenizers: Tokenizers) -> dict[str, TokenView]:
        """The tokens that the model reads in a training batch, and those that it learns to write."""
        return {"text": TokenView(tokenizers.source, batch["input_ids"], batch["attention_mask"].bool())}

    def beyond_filters(self, examples: E, tokenizers: Tokenizers) -> dict[str, int]:
        """How many of these evaluated examples the filters of training would drop, by filter."""
        return {}

    def unreachable_references(self, examples: E) -> np.ndarray:
        """Lengths of the references that are longer than `eval.max_new_tokens`: no output can equal them."""
        return np.array([], dtype=np.int64)

    def filter_name(self, name: str) -> str:
        """A filter of training examples as a message names it."""
        return f"data.{name}"

    # ---- model and loss ----------------------------------------------------------------------------------------------

    @abstractmethod
    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """A new model with weights by `train.seed`, or a pretrained one; in the precision of the recipe."""

    @abstractmethod
    def load_model(self, place: str | Path) -> PreTrainedModel:
        """A trained model of this task, from a run folder, a model folder or a Hub id."""

    @abstractmethod
    def objective(self, model: PreTrainedModel, plan: Plan | None = None) -> Objective:
        """What is minimized, over the batches of a plan where that makes a difference."""

    # ---- evaluation and what is left behind --------------------------------------------------------------------------

    @abstractmethod
    def evaluate(
        self,
        objective: Objective,
        splits: Splits,
        encoded: Encoded[E],
        tokenizers: Tokenizers,
        split: str,
        evaluator: Evaluator,
        final: bool = True,
    ) -> Evaluation:
        """Figures and predictions of a split; while training (not `final`) in a cheaper way where there is one. The
        figures are the same on every process, and "loss" is among them."""

    def settle(self, model: PreTrainedModel, validation: Evaluation) -> None:
        """Take over into the model what the evaluation of the weights that are kept has found out on validation."""
        return None

    @abstractmethod
    def shown(self, row: dict[str, Any]) -> str:
        """One of an evaluation's predictions as a line of the terminal."""

    @abstractmethod
    def export(self, folder: Path, model: PreTrainedModel, tokenizers: Tokenizers) -> None:
        """Write the model as a folder that stands on its own."""

    def draw(self, model_folder: Path, splits: Splits, split: str, evaluation: Evaluation, plots: Path) -> None:
        """Pictures of a finished model that go beside its training curves."""
        return None

    def run_examples(self, predictions: Path, predictor: Any) -> list[Any]:
        """What `kit plot` shows the attention of a run for, unless the user gives an example."""
        return []

    @abstractmethod
    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        """Values of the card's template that only this task has."""

    def write_card(
        self, run_folder: Path, results: Mapping[str, Any], repo_id: str | None = None, merged: bool = False
    ) -> str:
        """The model card of a run; `repo_id` is the model's id on the Hub."""
        sections = self.card_sections(results, run_folder)
        return write_card(run_folder, self.recipe, results, self.card_template, sections, repo_id, merged)

    @abstractmethod
    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        """The model of a folder, or a new one of the recipe, with examples of its data; and what these examples are."""
