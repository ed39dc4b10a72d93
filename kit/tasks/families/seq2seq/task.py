"""The base class of the tasks whose models generate text by search: translation, dialogue and captioning."""

import copy
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedModel

from kit.data.splits import Splits
from kit.data.text.languages import TAGS_KEY
from kit.data.text.tokenizer import Tokenizers, build_tokenizer, end_id
from kit.decoding.settings import GenerationSettings
from kit.errors import KitError, RecipeError
from kit.evaluation.groups import check_groups
from kit.plots.curves import CurveNotes
from kit.prediction.options import GenerateOptions, PlotOptions
from kit.prediction.text import TextPredictor
from kit.pretrained.export import export_model
from kit.pretrained.folder import ModelFolder, load_config
from kit.pretrained.loading import BuiltModel, build_from_config, load_model, merged_weights
from kit.pretrained.positions import position_limit
from kit.pretrained.vocabulary import adopt_special_tokens, check_embeddings, named_tokenizers, tokenizer_notes
from kit.recipe.base import Recipe
from kit.recipe.model_settings import config_class
from kit.tasks.base import Task
from kit.tasks.families.seq2seq.card import search_name
from kit.tasks.families.seq2seq.evaluation import search_settings
from kit.tasks.families.seq2seq.plots import first_question
from kit.tasks.families.seq2seq.recipe import Seq2SeqRecipe
from kit.tasks.stages import E, EvaluatedSplit, TaskState
from kit.training.objective import Batch, SamplingSchedule, Seq2SeqObjective
from kit.verify.proof import Proof
from kit.verify.seq2seq import PROOFS
from kit.verify.subject import MAX_EXAMPLES, Subject, random_batch, small_batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Seq2SeqTask(Task[E, TaskState]):
    """Text generation: a model with a decoder, trained on reference texts with teacher forcing."""

    recipe: Seq2SeqRecipe
    proofs: ClassVar[Sequence[Proof]] = PROOFS
    example_name: ClassVar[str] = "examples"
    """The name of examples in messages."""
    input_name: ClassVar[str] = "tokens"
    """The name of what the model reads in messages."""

    @classmethod
    @abstractmethod
    def predictor(cls, folder: ModelFolder, options: GenerateOptions) -> TextPredictor[Any]:
        """Return what generates text with a trained model."""

    # ---- data --------------------------------------------------------------------------------------------------------

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        """Train one tokenizer on all text of the training split, or load a pretrained one."""
        named = named_tokenizers(self.recipe)
        if named is not None:
            return named
        texts = self.vocabulary_texts(self.vocabulary_rows(splits))
        tokenizer = build_tokenizer(self.recipe.tokenizer, texts, "training", ends=True)
        return Tokenizers(tokenizer, tokenizer)

    @abstractmethod
    def vocabulary_texts(self, rows: Dataset) -> Iterable[str]:
        """The texts of these rows on which a tokenizer is trained; some kinds iterate over them twice."""

    def new_config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        """The configuration of a new or pretrained model."""
        section = self.recipe.model
        if section.pretrained is not None:
            return load_config(section.pretrained, section.settings)
        assert section.type is not None
        return config_class(section.type)(**section.settings, **vocabulary_settings(tokenizers))

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> TaskState:
        for split, rows in splits.datasets.items():
            if split != "train":
                check_groups(self.recipe.eval.group_by, rows.column_names, split)
        return TaskState(tokenizers, self.new_config(tokenizers))

    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> TaskState:
        return TaskState(Tokenizers.load(folder.path), folder.config)

    # ---- batches -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def batch_of(self, examples: E, indices: np.ndarray, state: TaskState) -> Batch:
        """Make a batch of these examples, without anything random."""

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def build_model(self, state: TaskState) -> BuiltModel:
        section, train, notes = self.recipe.model, self.recipe.train, list[str]()
        torch.manual_seed(train.seed)
        if section.pretrained is None:
            model = build_from_config(self.auto_class, copy.deepcopy(state.config), getattr(torch, train.dtype))
        else:
            with merged_weights(section.pretrained) as folder:  # otherwise only the adapter would be trained
                model = load_model(self.auto_class, folder, section.settings)
            size = model.get_input_embeddings().num_embeddings
            notes = fit_to_tokenizer(model, state.tokenizers, self.recipe)
            if self.recipe.peft.method is not None and model.get_input_embeddings().num_embeddings != size:
                raise RecipeError(
                    "peft.method: adapters have no vectors for the new language tags of the tokenizer. Train the model "
                    "itself first"
                )
        return BuiltModel(model.to(getattr(torch, train.dtype)), notes=notes)

    def objective(self, model: PreTrainedModel, state: TaskState) -> Seq2SeqObjective:
        train = self.recipe.train
        sampling = SamplingSchedule.of(self.recipe.model, train)
        return Seq2SeqObjective(model, train.label_smoothing_factor, train.normalize_by, sampling)

    # ---- evaluation and results --------------------------------------------------------------------------------------

    def num_beams(self, final: bool) -> int:
        """The number of beams of an evaluation; the frequent evaluations during training may use fewer."""
        section = self.recipe.eval
        return section.num_beams if final else section.num_beams_while_training

    @property
    def evaluates_alike(self) -> bool:
        return self.num_beams(final=True) == self.num_beams(final=False)

    def export(self, folder: Path, model: PreTrainedModel, state: TaskState) -> None:
        generation = search_settings(self.recipe.eval, self.recipe.eval.num_beams).seq2seq_config(model)
        export_model(folder, model, state.tokenizers, generation, self.pipelines, self.image_processor(model))

    def figures(self, evaluated: EvaluatedSplit) -> "dict[str, Figure]":
        """The attention of the exported model for examples, which also proves that it can be loaded."""
        predictor = self.predictor(ModelFolder.open(evaluated.model_folder), GenerateOptions())
        examples = self.plot_examples(evaluated, predictor)
        return predictor.attention_figures(PlotOptions(), lambda: examples) if examples else {}

    @property
    def training_only(self) -> Mapping[str, bool]:
        return {"label smoothing": self.recipe.train.label_smoothing_factor > 0}

    def curve_notes(self, config: PreTrainedConfig | None) -> CurveNotes:
        return replace(super().curve_notes(config), metrics=search_name(self.num_beams(final=False)))

    def image_processor(self, model: PreTrainedModel) -> Any:
        """The image processor to save with the model; None for a model that reads text."""
        return None

    def plot_examples(self, evaluated: EvaluatedSplit, predictor: TextPredictor[Any]) -> list[Any]:
        """The examples of a split whose attention is plotted: the first row whose source is not blank."""
        question = first_question(evaluated.predictions or evaluated.rows())
        return [] if question is None else [question]

    # ---- proofs ------------------------------------------------------------------------------------------------------

    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        """The model with a few examples of validation; a trained model whose data is missing gets random inputs."""
        seed = self.recipe.train.seed
        if model_folder is None:
            splits = self.load_training_splits()
            model, state = self.open_model(None, splits)
            batch, origin = self.proof_batch(splits, state)
        else:
            folder = ModelFolder.open(model_folder)
            model, state = self.load_model(folder), self.restore(folder)
            try:
                batch, origin = self.proof_batch(self.load_training_splits(), state)
            except KitError as error:
                batch, origin = random_batch(model, seed), f"random {self.input_name}, because {error}"
        return Subject(model, small_batch(batch, position_limit(model.config)), seed, state.tokenizers), origin

    def proof_batch(self, splits: Splits, state: TaskState) -> tuple[Batch, str]:
        """A batch of the first examples of validation, and its description."""
        rows = splits.datasets["validation"]
        rows = rows.select(range(min(MAX_EXAMPLES, len(rows))))
        examples: Any = self.encode(rows, state, "validation").examples
        indices = np.arange(len(examples))[:MAX_EXAMPLES]
        return self.batch_of(examples, indices, state), f"{len(rows)} {self.example_name} of validation"


def vocabulary_settings(tokenizers: Tokenizers) -> dict[str, Any]:
    """The fields of a new model's configuration that its tokenizers determine."""
    target = tokenizers.target
    return {
        "vocab_size": len(tokenizers.source),
        "decoder_vocab_size": len(target),
        "separate_vocabularies": not tokenizers.shared,
        "bos_token_id": target.bos_token_id,
        "pad_token_id": target.pad_token_id,
        "eos_token_id": target.eos_token_id,
        "decoder_start_token_id": target.bos_token_id,
    }


def fit_to_tokenizer(model: PreTrainedModel, tokenizers: Tokenizers, recipe: Recipe) -> list[str]:
    """Adapt a pretrained model to its tokenizers: add embeddings for new language tags, take over their special tokens,
    and replace the generation settings that it was published with, with the tokens that the target language needs.

    Returns notes on what was changed. Raises RecipeError if the model and the tokenizers do not belong together.
    """
    known, needed = model.get_input_embeddings().num_embeddings, len(tokenizers.source)
    notes = tokenizer_notes(model, tokenizers, recipe)
    if known < needed and needed - len(tokenizers.source.init_kwargs.get(TAGS_KEY, ())) <= known:
        model.resize_token_embeddings(needed)
        notes.append(f"{needed - known} new embeddings, for the language tags of the tokenizer")
    check_embeddings(model, tokenizers, recipe)
    notes += adopt_special_tokens(model.config, tokenizers.target)
    tokens = tokenizers.generation_tokens() if tokenizers.languages.default_target else {}
    adopt_special_tokens(model.generation_config, tokenizers.target)
    model.generation_config.eos_token_id = end_id(tokenizers.target)
    model.generation_config = GenerationSettings(**tokens).seq2seq_config(model)
    if model.generation_config.decoder_start_token_id is None:
        raise RecipeError(
            "model.pretrained does not define the first token of its decoder: add decoder_start_token_id to its "
            "config.json"
        )
    return notes
