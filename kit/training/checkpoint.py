"""Checkpoints: safetensors and JSON by parameter name, checked by checksum, written so that a kill at any moment
leaves either the whole checkpoint or none of it."""

import hashlib
import json
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
from kit.system.files import TEMPORARY_PREFIX, file_sha256, read_json, replace_folder
from kit.system.version import __version__
from kit.training.sharding import shard_like

FORMAT = 1
"""Number of the way in which checkpoints are written; it grows when a kit could no longer read those of another."""

AVERAGE_FILE = "average.safetensors"
CARRIED_FILE = "carried.safetensors"
REQUIRED = {"model.safetensors", "optimizer.safetensors", "state.json"}


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file; what the system refuses is an OSError with its number, as from any other file."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All that training may change by name: parameters that are not frozen, and saved buffers; tied ones once, under
    their first name."""
    saved = model.state_dict().keys()
    tensors: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    tensors.update((name, buffer) for name, buffer in model.named_buffers() if name in saved)
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def frozen_checksum(model: nn.Module) -> str | None:
    """A checksum of the parameters that are frozen, which no checkpoint holds; None if there are none."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    digest = hashlib.sha256()
    for parameter in frozen:
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest() if frozen else None


def load_model_tensors(model: nn.Module, tensors: dict[str, Tensor], where: Path | str) -> None:
    """Copy saved tensors into a model; names and shapes must be exactly the model's."""
    own = model_tensors(model)
    if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
        odd = sorted(
            name
            for name in own.keys() | tensors.keys()
            if name not in own or name not in tensors or own[name].shape != tensors[name].shape
        )
        raise RunError(f"{where} holds another model than the recipe describes: {', '.join(odd[:5])} do not fit")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(shard_like(tensor, tensors[name]))


def optimizer_tensors(optimizer: Optimizer, names: dict[Tensor, str]) -> dict[str, Tensor]:
    """The optimizer's state as `key:parameter name` → tensor (momentum is absent before the first step)."""
    tensors = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if value is not None:
                tensors[f"{key}:{names[parameter]}"] = torch.as_tensor(value).contiguous()
    return tensors


def load_optimizer_tensors(optimizer: Optimizer, names: dict[Tensor, str], tensors: dict[str, Tensor]) -> None:
    """Put saved state back by parameter name."""
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
    """One saved moment of a run."""

    folder: Path

    @property
    def step(self) -> int:
        return int(self.folder.name.removeprefix("step-"))

    def integrity_error(self) -> str | None:
        """What is wrong with its files, if anything."""
        if not (self.folder / "checksums.json").is_file():
            return "checksums.json is missing"
        try:
            sums = read_json(self.folder / "checksums.json", "checksums")
            if not sums.keys() >= REQUIRED:
                return "checksums.json does not name all its files"
            for name, expected in sums.items():
                if file_sha256(self.folder / name) != expected:
                    return f"{name} does not match its checksum"
        except FileNotFoundError as error:
            return f"{Path(str(error.filename)).name} is missing"
        except (OSError, RunError) as error:
            return str(error)
        return None

    def model(self) -> dict[str, Tensor]:
        return self._tensors("model.safetensors")

    def weights(self) -> dict[str, Tensor]:
        """The weights that the run is judged by: the moving average where it keeps one, or else the model's."""
        return self.average() or self.model()

    def average(self) -> dict[str, Tensor] | None:
        """The moving average of the weights, if the run keeps one."""
        return self._tensors(AVERAGE_FILE) if (self.folder / AVERAGE_FILE).is_file() else None

    def carried_state(self) -> dict[str, Tensor]:
        """What the objective carried from step to step, if anything."""
        return self._tensors(CARRIED_FILE) if (self.folder / CARRIED_FILE).is_file() else {}

    def optimizer(self) -> dict[str, Tensor]:
        return self._tensors("optimizer.safetensors")

    def _tensors(self, name: str) -> dict[str, Tensor]:
        try:
            return load_file(self.folder / name)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{self.folder / name} cannot be read: {error}") from error

    def state(self) -> dict[str, Any]:
        """Position, schedule and figures. Raises RunError if another version of kit wrote it in another way."""
        state = read_json(self.folder / "state.json", "the state of a checkpoint")
        found, by = state.get("format", 1), state.get("kit", "another version")
        if found != FORMAT:
            age = "a newer" if found > FORMAT else "an older"
            raise RunError(
                f"{self.folder} was written by kit {by}, in {age} form ({found}) than this kit {__version__} reads "
                f"({FORMAT}). Nothing was touched: go on with kit {by}, or train anew with another --output"
            )
        missing = {"progress", "plan", "schedule", "learning_rates", "scaler"} - state.keys()
        if missing:
            raise RunError(
                f"{self.folder / 'state.json'} does not have {', '.join(sorted(missing))}: kit {by} wrote it, and this "
                f"kit {__version__} cannot go on from it. Nothing was touched: train anew with another --output"
            )
        return state


class Checkpoints:
    """The `checkpoints/` folder of a run: the last few, and the best."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self.keep = keep

    def all(self) -> list[Checkpoint]:
        """From the oldest to the newest."""
        if not self.folder.is_dir():
            return []
        found = (Checkpoint(path) for path in self.folder.glob("step-*") if path.name[5:].isdigit())
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def newest_first(self) -> Iterator[tuple[Checkpoint, str | None]]:
        """With what is wrong with each, if anything."""
        for checkpoint in reversed(self.all()):
            yield checkpoint, checkpoint.integrity_error()

    def remove_partial(self) -> None:
        """Remove what a killed process left unfinished."""
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
        """Write a checkpoint whole, or raise and leave what was there."""
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
            state = {"format": FORMAT, "kit": __version__, **state}
            (temporary / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
            sums = {path.name: file_sha256(path) for path in sorted(temporary.iterdir())}
            (temporary / "checksums.json").write_text(json.dumps(sums, indent=1), encoding="utf-8")
            replace_folder(temporary, self.folder / f"step-{step}")
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return Checkpoint(self.folder / f"step-{step}")

    def rotate(self, best_step: int | None) -> None:
        """Keep the last few and the best."""
        for checkpoint in self.all()[: -self.keep]:
            if checkpoint.step != best_step:
                # renamed first, so that a kill in the middle of the removal leaves no half a checkpoint
                doomed = self.folder / f"{TEMPORARY_PREFIX}{checkpoint.folder.name}-old"
                os.rename(checkpoint.folder, doomed)
                shutil.rmtree(doomed, ignore_errors=True)
