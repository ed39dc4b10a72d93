"""Checkpoints: safetensors and JSON by parameter name, with checksums, written atomically.

A process killed at any moment leaves either a complete checkpoint or none.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from kit.errors import RunError
from kit.system.files import TEMPORARY_PREFIX, file_sha256, read_json, recover_replaced, replace_folder
from kit.system.format import FORMAT_STAMP, check_format
from kit.system.json_files import write_json
from kit.system.version import __version__
from kit.training.sharding import shard_like

AVERAGE_FILE = "average.safetensors"
CARRIED_FILE = "carried.safetensors"
REQUIRED = {"model.safetensors", "optimizer.safetensors", "state.json"}


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises OSError with its errno, such as that of a full disk, which safetensors has only in the text of its exception.
    """
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters and persistent buffers by name. Tied parameters appear once, under their first name."""
    saved = model.state_dict().keys()
    tensors: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    tensors.update((name, buffer) for name, buffer in model.named_buffers() if name in saved)
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def frozen_checksum(model: nn.Module) -> str | None:
    """Checksum of the frozen parameters, which checkpoints do not store; None if there are none."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    digest = hashlib.sha256()
    for parameter in frozen:
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest() if frozen else None


def load_model_tensors(model: nn.Module, tensors: dict[str, Tensor], where: Path | str) -> None:
    """Copy saved tensors into a model, sharded or not.

    Raises RunError, which names their origin `where`, unless names and shapes match exactly.
    """
    current = model_tensors(model)
    if current.keys() != tensors.keys() or any(current[name].shape != tensors[name].shape for name in current):
        mismatched = sorted(
            name
            for name in current.keys() | tensors.keys()
            if name not in current or name not in tensors or current[name].shape != tensors[name].shape
        )
        raise RunError(f"{where} does not match the model of the recipe: {', '.join(mismatched[:5])}")
    with torch.no_grad():
        for name, tensor in current.items():
            tensor.copy_(shard_like(tensor, tensors[name]))


def optimizer_tensors(optimizer: Optimizer, names: dict[Tensor, str]) -> dict[str, Tensor]:
    """The optimizer state as `key:parameter name` → tensor, without momentum that is still None."""
    tensors = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if value is not None:
                tensors[f"{key}:{names[parameter]}"] = torch.as_tensor(value).contiguous()
    return tensors


def load_optimizer_tensors(optimizer: Optimizer, names: dict[Tensor, str], tensors: dict[str, Tensor]) -> None:
    """Restore the optimizer state by parameter name, whatever the order of the parameters."""
    states: dict[str, dict[str, Tensor]] = {}
    for key_and_name, tensor in tensors.items():
        key, name = key_and_name.split(":", 1)
        states.setdefault(name, {})[key] = tensor
    state_dict = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state_dict["state"] = {
        index: {
            key: shard_like(parameter, tensor) if tensor.shape == parameter.shape else tensor
            for key, tensor in states[names[parameter]].items()
        }
        for index, parameter in enumerate(parameters)
        if names[parameter] in states
    }
    optimizer.load_state_dict(state_dict)


@dataclass(frozen=True)
class Checkpoint:
    """A saved training state: the folder `step-N`."""

    folder: Path

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return int(self.folder.name.removeprefix("step-"))

    def integrity_error(self) -> str | None:
        """Why the checkpoint cannot be used (a missing or corrupt file), or None if it is intact."""
        if not (self.folder / "checksums.json").is_file():
            return "checksums.json is missing"
        try:
            sums = read_json(self.folder / "checksums.json", "checksums")
            if not sums.keys() >= REQUIRED:
                return "checksums.json does not list all files"
            for name, expected in sums.items():
                if file_sha256(self.folder / name) != expected:
                    return f"{name} does not match its checksum"
        except FileNotFoundError as error:
            return f"{Path(str(error.filename)).name} is missing"
        except (OSError, RunError) as error:
            return str(error)
        return None

    def model(self) -> dict[str, Tensor]:
        """Trainable weights and buffers by name, as the optimizer left them."""
        return self._tensors("model.safetensors")

    def weights(self) -> dict[str, Tensor]:
        """The weights used for evaluation and export: the moving average if the run has one, otherwise the model's."""
        return self.average() or self.model()

    def average(self) -> dict[str, Tensor] | None:
        """The moving average of the weights, or None if the run has none."""
        return self._tensors(AVERAGE_FILE) if (self.folder / AVERAGE_FILE).is_file() else None

    def carried_state(self) -> dict[str, Tensor]:
        """State that the objective carries from step to step; empty if there is none."""
        return self._tensors(CARRIED_FILE) if (self.folder / CARRIED_FILE).is_file() else {}

    def optimizer(self) -> dict[str, Tensor]:
        """The optimizer state as `key:parameter name` → tensor."""
        return self._tensors("optimizer.safetensors")

    def _tensors(self, name: str) -> dict[str, Tensor]:
        try:
            return load_file(self.folder / name)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{self.folder / name} cannot be read: {error}") from error

    def state(self) -> dict[str, Any]:
        """Position, schedule and progress. Raises RunError if another version of kit wrote them in another format."""
        state = read_json(self.folder / "state.json", "the state of a checkpoint")
        check_format(self.folder, state)
        missing = {"progress", "plan", "schedule", "learning_rates", "scaler"} - state.keys()
        if missing:
            raise RunError(
                f"{self.folder / 'state.json'} lacks {', '.join(sorted(missing))}, which kit {__version__} needs to "
                "resume. Nothing was touched: start a new run with another --output"
            )
        return state


class Checkpoints:
    """The `checkpoints/` folder of a run."""

    def __init__(self, folder: Path):
        self.folder = folder

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of a step, which need not exist."""
        return Checkpoint(self.folder / f"step-{step}")

    def all(self) -> list[Checkpoint]:
        """All checkpoints, from the oldest to the newest."""
        if not self.folder.is_dir():
            return []
        checkpoints = (
            Checkpoint(path) for path in self.folder.glob("step-*") if re.fullmatch(r"step-[0-9]{1,18}", path.name)
        )
        return sorted(checkpoints, key=lambda checkpoint: checkpoint.step)

    def newest_first(self) -> Iterator[tuple[Checkpoint, str | None]]:
        """All checkpoints from the newest to the oldest, each with its integrity error or None."""
        for checkpoint in reversed(self.all()):
            yield checkpoint, checkpoint.integrity_error()

    def intact(self) -> Iterator[Checkpoint]:
        """The intact checkpoints, from the newest to the oldest. Each is read as a whole to compare its checksums."""
        return (checkpoint for checkpoint, error in self.newest_first() if error is None)

    def remove_partial(self) -> None:
        """Remove what a killed process left, and restore a checkpoint that it was about to replace."""
        recover_replaced(self.folder)
        for path in self.folder.glob(f"{TEMPORARY_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)

    def save(
        self,
        step: int,
        model: dict[str, Tensor],
        optimizer: dict[str, Tensor],
        state: dict[str, Any],
        average: dict[str, Tensor] | None = None,
        carried: dict[str, Tensor] | None = None,
    ) -> Checkpoint:
        """Write a checkpoint atomically: if it raises, earlier checkpoints are untouched and no partial one remains."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f"{TEMPORARY_PREFIX}step-{step}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            write_tensors(model, temporary / "model.safetensors")
            write_tensors(optimizer, temporary / "optimizer.safetensors")
            if average is not None:
                write_tensors(average, temporary / AVERAGE_FILE)
            if carried:
                write_tensors(carried, temporary / CARRIED_FILE)
            state = {**FORMAT_STAMP, **state}
            write_json(temporary / "state.json", state)
            sums = {path.name: file_sha256(path) for path in sorted(temporary.iterdir())}
            write_json(temporary / "checksums.json", sums)
            replace_folder(temporary, self.at(step).folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return self.at(step)

    def rotate(self, step: int, best_step: int | None, keep: int) -> None:
        """Delete all checkpoints but the best one and the last `keep` up to the step that has just been saved.

        Newer ones are corrupt: the run would have resumed from them.
        """
        checkpoints = self.all()
        last = [checkpoint for checkpoint in checkpoints if checkpoint.step <= step][-keep:]
        for checkpoint in checkpoints:
            if checkpoint not in last and checkpoint.step != best_step:
                # Rename first: a kill during the removal must not leave a folder that looks like a checkpoint.
                trash = self.folder / f"{TEMPORARY_PREFIX}{checkpoint.folder.name}-old"
                os.rename(checkpoint.folder, trash)
                shutil.rmtree(trash, ignore_errors=True)
