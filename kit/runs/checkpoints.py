"""Use a checkpoint of a run, finished or not, instead of its model: `--checkpoint step-300`."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kit.errors import RunError
from kit.models import register_models
from kit.pretrained.folder import ModelFolder
from kit.runs.folder import RunFolder
from kit.runs.prepare import build_model
from kit.system.outputs import scratch_folder
from kit.tasks.base import Task
from kit.tasks.registry import create_task
from kit.tasks.stages import TaskState
from kit.training.checkpoint import Checkpoint, Checkpoints

COPIED = ("run.json", "recipe.yaml", "metrics.jsonl")


@contextmanager
def at_checkpoint(run: str, name: str | None) -> Iterator[str]:
    """Context manager: the run, or a temporary run folder whose model has the weights of one of its checkpoints.

    `name` is best, last, or step-N. The run itself may be training. Raises RunError if it has no such checkpoint.
    """
    if name is None:
        yield run
        return
    folder = RunFolder.open(Path(run))
    checkpoint = find_checkpoint(folder, name)
    with scratch_folder("kit-checkpoint-") as parent:
        copy = RunFolder(parent / f"{folder.path.resolve().name}-{checkpoint.folder.name}")
        copy.path.mkdir()
        for file in filter(Path.is_file, (folder.path / file for file in COPIED)):
            shutil.copyfile(file, copy.path / file.name)
        if folder.predictions.is_dir():
            shutil.copytree(folder.predictions, copy.predictions)
        task, model, state = model_of(folder)
        load_weights(model, checkpoint.weights(), checkpoint.folder)
        task.export(copy.model, model, state)
        yield str(copy.path)


def find_checkpoint(folder: RunFolder, name: str) -> Checkpoint:
    """The intact checkpoint named best, last or step-N. Raises RunError, which lists the names, if there is none."""
    intact = list(Checkpoints(folder.checkpoints).intact())
    steps = {checkpoint.step: checkpoint for checkpoint in intact}
    if not steps:
        raise RunError(f"--checkpoint {name}: {folder.path} has no intact checkpoint")
    best = intact[0].state()["progress"]["best_step"]
    if name == "last":
        return intact[0]
    if name == "best":
        step = best
    else:
        match = re.fullmatch(r"(?:step-)?(\d{1,18})", name)
        step = None if match is None else int(match[1])
    if step in steps:
        return steps[step]
    available = ", ".join(f"step-{number}{' (best)' if number == best else ''}" for number in sorted(steps))
    raise RunError(f"--checkpoint {name}: {folder.path} has no such checkpoint, only last, {available}")


def model_of(folder: RunFolder) -> tuple[Task[Any, Any], PreTrainedModel, TaskState]:
    """The task of a run, a model of the same architecture, whose weights are to be replaced, and the task's state.

    They come from the model folder of a finished run. An unfinished one has none, so its data is loaded again.
    """
    register_models()
    task = create_task(folder.recipe())
    if folder.model.is_dir():
        opened = ModelFolder.open(folder.path)
        return task, task.load_model(opened), task.restore(opened)
    splits = task.load_training_splits()
    tokenizers = folder.tokenizers()
    state = task.fit(splits, task.build_tokenizers(splits) if tokenizers is None else tokenizers)
    return task, build_model(task, state).model, state


def load_weights(model: PreTrainedModel, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copy the tensors of a checkpoint into a model. Parameters that it does not hold were frozen, and do not change.

    Raises RunError if the model has no tensor of such a name or shape.
    """
    current = model.state_dict()
    mismatched = sorted(name for name in tensors if name not in current or current[name].shape != tensors[name].shape)
    if mismatched:
        raise RunError(f"{where} does not match the model of the run: {', '.join(mismatched[:5])}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            current[name].copy_(tensor)
