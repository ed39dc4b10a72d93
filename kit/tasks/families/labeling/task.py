"""The base class of the tasks that fine-tune an encoder on labels: classification, tagging and question answering."""

import inspect
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import pyarrow as pa
from datasets import Dataset
from torch import Tensor
from transformers import Pipeline, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers, train_tokenizer
from kit.errors import RecipeError
from kit.pipelines.question_answering import SETTINGS as ANSWER_SETTINGS
from kit.prediction.rows import PredictOptions
from kit.pretrained.architecture import is_saved_as
from kit.pretrained.export import export_model
from kit.pretrained.folder import ModelFolder
from kit.pretrained.positions import check_length, position_limit
from kit.pretrained.vocabulary import named_tokenizers
from kit.tasks.base import Task
from kit.tasks.families.labeling.evaluation import Predictions
from kit.tasks.families.labeling.examples import LabeledExamples
from kit.tasks.families.labeling.inference import LabelPredictor
from kit.tasks.families.labeling.labels import THRESHOLDS
from kit.tasks.families.labeling.objectives import LabelObjective
from kit.tasks.families.labeling.proofs import PROOFS, LabeledSubject
from kit.tasks.families.labeling.recipe import LabelingRecipe
from kit.tasks.families.language_modeling.task import new_config
from kit.tasks.stages import TaskState, TextTokens
from kit.training.objective import Batch
from kit.verify.learning import MICRO_BATCHES
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject

NO_LIMIT = 1_000_000
"""Tokenizers without a length limit have a larger `model_max_length` than this: transformers sets 1e30."""


@dataclass(frozen=True)
class LabelingState(TaskState):
    """The state of a task with labels."""

    labels: tuple[str, ...] = ()
    """Names of the labels in the model's order; none for a regression or for answers."""
    class_weights: tuple[float, ...] | None = None
    """Weight of each label in the training loss (labels,), if the recipe has data.class_weights or data.pos_weight."""
    is_trained: bool = False
    """Whether the state is that of a trained model, whose configuration evaluation has completed."""


L = TypeVar("L", bound=LabeledExamples)


class LabelingTask(Task[L, LabelingState]):
    """Fine-tuning: a pretrained encoder, or a new one, with a head that learns from labels."""

    card_template: ClassVar[str] = "fine_tuned"
    proofs: ClassVar[Sequence[Proof]] = PROOFS
    of_tokens: ClassVar[bool] = True
    """Whether the model predicts for each token."""
    needs_offsets: ClassVar[bool] = False
    """Whether the task needs to know which characters or words each token comes from, as fast tokenizers do."""
    zero_gradients: ClassVar[Mapping[str, str]] = {}
    """Patterns of parameters whose gradient is zero by nature, with the reason."""
    pipeline_arguments: ClassVar[Mapping[str, Any]] = {}
    """Arguments with which the pipeline of the task returns every score."""
    new_head: ClassVar[bool] = True
    command: ClassVar[Literal["generate", "predict"]] = "predict"
    recipe: LabelingRecipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        return is_saved_as(config, cls.auto_class)

    @classmethod
    def predictor(cls, folder: ModelFolder, options: PredictOptions) -> LabelPredictor:
        return LabelPredictor(folder, options)

    @property
    def predicted_names(self) -> tuple[str, ...]:
        """The columns that `predict` adds to a row."""
        return ("prediction",)

    @property
    def ranked_name(self) -> str | None:
        """The column with several predictions of a row, best first; None if the task does not rank them."""
        return None

    def input_table(self, table: pa.Table) -> pa.Table:
        """Prepare the table of a file to predict: what the task reads gets the form in which it is read."""
        return table

    # ---- data --------------------------------------------------------------------------------------------------------

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        named = named_tokenizers(self.recipe)
        if named is not None:
            tokenizer = named.source
        else:
            texts = list(self.vocabulary_texts(self.vocabulary_rows(splits)))
            tokenizer = train_tokenizer(self.recipe.tokenizer, texts, "masked")
        self.check_tokenizer(tokenizer)
        if tokenizer.pad_token_id is None:  # as in GPT-2
            tokenizer.pad_token = tokenizer.eos_token
        self.configure_tokenizer(tokenizer, self.new_config(tokenizer))
        return Tokenizers(tokenizer, tokenizer)

    @abstractmethod
    def vocabulary_texts(self, rows: Any) -> Iterable[str]:
        """The texts of these rows on which a tokenizer is trained."""

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise RecipeError if the task cannot use a tokenizer."""
        if tokenizer.pad_token_id is None and tokenizer.eos_token is None:
            raise RecipeError("tokenizer.pretrained: it has neither a padding token nor an end token.")
        if self.needs_offsets and not tokenizer.is_fast:
            raise RecipeError(
                f"tokenizer.pretrained: {self.recipe.task} needs a fast tokenizer, which knows the words of its tokens."
            )

    def configure_tokenizer(self, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
        """Configure a tokenizer, in place, for training and pipelines. It pads on the right, because left padding
        moves tokens to other positions, returns no `token_type_ids` if the model has no segments, and gets
        `model_max_length`."""
        tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "right"
        limit = self.max_length(tokenizer, config)
        if limit is not None:
            tokenizer.model_max_length = limit
        model = self.auto_class._model_mapping[type(config)]
        has_segments = "token_type_ids" in inspect.signature(model.forward).parameters
        if not has_segments or getattr(config, "type_vocab_size", 2) < 2:
            names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
            tokenizer.model_input_names = names
            tokenizer.init_kwargs["model_input_names"] = names  # only these are saved

    def max_length(self, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> int | None:
        """The maximum number of tokens of an example; None for no limit.

        Raises RecipeError if data.max_length exceeds the positions of the model.
        """
        positions, requested = position_limit(config), self.recipe.data.max_length
        check_length("data.max_length", requested, positions)
        default = tokenizer.model_max_length if tokenizer.model_max_length < NO_LIMIT else None
        limits = [limit for limit in (positions, requested or default) if limit is not None]
        return min(limits, default=None)

    def new_config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """The configuration of a new or pretrained model, without the names of its labels."""
        config = new_config(self.recipe, tokenizer)
        if self.recipe.model.pretrained is None:
            return config
        if type(config) not in self.auto_class._model_mapping:
            raise RecipeError(f"model.pretrained: a {config.model_type} has no head for {self.recipe.task}.")
        for stale in ("custom_pipelines", ANSWER_SETTINGS, THRESHOLDS):  # of a model for another task
            if hasattr(config, stale):
                delattr(config, stale)
        if config.pad_token_id is None:  # GPT-2 and its like classify at the last token that is not padding
            config.pad_token_id = tokenizer.pad_token_id
        return config

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> LabelingState:
        return LabelingState(tokenizers, self.new_config(tokenizers.source))

    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> LabelingState:
        return LabelingState(Tokenizers.load(folder.path), folder.config, is_trained=True)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def token_lists(self, examples: L, state: LabelingState) -> dict[str, TextTokens]:
        inputs = examples.inputs
        tokens = TextTokens(inputs.tokens["input_ids"], state.tokenizers.source, full_lengths=inputs.full_lengths)
        return {"text": tokens}

    # ---- evaluation and results --------------------------------------------------------------------------------------

    @abstractmethod
    def predict(
        self, objective: LabelObjective, rows: Dataset, state: LabelingState, top_k: int | None = None
    ) -> Predictions:
        """Predict rows, which need no labels. With `top_k`, each row also has that many ranked predictions, under
        `ranked_name`."""

    def export(self, folder: Path, model: PreTrainedModel, state: LabelingState) -> None:
        export_model(folder, model, state.tokenizers, pipelines=self.pipelines)

    @property
    def training_only(self) -> Mapping[str, bool]:
        return {"label smoothing": self.recipe.train.label_smoothing_factor > 0}

    # ---- proofs ------------------------------------------------------------------------------------------------------

    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        splits = self.load_training_splits()
        model, state = self.open_model(model_folder, splits)
        rows = splits.datasets["validation"]
        rows = rows.select(range(min(MAX_EXAMPLES, len(rows))))
        examples = self.encode(rows, state, "validation").examples
        indices = np.arange(max(MICRO_BATCHES, min(MAX_EXAMPLES, len(examples)))) % len(examples)
        subject = LabeledSubject(
            model, examples.batch(indices), self.recipe.train.seed, state.tokenizers,
            task=self, state=state, rows=rows, folder=model_folder,
        )  # fmt: skip
        return subject, f"{len(indices)} examples of validation"

    @abstractmethod
    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch, state: LabelingState) -> float:
        """Compute the training loss of a batch in plain arithmetic."""

    @abstractmethod
    def pipeline_prediction(self, pipe: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
        """Run the pipeline of the task on a row; returns the prediction in the form of `predict`."""
