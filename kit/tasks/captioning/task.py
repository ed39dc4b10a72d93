"""Captioning: from a picture to a text that says what is in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel

from kit.cards.markdown import quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.plan import BatchPlan, Plan
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.rows import IMAGE_BYTES
from kit.data.splits import Splits
from kit.data.steps import RowSteps
from kit.data.text.tokenizer import Tokenizers, build_tokenizer, load_pretrained_tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.pipelines.image_to_text import TASK as PIPELINE
from kit.prediction.options import GenerateOptions
from kit.pretrained.loading import ModelFolder, load_config, load_model
from kit.recipe.model_settings import config_class
from kit.tasks.base import Encoded, MakeBatch, TextTokens, TokenView
from kit.tasks.captioning.images import Pictures, PixelReader, image_processor_of, picture_cost
from kit.tasks.captioning.inference import Captioner
from kit.tasks.captioning.recipe import CaptioningRecipe
from kit.tasks.captioning.rows import FILE, ImageSteps, root_of
from kit.tasks.families.seq2seq.card import results_note
from kit.tasks.families.seq2seq.evaluation import Sources, best_hypotheses, evaluate_generation, search_settings
from kit.tasks.families.seq2seq.task import Writing, vocabulary_settings
from kit.training.objective import Batch, Objective, Seq2SeqObjective


@dataclass(frozen=True)
class Captioned:
    """Pictures and their captions: each caption is an example of its own."""

    pictures: Pictures
    captions: RaggedTokens
    owners: np.ndarray
    """Number of the picture of each caption."""
    cut: int = 0

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def lengths(self) -> np.ndarray:
        return self.captions.lengths

    def select(self, indices: np.ndarray) -> "Captioned":
        return Captioned(self.pictures, self.captions.select(indices), self.owners[indices])

    def batch(self, indices: np.ndarray) -> Batch:
        """Pixels and labels of these captions."""
        return {
            "pixel_values": self.pictures.pixels(self.owners[indices]),  # (batch, channels, side, side)
            "labels": self.captions.padded(indices, IGNORE_INDEX),  # (batch, target)
        }

    def source(self, places: np.ndarray) -> Batch:
        """Pixels of these pictures."""
        return {"pixel_values": self.pictures.pixels(places)}


PLOTTED_IMAGES = 3


class Captioning(Writing[Captioned]):
    """What a recipe of this task does at each station on the way of the data."""

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

    def row_steps(self) -> RowSteps:
        return ImageSteps(self.recipe.data)

    # ---- pictures and text → batches ---------------------------------------------------------------------------------

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        section = self.recipe.tokenizer
        pretrained = section.pretrained or self.recipe.model.pretrained
        if pretrained is not None:
            return load_pretrained_tokenizers(pretrained)
        captions = [caption for listed in self.vocabulary_rows(splits)["caption"] for caption in listed]
        tokenizer = build_tokenizer(section, captions, "training", ends=True)
        return Tokenizers(tokenizer, tokenizer)

    def encode(self, splits: Splits, tokenizers: Tokenizers) -> Encoded[Captioned]:
        """Pictures and token ids of every split; data.max_length applies to the training split only."""
        config = self.config(tokenizers)
        encoded = {name: self.encode_split(rows, tokenizers, config) for name, rows in splits.datasets.items()}
        train, most = encoded["train"], self.recipe.data.max_length
        # the end marker is no token of the text, so it does not count
        short = train.lengths - len(tokenizers.encode_empty_target()) <= (most or np.inf)
        if not short.any():
            raise DataError(f"data.max_length: none of the {len(train):,} captions is as short as {most} tokens.")
        encoded["train"] = train.select(np.flatnonzero(short))
        return Encoded(encoded, {"max_length": int((~short).sum())})

    def encode_split(self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig) -> Captioned:
        listed = rows["caption"]
        owners = np.repeat(np.arange(len(rows)), [len(captions) for captions in listed])
        ids = tokenizers.encode_target(caption for captions in listed for caption in captions)
        return Captioned(Pictures(rows, root_of(self.recipe.data), PixelReader(config)), RaggedTokens(ids), owners)

    def plan(self, examples: Captioned, seed: int | None = None) -> BatchPlan:
        return self.plan_lengths([examples.lengths], seed)

    def batch_maker(self, encoded: Encoded[Captioned], tokenizers: Tokenizers, plan: Plan) -> MakeBatch:
        train = encoded.splits["train"]
        return lambda indices, random: train.batch(indices)

    def token_lists(self, examples: Captioned, tokenizers: Tokenizers) -> dict[str, TextTokens]:
        return {"caption": TextTokens(examples.captions, tokenizers.source)}

    def unreachable_references(self, examples: Captioned) -> np.ndarray:
        lengths = examples.lengths
        return lengths[lengths > self.recipe.eval.max_new_tokens]

    def describe_batch(self, batch: Batch, tokenizers: Tokenizers) -> dict[str, TokenView]:
        return {"caption": TokenView(tokenizers.target, batch["labels"], batch["labels"] != IGNORE_INDEX)}

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        """The configuration of the model, new or pretrained."""
        section = self.recipe.model
        if section.pretrained is not None:
            config = load_config(section.pretrained, section.settings)
        else:
            assert section.type is not None
            config = config_class(section.type)(**section.settings, **vocabulary_settings(tokenizers))
        if config.model_type not in self.recipe.kit_types:
            raise RecipeError(
                f"model.pretrained: {section.pretrained} is a {config.model_type}, not a captioner of kit."
            )
        if config.num_channels not in (1, 3):
            raise RecipeError(
                f"model.num_channels: pictures are read in 3 colors or in 1, not in {config.num_channels}."
            )
        return config

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """A new model with weights by `train.seed`, or a pretrained one; in the precision of the recipe."""
        section, train = self.recipe.model, self.recipe.train
        torch.manual_seed(train.seed)
        config = self.config(tokenizers)
        if section.pretrained is None:
            model = AutoModelForImageTextToText.from_config(config, trust_remote_code=False)
        else:
            model = load_model(AutoModelForImageTextToText, section.pretrained, section.settings)
            known = model.get_input_embeddings().num_embeddings
            if known < len(tokenizers.target):
                raise RecipeError(
                    f"tokenizer.pretrained has {len(tokenizers.target)} tokens, but model.pretrained knows only "
                    f"{known}: use the model's own tokenizer by leaving tokenizer.pretrained out."
                )
        if train.micro_batches > 1 and any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
            raise RecipeError(
                "train.micro_batches: the backbone normalizes over the pictures of a batch, so that a step in several "
                "parts or processes would be another training. Use one of each, or leave out model.backbone_config."
            )
        return model.to(getattr(torch, train.dtype))

    def load_model(self, place: str | Path) -> PreTrainedModel:
        return load_model(AutoModelForImageTextToText, place)

    # ---- evaluation and what is left behind --------------------------------------------------------------------------

    def evaluate(
        self,
        objective: Objective,
        splits: Splits,
        encoded: Encoded[Captioned],
        tokenizers: Tokenizers,
        split: str,
        evaluator: Evaluator,
        final: bool = True,
    ) -> Evaluation:
        """The loss is that of all captions; a picture gets one, of which all of its captions are references."""
        assert isinstance(objective, Seq2SeqObjective)
        examples, section = encoded.splits[split], self.recipe.eval
        cost = picture_cost(objective.model.config)
        images = Sources(np.full(len(examples.pictures), cost), examples.source)
        settings = search_settings(section, self.num_beams(final))
        return evaluate_generation(
            objective, Sources(np.maximum(examples.lengths, cost), examples.batch), len(examples.pictures),
            partial(best_hypotheses, objective, images, settings, evaluator),
            partial(described, splits.datasets[split]), tokenizers, section, evaluator,
        )  # fmt: skip

    def shown(self, row: dict[str, Any]) -> str:
        mark = "=" if row["prediction"] in row["target"] else "≠"
        return f"{row['source']} → {row['prediction']} {mark} {' | '.join(row['target'])}"

    def image_processor(self, model: PreTrainedModel) -> Any:
        return image_processor_of(model.config)

    def plot_examples(self, rows: Dataset, predictor: Any) -> list[Any]:
        """A few images of a split, spread evenly over it."""
        number = min(PLOTTED_IMAGES, len(rows))
        few = rows.select([place * len(rows) // number for place in range(number)])
        images = Pictures(few, root_of(self.recipe.data), predictor.reader)
        return [images[index] for index in range(number)]

    def run_examples(self, predictions: Path, predictor: Any) -> list[Any]:
        """Images of the run's data, which its predictions do not contain."""
        splits = self.load().datasets
        split = next((name for name in ("test", "validation") if name in splits), None)
        return [] if split is None else self.plot_examples(splits[split], predictor)

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

    def batch_of(self, examples: Captioned, indices: np.ndarray, tokenizers: Tokenizers) -> Batch:
        return examples.batch(indices)


def described(rows: Dataset) -> list[dict[str, Any]]:
    """The rows of a split as predictions tell them: `source` is the name of the picture, `target` its captions."""
    others = [name for name in rows.column_names if name not in ("image", "caption", FILE, IMAGE_BYTES)]
    told = rows.select_columns(["caption", FILE, *others])
    return [{"source": row.pop(FILE), "target": row.pop("caption"), **row} for row in told]
