"""What tasks have in common whose models write a text by search: translation, dialogue, captioning."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedModel

from kit.data.batching.plan import Plan
from kit.data.splits import Splits
from kit.data.text.languages import TAGS_KEY
from kit.data.text.tokenizer import Tokenizers
from kit.decoding.settings import GenerationSettings
from kit.errors import KitError, RecipeError
from kit.evaluation.compare import read_predictions
from kit.evaluation.evaluation import Evaluation
from kit.plots.curves import save_figure
from kit.prediction.options import GenerateOptions, PlotOptions
from kit.prediction.text import TextPredictor
from kit.pretrained.loading import ModelFolder, export_model
from kit.pretrained.positions import position_limit
from kit.tasks.base import E, Task
from kit.tasks.families.seq2seq.evaluation import search_settings
from kit.tasks.families.seq2seq.plots import first_question
from kit.tasks.families.seq2seq.recipe import Seq2SeqRecipe
from kit.training.objective import Batch, SamplingSchedule, Seq2SeqObjective
from kit.verify.proof import Proof
from kit.verify.seq2seq import PROOFS
from kit.verify.subject import MAX_EXAMPLES, Subject, random_batch, small_batch


class Writing(Task[E]):
    """A task whose model learns from right texts and writes its own."""

    recipe: Seq2SeqRecipe
    proofs: ClassVar[Sequence[Proof]] = PROOFS
    example_name: ClassVar[str] = "examples"
    input_name: ClassVar[str] = "tokens"
    """What messages call an example, and what a model reads."""

    def objective(self, model: PreTrainedModel, plan: Plan | None = None) -> Seq2SeqObjective:
        train = self.recipe.train
        sampling = SamplingSchedule.of(self.recipe.model, train)
        return Seq2SeqObjective(model, train.label_smoothing_factor, train.normalize_by, sampling)

    def num_beams(self, final: bool) -> int:
        """How wide the search of an evaluation is: narrower while training, where it is made often."""
        section = self.recipe.eval
        return section.num_beams if final else section.num_beams_while_training

    def image_processor(self, model: PreTrainedModel) -> Any:
        """What makes pixels of pictures, for models that read them."""
        return None

    def export(self, folder: Path, model: PreTrainedModel, tokenizers: Tokenizers) -> None:
        generation = search_settings(self.recipe.eval, self.recipe.eval.num_beams).seq2seq_config(model)
        export_model(folder, model, tokenizers, generation, self.pipelines, self.image_processor(model))

    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        """The model with a few examples of the validation split, or of random inputs if the data cannot be had."""
        seed = self.recipe.train.seed
        if model_folder is None:
            splits = self.load()
            tokenizers = self.build_tokenizers(splits)
            model = self.build_model(tokenizers)
            batch, origin = self.proof_batch(splits, tokenizers, model)
        else:
            tokenizers, model = self.load_tokenizers(model_folder), self.load_model(model_folder)
            try:
                batch, origin = self.proof_batch(self.load(), tokenizers, model)
            except KitError as error:
                batch, origin = random_batch(model, seed), f"random {self.input_name}, because {error}"
        return Subject(model, small_batch(batch, position_limit(model.config)), seed, tokenizers), origin

    def proof_batch(self, splits: Splits, tokenizers: Tokenizers, model: PreTrainedModel) -> tuple[Batch, str]:
        """The first examples of the validation split, or of the first split, and what they are."""
        name = "validation" if "validation" in splits.datasets else next(iter(splits.datasets))
        rows = splits.datasets[name]
        rows = rows.select(range(min(MAX_EXAMPLES, len(rows))))
        examples: Any = self.encode_split(rows, tokenizers, model.config)
        indices = np.arange(len(examples))[:MAX_EXAMPLES]
        return self.batch_of(examples, indices, tokenizers), f"{len(rows)} {self.example_name} of {name}"

    def draw(self, model_folder: Path, splits: Splits, split: str, evaluation: Evaluation, plots: Path) -> None:
        """Plot the attention of the exported model for examples, which also proves that it can be loaded."""
        predictor = self.predictor(ModelFolder.open(model_folder), GenerateOptions())
        if examples := self.plot_examples(splits.datasets[split], predictor):
            for name, figure in predictor.attention_figures(PlotOptions(), lambda: examples).items():
                save_figure(figure, plots / name)

    def plot_examples(self, rows: Iterable[Mapping[str, Any]], predictor: TextPredictor[Any]) -> list[Any]:
        """What the attention of a split is plotted for: the first row with anything to read."""
        question = first_question(rows)
        return [] if question is None else [question]

    def run_examples(self, predictions: Path, predictor: TextPredictor[Any]) -> list[Any]:
        """What the attention of a run is plotted for, from its predictions in a folder."""
        files = [predictions / f"{split}.jsonl" for split in ("test", "validation")]
        examples = (self.plot_examples(read_predictions(file), predictor) for file in files if is_filled(file))
        return next((found for found in examples if found), [])

    @classmethod
    @abstractmethod
    def predictor(cls, folder: ModelFolder, options: GenerateOptions) -> TextPredictor[Any]:
        """What generates text with a trained model."""

    @abstractmethod
    def batch_of(self, examples: E, indices: np.ndarray, tokenizers: Tokenizers) -> Batch:
        """These examples as tensors."""


def vocabulary_settings(tokenizers: Tokenizers) -> dict[str, Any]:
    """What the tokenizers decide about a new model."""
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


def suit_tokenizers(model: PreTrainedModel, tokenizers: Tokenizers) -> None:
    """Make a pretrained model fit its tokenizers: word vectors for new language tags, and a search with the tokens that
    the target language needs and nothing else of what the model was published with.

    Raises RecipeError where the two cannot belong together.
    """
    known, needed = model.get_input_embeddings().num_embeddings, len(tokenizers.source)
    if known < needed and needed - len(tokenizers.source.init_kwargs.get(TAGS_KEY, ())) <= known:
        model.resize_token_embeddings(needed)
    elif known < needed:
        raise RecipeError(
            f"tokenizer.pretrained has {needed} tokens, but model.pretrained knows only {known}: "
            "use the model's own tokenizer by leaving tokenizer.pretrained out"
        )
    tokens = tokenizers.generation_tokens() if tokenizers.languages.default_target else {}
    model.generation_config = GenerationSettings(**tokens).seq2seq_config(model)
    if model.generation_config.decoder_start_token_id is None:
        raise RecipeError(
            "model.pretrained does not say what its decoder starts from: write decoder_start_token_id into its "
            "config.json"
        )


def is_filled(file: Path) -> bool:
    """Whether a file exists and is not empty."""
    return file.is_file() and file.stat().st_size > 0
