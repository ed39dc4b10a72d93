"""From a recipe to everything a training needs, before the first step: the stations from text to model."""

from dataclasses import dataclass

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedModel

from kit.data.batches import BatchPlan
from kit.data.sources import Splits, load_splits
from kit.data.tokenizer import Tokenizers
from kit.models import register_models
from kit.recipe import Recipe
from kit.tasks import task_of
from kit.tasks.translation import Encoded, Translation


@dataclass(frozen=True)
class Prepared:
    """A recipe with its data read, its tokenizers trained and its model built."""

    recipe: Recipe  # with the fingerprints of the data
    task: Translation
    splits: Splits
    tokenizers: Tokenizers
    encoded: Encoded
    plan: BatchPlan
    model: PreTrainedModel

    @property
    def total_steps(self) -> int:
        """Number of steps that the recipe asks for."""
        train = self.recipe.train
        return train.max_steps or max(1, round((train.num_train_epochs or 1) * self.plan.steps_per_epoch))

    def summary(self) -> list[str]:
        """What a person should know before training begins."""
        sizes = ", ".join(f"{len(examples):,} {name}" for name, examples in self.encoded.splits.items())
        left_out = self.encoded.left_out.items()
        return [
            f"data: {sizes} examples",
            *(f"  {line}" for line in self.splits.report.lines()),
            *(f"  train: {count:,} examples left out by data.{name}" for name, count in left_out if count),
            f"model: {self.model.config.model_type}, {self.model.num_parameters():,} parameters",
            f"batches: {self.plan.steps_per_epoch:,} steps an epoch, {self.plan.padding().share:.1%} padding, "
            f"{self.total_steps:,} steps in all",
        ]


def prepare(recipe: Recipe, tokenizers: Tokenizers | None = None, accelerator: Accelerator | None = None) -> Prepared:
    """Read the data, make the tokenizers unless they are given, encode the examples, plan the batches, build the model.

    Nothing is written. With several processes the main one makes the tokenizers for all.
    """
    register_models()
    splits = load_splits(recipe.data)
    recipe = recipe.with_values("data", fingerprints=splits.fingerprints)
    task = task_of(recipe)
    if tokenizers is None:
        is_main = accelerator is None or accelerator.is_main_process
        tokenizers = broadcast_object_list([task.build_tokenizers(splits) if is_main else None])[0]
    encoded = task.encode(splits, tokenizers)
    plan = task.plan(encoded.splits["train"])
    model = task.build_model(tokenizers)
    return Prepared(recipe, task, splits, tokenizers, encoded, plan, model)
