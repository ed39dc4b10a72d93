"""What fine-tuning for classification, tagging and question answering has in common."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import Pipeline, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from kit.data.batching.plan import BatchPlan, Plan
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers, load_pretrained_tokenizers, train_tokenizer
from kit.errors import RecipeError
from kit.evaluation.evaluator import Evaluator
from kit.prediction.rows import PredictOptions
from kit.pretrained.architecture import is_saved_as
from kit.pretrained.loading import ModelFolder, export_model, load_config, load_model, new_or_pretrained
from kit.pretrained.positions import position_limit
from kit.recipe.model_settings import config_class
from kit.tasks.base import Encoded, MakeBatch, Task, TextTokens
from kit.tasks.families.labeling.data import Inputs
from kit.tasks.families.labeling.inference import LabelPredictor
from kit.tasks.families.labeling.objectives import LabelObjective
from kit.tasks.families.labeling.proofs import PROOFS, LabeledSubject
from kit.tasks.families.labeling.recipe import LabelingRecipe
from kit.tasks.families.language_modeling.task import vocabulary_settings
from kit.training.objective import Batch
from kit.verify.learning import MICRO_BATCHES
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject

NO_LIMIT = 1_000_000
"""A tokenizer that says it takes more tokens than this does not know a limit."""


class Readable(Protocol):
    """Examples of which batches are made."""

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each."""

    def batch(self, indices: np.ndarray) -> Batch:
        """Inputs, and labels if there are any, of these examples."""

    def __len__(self) -> int: ...


class LabelledExamples(Readable, Protocol):
    """Examples to learn from."""

    @property
    def cut(self) -> int: ...

    @property
    def inputs(self) -> Inputs:
        """What the model reads of each."""


L = TypeVar("L", bound=LabelledExamples)


class FineTuning(Task[L]):
    """A task that puts a head on an encoder and learns from labels."""

    card_template: ClassVar[str] = "fine_tuned"
    proofs: ClassVar[Sequence[Proof]] = PROOFS
    of_tokens: ClassVar[bool] = True
    """Whether the model predicts for each token."""
    zero_gradients: ClassVar[Mapping[str, str]] = {}
    """Parameters whose gradient can be zero by its nature, with the reason."""
    pipeline_arguments: ClassVar[Mapping[str, Any]] = {}
    """Arguments with which the pipeline of the task reports everything."""
    auto_class: ClassVar[Any]
    """transformers' class that builds and loads models of this task."""

    recipe: LabelingRecipe

    command: ClassVar[Literal["generate", "predict", "embed"]] = "predict"

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        return is_saved_as(config, cls.auto_class)

    @classmethod
    def predictor(cls, folder: ModelFolder, options: PredictOptions) -> LabelPredictor:
        return LabelPredictor(folder, options)

    labels: list[str] | None = None
    """Names of the labels, in the model's order, once the training data is encoded; None where there are none."""

    @property
    def predicted_names(self) -> tuple[str, ...]:
        """The names of what `predict` says about a row."""
        return ("prediction",)

    # ---- text → tokens → batches -------------------------------------------------------------------------------------

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        section = self.recipe.tokenizer
        pretrained = section.pretrained or self.recipe.model.pretrained
        if pretrained is not None:
            tokenizers = load_pretrained_tokenizers(pretrained)
        else:
            texts = list(self.words_to_learn(self.vocabulary_rows(splits)))
            tokenizer = train_tokenizer(section, texts, "masked")
            tokenizers = Tokenizers(tokenizer, tokenizer)
        self.check_tokenizer(tokenizers.source)
        return tokenizers

    @abstractmethod
    def words_to_learn(self, rows: Any) -> Iterable[str]:
        """All text of these rows, for a tokenizer to learn from."""

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise RecipeError if a tokenizer does not suit the task; give it padding if it has none, as GPT-2's."""
        if tokenizer.pad_token_id is None:
            if tokenizer.eos_token is None:
                raise RecipeError("tokenizer.pretrained: it has neither a padding token nor an end token.")
            tokenizer.pad_token = tokenizer.eos_token

    def needs_fast(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise RecipeError if a tokenizer does not know which characters or words its tokens are from."""
        if not tokenizer.is_fast:
            raise RecipeError(
                f"tokenizer.pretrained: {self.recipe.task} needs a fast tokenizer, which knows the words of its tokens."
            )

    def suit_inputs(self, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
        """Let the tokenizer give no segments to a model that does not have them, and padding on the right, where it
        moves no token to another position, here and in pipelines."""
        tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = "right"
        model = self.auto_class._model_mapping[type(config)]
        taken = "token_type_ids" in inspect.signature(model.forward).parameters
        if not taken or getattr(config, "type_vocab_size", 2) < 2:
            names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
            tokenizer.model_input_names = names
            tokenizer.init_kwargs["model_input_names"] = names  # only what is among these is saved

    def limit(self, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> int | None:
        """Most tokens of an example. Raises RecipeError if the recipe asks for more than the model has."""
        positions, wanted = position_limit(config), self.recipe.data.max_length
        if wanted is not None and positions is not None and wanted > positions:
            raise RecipeError(
                f"data.max_length: {wanted} tokens are more than the model has positions for: {positions}."
            )
        told = tokenizer.model_max_length if tokenizer.model_max_length < NO_LIMIT else None
        limits = [limit for limit in (positions, wanted or told) if limit is not None]
        return min(limits, default=None)

    def plan(self, examples: L, seed: int | None = None) -> BatchPlan:
        return self.plan_lengths([examples.lengths], seed)

    def batch_maker(self, encoded: Encoded[L], tokenizers: Tokenizers, plan: Plan) -> MakeBatch:
        examples = encoded.splits["train"]
        return lambda indices, random: examples.batch(indices)

    def token_lists(self, examples: L, tokenizers: Tokenizers) -> dict[str, TextTokens]:
        return {"text": TextTokens(examples.inputs.tokens["input_ids"], tokenizers.source)}

    # ---- model -------------------------------------------------------------------------------------------------------

    def config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        """The configuration of the model, new or pretrained, with the names of the labels once they are known."""
        section, tokenizer = self.recipe.model, tokenizers.source
        if section.pretrained is not None:
            config = load_config(section.pretrained, section.settings)
            if type(config) not in self.auto_class._model_mapping:
                raise RecipeError(f"model.pretrained: a {config.model_type} has no head for {self.recipe.task}.")
            for stale in ("custom_pipelines", "question_answering"):  # of a model for another task
                if hasattr(config, stale):
                    delattr(config, stale)
            if config.pad_token_id is None:  # GPT-2 and its like look for the last token that is not padding
                config.pad_token_id = tokenizer.pad_token_id
        else:
            assert section.type is not None
            kind = config_class(section.type, self.recipe.kit_types, self.recipe.mapping)
            config = kind(**section.settings, **vocabulary_settings(kind, tokenizer))
        if self.labels is not None:
            config.num_labels = len(self.labels)
            config.id2label = dict(enumerate(self.labels))
            config.label2id = {label: place for place, label in enumerate(self.labels)}
        return config

    def order_of_pretrained(self, labels: list[str]) -> list[str]:
        """The labels in the order of a pretrained model that has the same ones, so that its head goes on as it is."""
        if self.recipe.model.pretrained is not None:
            known = list((load_config(self.recipe.model.pretrained).id2label or {}).values())
            if sorted(known) == sorted(labels):
                return known
        return labels

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        config = self.config(tokenizers)
        # a head for other labels is made anew
        model, self.new_parts = new_or_pretrained(
            self.auto_class, self.recipe, config, tokenizers.source, new_head=True
        )
        return model

    def load_model(self, place: str | Path) -> PreTrainedModel:
        return load_model(self.auto_class, place)

    def take_labels(self, config: PreTrainedConfig) -> None:
        """Know the labels of a trained model."""
        self.labels = [config.id2label[place] for place in range(config.num_labels)]

    @abstractmethod
    def predict(self, objective: LabelObjective, rows: Dataset, tokenizers: Tokenizers) -> "Predictions":
        """What the model says about rows, whose labels nobody needs to know."""

    def export(self, folder: Path, model: PreTrainedModel, tokenizers: Tokenizers) -> None:
        limit = self.limit(tokenizers.source, model.config)
        if limit is not None:
            tokenizers.source.model_max_length = limit  # where pipelines cut with truncation=True
        export_model(folder, model, tokenizers, pipelines=self.pipelines)

    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        splits = self.load()
        if model_folder is None:
            tokenizers = self.build_tokenizers(splits)
            self.encode(splits, tokenizers)  # finds the labels
            model = self.build_model(tokenizers)
        else:
            tokenizers, model = self.load_tokenizers(model_folder), self.load_model(model_folder)
        rows = splits.datasets["validation"]
        rows = rows.select(range(min(MAX_EXAMPLES, len(rows))))
        examples = self.encode_split(rows, tokenizers, model.config)
        self.restore_weights(splits)
        indices = np.arange(max(MICRO_BATCHES, min(MAX_EXAMPLES, len(examples)))) % len(examples)
        subject = LabeledSubject(
            model, examples.batch(indices), self.recipe.train.seed,
            task=self, rows=rows, folder=model_folder, tokenizers=tokenizers,
        )  # fmt: skip
        return subject, f"{len(indices)} examples of validation"

    def restore_weights(self, splits: Splits) -> None:
        """Compute again what the loss needs of the training data and no model folder has."""

    @abstractmethod
    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch) -> float:
        """The loss of a batch in plain arithmetic, for the proofs."""

    @abstractmethod
    def pipeline_prediction(self, pipe: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
        """The prediction of the task's pipeline for a row, in the form of `predict`."""


@dataclass(frozen=True)
class Predictions:
    """What a model says about rows."""

    rows: list[dict[str, Any]]
    """For each row what is predicted, by name, in order."""
    cut: int = 0
    """How many were longer than the model can read."""


def predict_with_loss(
    objective: LabelObjective,
    examples: LabelledExamples,
    evaluator: Evaluator,
    keep: Callable[[dict[str, Tensor], Batch], list[Any]],
) -> tuple[list[Any], float]:
    """What `keep` takes from the model's output for each example, in order, and the mean loss of all."""
    objective.eval()

    def compute(batch: Batch) -> tuple[list[Any], list[Tensor]]:
        output = objective.output(batch)
        return keep(output, batch), [objective.summed_loss(output, batch), objective.loss_count(batch)]

    outputs, (loss, count) = evaluator.outputs_and_sums(examples.lengths, examples.batch, compute)
    return outputs, loss / max(count, 1)


def predict_rows(
    objective: LabelObjective, examples: Readable, tokens: int, keep: Callable[[dict[str, Tensor], Batch], list[Any]]
) -> list[Any]:
    """What `keep` takes from the model's output for each example, in order, in this process alone."""
    objective.eval()
    evaluator = Evaluator(tokens, device=objective.model.device)
    return evaluator.outputs(examples.lengths, examples.batch, lambda batch: keep(objective.output(batch), batch))
