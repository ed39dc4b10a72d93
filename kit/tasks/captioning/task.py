"""Image captioning: generate a text that describes an image."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from torch import nn
from transformers import AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel

from kit.cards.markdown import quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.rows import IMAGE_BYTES
from kit.data.steps import RowSteps
from kit.data.text.tokenizer import Tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.pipelines.image_to_text import TASK as PIPELINE
from kit.prediction.options import GenerateOptions
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import BuiltModel
from kit.tasks.captioning.examples import CaptionedImages
from kit.tasks.captioning.images import Images, PixelReader, image_cost, image_processor_of
from kit.tasks.captioning.inference import Captioner
from kit.tasks.captioning.recipe import CaptioningRecipe
from kit.tasks.captioning.rows import FILE, ImageSteps, root_of
from kit.tasks.families.seq2seq.card import results_note
from kit.tasks.families.seq2seq.evaluation import Sources, best_hypotheses, evaluate_generation, search_settings
from kit.tasks.families.seq2seq.task import Seq2SeqTask
from kit.tasks.stages import Encoded, EvaluatedSplit, TaskState, TextTokens, TokenView
from kit.training.objective import Batch, Objective, Seq2SeqObjective

PLOTTED_IMAGES = 3  # images of the test split whose attention is plotted after training


class Captioning(Seq2SeqTask[CaptionedImages]):
    """Image captioning: generate a text that describes an image."""

    auto_class: ClassVar[Any] = AutoModelForImageTextToText
    card_template: ClassVar[str] = "captioner"
    example_name: ClassVar[str] = "images"
    input_name: ClassVar[str] = "images"
    recipe: CaptioningRecipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        return config.model_type in CaptioningRecipe.kit_types

    @classmethod
    def predictor(cls, folder: ModelFolder, options: GenerateOptions) -> Captioner:
        return Captioner(folder, options)

    @property
    def pipelines(self) -> tuple[str, ...]:
        return (PIPELINE,)

    # ---- data --------------------------------------------------------------------------------------------------------

    def row_steps(self) -> RowSteps:
        return ImageSteps(self.recipe.data)

    def vocabulary_texts(self, rows: Dataset) -> list[str]:
        return [caption for captions in rows["caption"] for caption in captions]

    def new_config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        config = super().new_config(tokenizers)
        if config.model_type not in self.recipe.kit_types:
            raise RecipeError(
                f"model.pretrained: {self.recipe.model.pretrained} is a {config.model_type}, not a captioner of kit."
            )
        if config.num_channels not in (1, 3):
            raise RecipeError(f"model.num_channels: images have 3 color channels or 1, not {config.num_channels}.")
        return config

    def encode(self, rows: Dataset, state: TaskState, split: str) -> Encoded[CaptionedImages]:
        """Encode images and the tokens of their captions. Training captions longer than data.max_length are dropped."""
        tokenizers, captions_of_rows = state.tokenizers, rows["caption"]
        owners = np.repeat(np.arange(len(rows)), [len(captions) for captions in captions_of_rows])
        ids = tokenizers.encode_target(caption for captions in captions_of_rows for caption in captions)
        images = Images(rows, root_of(self.recipe.data), PixelReader(state.config))
        examples = CaptionedImages(images, RaggedTokens(ids), owners)
        if split != "train":
            return Encoded(examples)
        max_length = self.recipe.data.max_length
        # tokens that the tokenizer adds do not count
        fits = examples.lengths - len(tokenizers.encode_empty_target()) <= (max_length or np.inf)
        if not fits.any():
            raise DataError(
                f"data.max_length: none of the {len(examples):,} captions has {max_length} tokens or fewer."
            )
        kept = np.unique(owners[fits])  # a row is an image with all its captions
        return Encoded(examples.select(np.flatnonzero(fits)), {"max_length": int((~fits).sum())}, kept)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def batch_of(self, examples: CaptionedImages, indices: np.ndarray, state: TaskState) -> Batch:
        return examples.batch(indices)

    def token_lists(self, examples: CaptionedImages, state: TaskState) -> dict[str, TextTokens]:
        return {"caption": TextTokens(examples.captions, state.tokenizers.source)}

    def describe_batch(self, batch: Batch, state: TaskState) -> dict[str, TokenView]:
        return {"caption": TokenView(state.tokenizers.target, batch["labels"], batch["labels"] != IGNORE_INDEX)}

    def unreachable_references(self, examples: CaptionedImages) -> np.ndarray:
        lengths = examples.lengths
        return lengths[lengths > self.recipe.eval.max_new_tokens]

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def build_model(self, state: TaskState) -> BuiltModel:
        built = super().build_model(state)
        if self.recipe.train.micro_batches > 1 and any(isinstance(m, nn.BatchNorm2d) for m in built.model.modules()):
            raise RecipeError(
                "train.micro_batches: the backbone normalizes over the images of a batch, so several micro-batches or "
                "processes would change the training. Use one of each, or leave out model.backbone_config."
            )
        return built

    # ---- evaluation and results --------------------------------------------------------------------------------------

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[CaptionedImages],
        state: TaskState,
        *,
        final: bool = True,
    ) -> Evaluation:
        """The loss of all captions, and metrics of one output for each image, with all of its captions as
        references."""
        assert isinstance(objective, Seq2SeqObjective)
        examples, section = encoded.examples, self.recipe.eval
        cost = image_cost(objective.model.config)
        images = Sources(np.full(len(examples.images), cost), examples.image_batch)
        settings = search_settings(section, self.num_beams(final))
        return evaluate_generation(
            objective, Sources(np.maximum(examples.lengths, cost), examples.batch), len(examples.images),
            partial(best_hypotheses, objective, images, settings, evaluator),
            partial(prediction_rows, rows), state.tokenizers, section, evaluator,
        )  # fmt: skip

    def format_prediction(self, row: dict[str, Any]) -> str:
        mark = "=" if row["prediction"] in row["target"] else "≠"
        return f"{row['source']} → {row['prediction']} {mark} {' | '.join(row['target'])}"

    def image_processor(self, model: PreTrainedModel) -> Any:
        return image_processor_of(model.config)

    def plot_examples(self, evaluated: EvaluatedSplit, predictor: Any) -> list[Any]:
        """A few evenly spaced images of a split: predictions hold names of images only."""
        rows = evaluated.rows()
        number = min(PLOTTED_IMAGES, len(rows))
        few = rows.select([index * len(rows) // number for index in range(number)])
        images = Images(few, root_of(self.recipe.data), predictor.reader)
        return [images[index] for index in range(number)]

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        examples = [(row["source"], " / ".join(row["target"]), row["prediction"]) for row in rows]
        return {
            "custom_pipeline": True,
            "call": quoted("image.png"),
            "results_note": results_note(self.recipe, results),
            "examples_split": split,
            "examples_table": table(("image", "references", "output"), examples),
            "max_new_tokens": self.recipe.eval.max_new_tokens,
            "background": self.recipe.model.settings.get("background", "#ffffff"),
        }


def prediction_rows(rows: Dataset) -> list[dict[str, Any]]:
    """The rows of a split without their images: `source` is the name of the image, `target` its captions."""
    others = [name for name in rows.column_names if name not in ("image", "caption", FILE, IMAGE_BYTES)]
    selected = rows.select_columns(["caption", FILE, *others])
    return [{"source": row.pop(FILE), "target": row.pop("caption"), **row} for row in selected]
