"""The training log: `metrics.jsonl` always, experiment trackers on request."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import LoggerType
from accelerate.utils.imports import is_tensorboard_available, is_trackio_available, is_wandb_available
from torch import Tensor

from kit.errors import RecipeError
from kit.system.files import write_text

TRACKERS = {
    "tensorboard": is_tensorboard_available,
    "wandb": is_wandb_available,
    "trackio": is_trackio_available,
}


def check_trackers(names: Sequence[str]) -> list[str | LoggerType]:
    """The trackers to pass to Accelerate, which skips missing ones. Raises RecipeError if one is not installed."""
    for name in names:
        if not TRACKERS[name]():
            raise RecipeError(
                f"train.report_to names {name}, which is not installed: pip install {name}, or leave it out"
            )
    return list(names)


class MetricsLog:
    """Metrics as one JSON object per line, appended during training by the main process only."""

    def __init__(self, path: Path, accelerator: Accelerator):
        self.path = path
        self.accelerator = accelerator

    def rewind(self, step: int) -> None:
        """Remove the entries after a step, because a resumed run logs those steps again."""
        if not self.accelerator.is_main_process or not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                break  # a line truncated by a kill; later lines belong to later steps
            if entry["step"] <= step:
                kept.append(line)
        write_text(self.path, "".join(f"{line}\n" for line in kept))

    def add(self, step: int, **figures: Any) -> None:
        """Append the metrics of a step."""
        if self.accelerator.is_main_process:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **figures}, ensure_ascii=False) + "\n")
        if self.accelerator.trackers:
            flat = {}
            for name, value in figures.items():
                if isinstance(value, dict):
                    flat.update({f"{name}/{key}": v for key, v in value.items() if isinstance(v, int | float)})
                elif isinstance(value, int | float):
                    flat[f"train/{name}"] = value
            self.accelerator.log(flat, step=step)


class LogWindow:
    """Metrics since the last log line."""

    def __init__(self) -> None:
        self.loss_sum = torch.zeros(())
        self.steps = self.tokens = self.real_tokens = self.padded_tokens = 0
        self.seconds = 0.0

    def add(self, loss: Tensor, token_counts: Tensor, seconds: float) -> None:
        """Add a step: its loss, and the three counts of `Objective.token_counts`."""
        self.loss_sum = self.loss_sum + loss.cpu()
        self.steps += 1
        self.tokens += int(token_counts[0])
        self.real_tokens += int(token_counts[1])
        self.padded_tokens += int(token_counts[2])
        self.seconds += seconds
