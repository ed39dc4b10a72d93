"""From a recipe to everything a training needs, before the first step: the stations from text to model."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from kit.data.batching.plan import EpochPlan
from kit.data.report import DataReport
from kit.data.splits import Splits
from kit.data.streaming.plan import StreamPlan, buffer_seed
from kit.data.streaming.stream import START
from kit.data.text.tokenizer import Tokenizers
from kit.errors import RecipeError, RunError
from kit.evaluation.evaluator import Evaluator
from kit.models import register_models
from kit.pretrained.adapters import adapter_config_file, add_adapter, described_parameters
from kit.pretrained.loading import weights_dir
from kit.recipe.base import Recipe
from kit.runs.revisions import pinned
from kit.tasks.base import Encoded, MakeBatch, Task
from kit.tasks.registry import create_task
from kit.training.layerwise import freeze
from kit.training.processes import gather, on_main


@dataclass(frozen=True)
class Prepared:
    """A recipe with its data read, its tokenizers trained and its model built."""

    recipe: Recipe  # with the fingerprints of the data, and the commits of what is on the Hub
    task: Task[Any]
    splits: Splits
    tokenizers: Tokenizers
    encoded: Encoded[Any]
    plan: EpochPlan | StreamPlan[Any]
    model: PreTrainedModel

    @property
    def total_steps(self) -> int:
        """Number of steps that the recipe asks for."""
        train = self.recipe.train
        return train.max_steps or max(1, round((train.num_train_epochs or 1) * self.steps_per_epoch))

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch, which a stream does not know."""
        assert not isinstance(self.plan, StreamPlan)
        return self.plan.steps_per_epoch

    def batch_maker(self) -> MakeBatch:
        """From what the plan gives for a micro-batch to tensors."""
        return self.task.batch_maker(self.encoded, self.tokenizers, self.plan)

    def evaluator(self, accelerator: Accelerator) -> Evaluator:
        """The evaluation loop, in batches of the recipe's size."""
        return Evaluator(self.recipe.eval.tokens_per_batch, accelerator)

    def first_buffer(self) -> "Prepared":
        """The beginning of a streaming run, as if its first buffer were all there is to train on."""
        stream, train = self.splits.stream, self.recipe.train
        if stream is None:
            return self
        rows, told = stream.first_buffer(train.seed, self.recipe.data.buffer_size, train.micro_batches)
        notes = [*self.splits.report.notes, "train is streamed: all that is said of it is true of its first buffer"]
        report = DataReport({**self.splits.report.splits, "train": told}, notes)
        datasets = type(self.splits.datasets)({"train": rows, **self.splits.datasets})
        splits = replace(self.splits, datasets=datasets, report=report, stream=None)
        encoded = self.task.encode(splits, self.tokenizers)
        plan = self.task.plan(encoded.splits["train"], buffer_seed(train.seed, START))
        return replace(self, splits=splits, encoded=encoded, plan=plan)

    def summary(self) -> list[str]:
        """What a person should know before training begins."""
        sizes = ", ".join(f"{len(examples):,} {name}" for name, examples in self.encoded.splits.items())
        left_out = self.encoded.left_out.items()
        return [
            f"data: {sizes} examples",
            *(f"  {line}" for line in self.splits.report.lines()),
            *(
                f"  train: {count:,} examples left out by {self.task.filter_name(name)}"
                for name, count in left_out
                if count
            ),
            *(
                f"  {name}: {examples.cut:,} examples cut to what the model has positions for"
                for name, examples in self.encoded.splits.items()
                if examples.cut
            ),
            f"model: {self.model.config.model_type}, {described_parameters(self.model)}",
            f"batches: {self.plan.describe()}, {self.total_steps:,} steps in all",
        ]


def prepare(recipe: Recipe, tokenizers: Tokenizers | None = None, accelerator: Accelerator | None = None) -> Prepared:
    """Read the data, make the tokenizers unless they are given, encode the examples, plan the batches, build the model.

    Nothing is written. What the recipe names on the Hub is pinned to its commit. With several processes the main one
    does that, and makes the tokenizers (or is given them), for all.
    """
    register_models()
    recipe = on_main(lambda: pinned(recipe))
    splits = create_task(recipe).load()
    check_same_data(splits)
    recipe = recipe.with_values("data", fingerprints=splits.fingerprints)
    task = create_task(recipe)
    tokenizers = on_main(lambda: task.build_tokenizers(splits) if tokenizers is None else tokenizers)
    encoded = task.encode(splits, tokenizers)
    plan: EpochPlan | StreamPlan[Any]
    if splits.stream is None:
        plan = task.plan(encoded.splits["train"])
    else:
        process, processes = (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)
        plan = task.stream_plan(splits, encoded, tokenizers, process, processes)
    model = build_model(task, tokenizers)
    return Prepared(recipe, task, splits, tokenizers, encoded, plan, model)


def check_same_data(splits: Splits) -> None:
    """Raise RunError unless all processes, which may be on several machines, have read the same data."""
    expected, *others = gather([splits.fingerprints])
    for rank, fingerprints in enumerate(others, 1):
        changed = sorted(name for name in expected | fingerprints if expected.get(name) != fingerprints.get(name))
        if changed:
            raise RunError(
                f"process {rank} has other data than process 0 ({', '.join(changed)}): copy the same files to every "
                "machine, or read them from a disk that all machines share"
            )


def build_model(task: Task[Any], tokenizers: Tokenizers) -> PreTrainedModel:
    """The task's model, with what the recipe freezes frozen, and with the adapter that it asks for."""
    model, section, pretrained = task.build_model(tokenizers), task.recipe.peft, task.recipe.model.pretrained
    freeze(model, task.recipe.train)
    if section.method is not None:
        assert pretrained is not None
        if adapter_config_file(weights_dir(pretrained)) is not None:
            raise RecipeError(
                f"model.pretrained: {pretrained} is an adapter, and a new one needs a plain model below it: make one "
                f"with `kit merge {pretrained} --output FOLDER`"
            )
        torch.manual_seed(task.recipe.train.seed)
        assert task.recipe.peft_task_type is not None  # the recipe rejects peft.method where there is none
        return add_adapter(model, section, task.recipe.peft_task_type, weights_dir(pretrained), task.new_parts)
    return model
