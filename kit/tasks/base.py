"""The base class of all tasks: how data becomes examples, a model, a loss, an evaluation and a model card.

Values flow forward: `load_splits` → `build_tokenizers` → `fit` → `encode` and `build_model` → `evaluate` → `export`.
Each stage receives what the stages before it returned. A task holds its recipe and nothing else.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, cast

import numpy as np
from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedModel

from kit.cards.card import write_card
from kit.data.batching.plan import BatchPlan, EpochPlan
from kit.data.shortcuts import LabeledPairs
from kit.data.splits import Splits, check_training_splits, load_splits, training_problems
from kit.data.steps import RowSteps
from kit.data.streaming.plan import StreamEncoder, StreamPlan, single_process
from kit.data.text.tokenizer import Tokenizers
from kit.errors import DataError, DataMistakes, RecipeError, RunError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.plots.curves import CurveNotes
from kit.prediction.engine import Predictor
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import BuiltModel, load_model, new_or_pretrained
from kit.recipe.base import Recipe
from kit.tasks.stages import E, Encoded, EvaluatedSplit, S, TextTokens, TokenView
from kit.training.objective import Batch, Objective
from kit.training.processes import gather
from kit.verify.proof import Proof
from kit.verify.subject import Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Task(ABC, Generic[E, S]):
    """A task: one recipe class, and the stages from data to a trained and documented model."""

    auto_class: ClassVar[Any]
    """The Auto class of transformers that builds and loads models of this task."""

    new_head: ClassVar[bool] = False
    """Whether a pretrained model may get a newly initialized head."""

    card_template: ClassVar[str]
    """Name of the template of the model card."""

    command: ClassVar[Literal["generate", "predict"]] = "generate"
    """The command that runs trained models of this task."""

    proofs: ClassVar[Sequence[Proof]]
    """What `kit verify` proves about models of this task."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        """Whether a trained model with this configuration belongs to the task; registry order decides between tasks."""
        return False

    @classmethod
    def predictor(cls, folder: ModelFolder, options: Any) -> Predictor[Any, Any, Any]:
        """What runs a trained model in `command`. Raises KitError for options that the model does not support."""
        raise RunError(f"{folder.name} writes no text and predicts no rows: use `kit {cls.command}`")

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Tasks of `pipeline()` that transformers does not have: their code is saved with the model."""
        return ()

    # ---- data --------------------------------------------------------------------------------------------------------

    def row_steps(self) -> RowSteps:
        """What the task does to rows while they are loaded, such as merging the captions of an image."""
        return RowSteps(self.recipe.data)

    def load_splits(self) -> Splits:
        """Load the data of the recipe. Raises DataError if it is missing or does not match the recipe."""
        return load_splits(self.recipe.data, self.row_steps())

    def load_training_splits(self) -> Splits:
        """Load the data of a run. Unlike the evaluation of a trained model, a run needs train and validation: raises
        DataError, with all other mistakes in the data, if one is missing."""
        data = self.recipe.data
        try:
            splits = self.load_splits()
        except DataMistakes as error:
            held_out = any(data.is_set(f"validation_{unit}") for unit in ("size", "share", "steps"))
            problems = training_problems([*error.splits, *["validation"] * held_out], data)
            known = [mistake.partition(":")[0] for mistake in str(error).split("\n")]
            more = [problem for problem in problems if problem.partition(":")[0] not in known]
            raise DataError("\n".join([str(error), *more])) from None
        check_training_splits(splits, data)
        return splits

    @abstractmethod
    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        """Train tokenizers on the training split, or load the ones that the recipe names; configure them completely."""

    def vocabulary_rows(self, splits: Splits) -> Dataset:
        """The training rows from which vocabularies are learned: at most `tokenizer.train_examples`, evenly spaced."""
        limit = self.recipe.tokenizer.train_examples
        if splits.stream is not None:
            return splits.stream.sample(limit)
        train = splits.datasets["train"]
        return train if len(train) <= limit else train.select(np.arange(limit) * len(train) // limit)

    @abstractmethod
    def fit(self, splits: Splits, tokenizers: Tokenizers) -> S:
        """Compute the state of a new run. Raises KitError if data, tokenizers and model do not fit together."""

    @abstractmethod
    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> S:
        """Read the state of a trained model. What is computed from training data, such as class weights, needs
        `splits`."""

    @abstractmethod
    def encode(self, rows: Dataset, state: S, split: str) -> Encoded[E]:
        """Encode the rows of one split. The filters of the recipe apply to "train" only. A stream is encoded while
        it is read, by `stream_encoder`."""

    def stream_encoder(self, state: S) -> StreamEncoder[E]:
        """Return what encodes the rows of a stream, in a background thread."""
        raise RecipeError(f"data.streaming: {self.recipe.task} needs its training data in memory. Leave it out.")

    # ---- batches -----------------------------------------------------------------------------------------------------

    def plan(self, examples: E, seed: int | None = None) -> EpochPlan:
        """Plan the batches of every epoch, by the lengths of the examples, with the seed of the recipe or another
        one."""
        return self.plan_lengths([cast(Any, examples).lengths], seed)

    def plan_lengths(self, sides: list[np.ndarray], seed: int | None = None) -> BatchPlan:
        """Plan batches of examples of similar length. `sides` has the lengths of all examples on each side, such as
        source and target; the longer side counts."""
        train = self.recipe.train
        return BatchPlan(
            sides,
            seed=train.seed if seed is None else seed,
            size=train.tokens_per_batch or train.batch_size or 1,
            unit="tokens" if train.tokens_per_batch is not None else "examples",
            micro_batches=train.micro_batches,
        )

    def stream_plan(self, splits: Splits, state: S, process: int = 0, processes: int = 1) -> StreamPlan[E]:
        """Plan the batches over a stream for one of several processes."""
        assert splits.stream is not None
        train = self.recipe.train
        # a tokenizer must not be used by two threads at once
        state = replace(state, tokenizers=copy.deepcopy(state.tokenizers))
        return StreamPlan(
            splits.stream,
            self.stream_encoder(state),
            seed=train.seed,
            buffer_size=self.recipe.data.buffer_size,
            micro_batches=train.micro_batches,
            process=process,
            processes=processes,
            exchange=(lambda mine: gather([mine])) if processes > 1 else single_process,
        )

    def collate(self, examples: E, indices: np.ndarray, random: np.random.Generator, state: S) -> Batch:
        """Make a training batch of these examples. Anything random in it is drawn from `random`; by default, nothing
        is."""
        return cast(Any, examples).batch(indices)

    def token_lists(self, examples: E, state: S) -> dict[str, TextTokens]:
        """The tokens of each text of the examples, such as "source" and "target", by name, for statistics."""
        return {}

    def describe_batch(self, batch: Batch, state: S) -> dict[str, TokenView]:
        """The tokens of a training batch for display: those that the model reads and those that it learns to
        predict, by name."""
        return {"text": TokenView(state.tokenizers.source, batch["input_ids"], batch["attention_mask"].bool())}

    def describe_labels(self, batch: Batch, state: S) -> dict[str, list[str]]:
        """The labels of a training batch for display: for each kind of label, by name, that of every example."""
        return {}

    def count_labels(self, rows: Dataset) -> dict[str, int]:
        """The number of rows or words with each label, for display."""
        return {}

    def labeled_pairs(self, rows: Dataset, examples: E, state: S) -> LabeledPairs | None:
        """These examples as pairs of texts, if their labels depend on both texts; None otherwise. `kit data` looks
        for rules that predict such labels from one text."""
        return None

    def beyond_filters(self, examples: E, state: S) -> dict[str, int]:
        """The number of evaluated examples that each training filter would drop, by filter."""
        return {}

    def unreachable_references(self, examples: E) -> np.ndarray:
        """The lengths of the references that are longer than `eval.max_new_tokens`, so that no output can equal
        them."""
        return np.array([], dtype=np.int64)

    def filter_name(self, name: str) -> str:
        """The name of a filter in messages: by default, its recipe key."""
        return f"data.{name}"

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def build_model(self, state: S) -> BuiltModel:
        """Build a new model, initialized with `train.seed`, or load a pretrained one, in the precision of the
        recipe."""
        config, tokenizer = copy.deepcopy(state.config), state.tokenizers.source
        return new_or_pretrained(self.auto_class, self.recipe, config, tokenizer, self.new_head)

    def load_model(self, name_or_path: str | Path | ModelFolder) -> PreTrainedModel:
        """Load a trained model of this task from a run folder, a model folder or a Hub id."""
        return load_model(self.auto_class, name_or_path)

    @abstractmethod
    def objective(self, model: PreTrainedModel, state: S) -> Objective:
        """The loss that training minimizes."""

    # ---- evaluation and results --------------------------------------------------------------------------------------

    @abstractmethod
    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[E],
        state: S,
        *,
        final: bool = True,
    ) -> Evaluation:
        """Figures and predictions of a split, the same on every process; "loss" is among the figures.

        Evaluations during training, which are not `final`, may use a faster search.
        """

    @property
    def evaluates_alike(self) -> bool:
        """Whether evaluations during training compute what final ones do. Then the best one is not repeated at the
        end."""
        return False

    @abstractmethod
    def format_prediction(self, row: dict[str, Any]) -> str:
        """Format one prediction of an evaluation as a line for the terminal."""

    @abstractmethod
    def export(self, folder: Path, model: PreTrainedModel, state: S) -> None:
        """Write a self-contained model folder."""

    def figures(self, evaluated: EvaluatedSplit) -> "dict[str, Figure]":
        """Figures of a finished model by name, beside its training curves."""
        return {}

    def tables(self, evaluated: EvaluatedSplit) -> dict[str, str]:
        """The numbers behind `figures` where these cannot show all of them, as csv by file name."""
        return {}

    @property
    def training_only(self) -> Mapping[str, bool]:
        """Changes to the training loss that evaluation leaves out, by name, with whether the recipe makes them."""
        return {}

    def curve_notes(self, config: PreTrainedConfig | None) -> CurveNotes:
        """What differs between the curves of training and of validation, for a model with this configuration."""
        settings = {} if config is None else config.to_dict()
        drops = any("drop" in name and isinstance(rate, float) and rate > 0 for name, rate in settings.items())
        samples = bool(self.recipe.model.settings.get("scheduled_sampling"))
        reasons = {"dropout": drops, **self.training_only, "scheduled sampling": samples}
        used = [reason for reason, is_used in reasons.items() if is_used]
        notes = [f"with {', '.join(used)}"] if used else []
        notes += [] if self.recipe.train.ema_decay is None else ["without averaged weights"]
        return CurveNotes(", ".join(notes))

    def plot_examples(self, evaluated: EvaluatedSplit, predictor: Any) -> list[Any]:
        """The examples of a split for which the attention is plotted, unless the user gives one."""
        return []

    def example_texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The text, or the pair of texts, that the model read for a row of predictions; empty if it reads no text."""
        return ()

    @abstractmethod
    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        """Values for the card template that depend on the task, such as an example call and a table of predictions."""

    def write_card(
        self, run_folder: Path, results: Mapping[str, Any], repo_id: str | None = None, merged: bool = False
    ) -> str:
        """Render the card of a run, or of the plain model that it was `merged` to; `repo_id` is its id on the Hub."""
        sections = self.card_sections(results, run_folder)
        return write_card(run_folder, self.recipe, results, self.card_template, sections, repo_id, merged)

    # ---- proofs ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        """The model to prove things about, with examples: that of a folder, or a new one of the recipe. The second
        value describes the examples."""

    def open_model(self, model_folder: Path | None, splits: Splits) -> tuple[PreTrainedModel, S]:
        """The trained model of a folder, or a new model of the recipe, with its state."""
        if model_folder is not None:
            folder = ModelFolder.open(model_folder)
            return self.load_model(folder), self.restore(folder, splits)
        state = self.fit(splits, self.build_tokenizers(splits))
        return self.build_model(state).model, state
