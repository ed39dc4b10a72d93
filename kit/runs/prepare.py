"""From a recipe to everything that training needs before its first step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from kit.data.batching.plan import EpochPlan
from kit.data.report import DataReport
from kit.data.splits import Splits
from kit.data.statistics import Duplicates, Overlap, find_duplicates
from kit.data.streaming.plan import StreamPlan, buffer_seed
from kit.data.streaming.stream import START
from kit.data.text.tokenizer import Tokenizers
from kit.errors import RecipeError, RunError
from kit.evaluation.evaluator import Evaluator
from kit.hub.names import parse_repo_id
from kit.models import register_models
from kit.pretrained.adapters import adapter_config_file, add_adapter, describe_parameters
from kit.pretrained.folder import weights_dir
from kit.pretrained.loading import BuiltModel
from kit.recipe.base import Recipe
from kit.runs.revisions import pin_revisions
from kit.tasks.base import Task
from kit.tasks.registry import create_task
from kit.tasks.stages import Encoded, TaskState
from kit.training.layerwise import freeze
from kit.training.objective import Batch
from kit.training.processes import gather, on_main


@dataclass(frozen=True)
class Prepared:
    """A recipe with its data loaded and encoded, its batches planned and its model built."""

    recipe: Recipe
    """With the fingerprints of the data, and the commits of what is on the Hub."""
    task: Task[Any, Any]
    splits: Splits
    state: TaskState
    encoded: Mapping[str, Encoded[Any]]
    """The encoded examples by split; a stream is encoded while it is read, so it has no entry."""
    plan: EpochPlan | StreamPlan[Any]
    built: BuiltModel
    duplicates: tuple[Duplicates, Mapping[str, Overlap]]
    """Duplicates among the training examples, and what the other splits share with these."""

    @property
    def stream_plan(self) -> StreamPlan[Any] | None:
        """The plan, if the training data is streamed."""
        return self.plan if isinstance(self.plan, StreamPlan) else None

    @property
    def model(self) -> PreTrainedModel:
        return self.built.model

    @property
    def tokenizers(self) -> Tokenizers:
        return self.state.tokenizers

    @property
    def total_steps(self) -> int:
        """The number of steps that the recipe asks for."""
        train = self.recipe.train
        # the recipe of a stream has max_steps
        return train.max_steps or max(1, round((train.num_train_epochs or 1) * (self.plan.steps_per_epoch or 1)))

    @property
    def notes(self) -> list[str]:
        """Notes on the data, from reading and encoding it."""
        return [*self.splits.report.notes, *(note for encoded in self.encoded.values() for note in encoded.notes)]

    @property
    def report(self) -> DataReport:
        """What reading dropped from each split, and what splits share; for a stream, as far as it was read."""
        report = self.splits.report
        counted = {} if self.stream_plan is None else {"train": self.stream_plan.counts.report}
        shared = (overlap.describe(split) for split, overlap in self.duplicates[1].items())
        return DataReport({**report.splits, **counted}, [*self.notes, *filter(None, shared)], report.warnings)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Number of training examples that each filter dropped; for a stream, as far as it was read."""
        return self.encoded["train"].dropped if self.stream_plan is None else self.stream_plan.counts.filtered

    def make_batch(self, indices: np.ndarray, random: np.random.Generator) -> Batch:
        """The training batch of the examples with these indices in the plan."""
        examples = self.encoded["train"].examples if self.stream_plan is None else self.stream_plan.examples
        return self.task.collate(examples, indices, random, self.state)

    def evaluator(self, accelerator: Accelerator) -> Evaluator:
        """The evaluation loop, with batches of the recipe's size."""
        return Evaluator(self.recipe.eval.tokens_per_batch, accelerator)

    def first_buffer(self) -> "Prepared":
        """The same run with the first buffer of its stream as all training data; unchanged if nothing is streamed."""
        stream, train = self.splits.stream, self.recipe.train
        if stream is None:
            return self
        rows, train_report = stream.first_buffer(train.seed, self.recipe.data.buffer_size, train.micro_batches)
        notes = [*self.splits.report.notes, "train is streamed: its figures are those of the first buffer"]
        before = self.splits.report
        report = DataReport({**before.splits, "train": train_report}, notes, before.warnings)
        datasets = type(self.splits.datasets)({"train": rows, **self.splits.datasets})
        splits = replace(self.splits, datasets=datasets, report=report, stream=None)
        encoded = {"train": self.task.encode(rows, self.state, "train"), **self.encoded}
        plan = self.task.plan(encoded["train"].examples, buffer_seed(train.seed, START))
        duplicates = duplicates_of(self.task, splits, encoded)
        return replace(self, splits=splits, encoded=encoded, plan=plan, duplicates=duplicates)

    def summary(self) -> list[str]:
        """Lines to print before training: examples, what was left out, the model and the batches."""
        examples = {split: encoded.examples for split, encoded in self.encoded.items()}
        sizes = ", ".join(f"{len(rows):,} {split}" for split, rows in examples.items())
        return [
            f"data: {sizes} examples",
            *(f"  {line}" for line in self.report.lines()),
            *(
                f"  train: {count:,} examples left out by {self.task.filter_name(name)}"
                for name, count in self.dropped.items()
                if count
            ),
            *(
                f"  {split}: {rows.truncated:,} examples truncated to the positions of the model"
                for split, rows in examples.items()
                if rows.truncated
            ),
            f"model: {self.model.config.model_type}, {describe_parameters(self.model)}",
            *(f"  {note}" for note in self.built.notes),
            f"batches: {self.plan.describe()}, {self.total_steps:,} steps in all{self._epochs()}",
        ]

    def _epochs(self) -> str:
        """How often a run with a number of steps sees its data: a shipped recipe may be long for the data of a user."""
        if self.recipe.train.max_steps is None or self.plan.steps_per_epoch is None:
            return ""
        epochs = self.plan.epochs(self.total_steps)
        shown = f"{epochs:,.0f}" if epochs >= 10 else f"{epochs:.2g}"
        return f" ({shown} epoch{'s' * (shown != '1')})"


def prepare(recipe: Recipe, tokenizers: Tokenizers | None = None, accelerator: Accelerator | None = None) -> Prepared:
    """Load the data, build the tokenizers unless they are passed, encode the examples, plan batches, build the model.

    Nothing is written. Models and data on the Hub are pinned to commits. With several processes, the main one resolves
    these commits and builds or receives the tokenizers for all; each process does the rest for itself.
    """
    register_models()
    recipe = on_main(lambda: pin_revisions(recipe)).with_rows(recipe.data.rows)
    splits = create_task(recipe).load_training_splits()
    check_same_data(splits)
    recipe = recipe.with_values("data", fingerprints=splits.fingerprints)
    task = create_task(recipe)
    state = task.fit(splits, on_main(lambda: task.build_tokenizers(splits) if tokenizers is None else tokenizers))
    encoded = {split: task.encode(rows, state, split) for split, rows in splits.datasets.items()}
    duplicates = duplicates_of(task, splits, encoded)
    plan: EpochPlan | StreamPlan[Any]
    if splits.stream is None:
        plan = task.plan(encoded["train"].examples)
    else:
        process, processes = (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)
        plan = task.stream_plan(splits, state, process, processes)
    return Prepared(recipe, task, splits, state, encoded, plan, build_model(task, state), duplicates)


def duplicates_of(
    task: Task[Any, Any], splits: Splits, encoded: Mapping[str, Encoded[Any]]
) -> tuple[Duplicates, Mapping[str, Overlap]]:
    """Duplicates among the training examples, and by split, the overlap with them; none for a stream, which is not in
    memory."""
    others = dict(splits.datasets)
    train = others.pop("train", None)
    if train is None:
        return Duplicates(0, None), {}
    return find_duplicates(train, encoded["train"].kept, others, task.row_steps().example_columns)


def check_same_data(splits: Splits) -> None:
    """Raise RunError unless all processes, which may be on several machines, have read the same data."""
    expected, *others = gather([splits.fingerprints])
    for rank, fingerprints in enumerate(others, 1):
        changed = sorted(name for name in expected | fingerprints if expected.get(name) != fingerprints.get(name))
        if changed:
            raise RunError(
                f"process {rank} has different data from process 0 ({', '.join(changed)}): copy "
                "the same files to every "
                "machine, or read them from a disk that all machines share"
            )


def build_model(task: Task[Any, Any], state: TaskState) -> BuiltModel:
    """The model of the task, with the freezing and the adapter that the recipe asks for."""
    built, section, pretrained = task.build_model(state), task.recipe.peft, task.recipe.model.pretrained
    freeze(built.model, task.recipe.train)
    if section.method is None:
        return built
    assert pretrained is not None
    if adapter_config_file(weights_dir(pretrained)) is not None:
        raise RecipeError(
            f"model.pretrained: {pretrained} is an adapter, but a new adapter needs a plain model: create one with "
            f"`kit merge {pretrained} --output FOLDER`"
        )
    torch.manual_seed(task.recipe.train.seed)
    assert task.recipe.peft_task_type is not None  # the recipe rejects peft.method where there is none
    base = parse_repo_id(pretrained) or str(Path(weights_dir(pretrained)).resolve())
    add_adapter(built.model, section, task.recipe.peft_task_type, base, built.new_modules)
    return built
