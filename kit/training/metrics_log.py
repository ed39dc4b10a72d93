"""The training log: `metrics.jsonl` always, experiment trackers on request."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import LoggerType
from accelerate.utils.imports import is_tensorboard_available, is_trackio_available, is_wandb_available

from kit.errors import RecipeError
from kit.system.json_files import to_json
from kit.system.outputs import write_text

TRACKERS = {"tensorboard": is_tensorboard_available, "wandb": is_wandb_available, "trackio": is_trackio_available}


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
        """Remove the entries after a step, which a resumed run logs again, and lines that are not entries: a kill or a
        full disk leaves a partial line, which can even end inside a character."""
        if not self.accelerator.is_main_process or not self.path.exists():
            return
        lines = (to_json(entry) for entry in self._entries() if entry["step"] <= step)
        write_text(self.path, "".join(f"{line}\n" for line in lines))

    def validations(self) -> dict[int, Mapping[str, Any]]:
        """The figures of the evaluations on validation, by step."""
        return {
            entry["step"]: entry["validation"] for entry in self._entries() if isinstance(entry.get("validation"), dict)
        }

    def _entries(self) -> Iterator[dict[str, Any]]:
        """The entries of the file, without the lines that are not entries."""
        for line in self.path.read_bytes().split(b"\n") if self.path.exists() else []:
            try:
                entry = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict) and isinstance(entry.get("step"), int):
                yield entry

    def add(self, step: int, **figures: Any) -> None:
        """Append the metrics of a step."""
        if self.accelerator.is_main_process:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(to_json({"step": step, **figures}) + "\n")
        if self.accelerator.trackers:
            flat = {}
            for name, value in figures.items():
                if isinstance(value, dict):
                    flat.update({f"{name}/{key}": v for key, v in value.items() if isinstance(v, int | float)})
                elif isinstance(value, int | float):
                    flat[f"train/{name}"] = value
            self.accelerator.log(flat, step=step)


class LogWindow:
    """Sums over the steps since the last log line."""

    def __init__(self) -> None:
        self.loss_sum = 0.0
        self.steps = self.tokens = self.real_tokens = self.padded_tokens = 0
        self.seconds = 0.0

    def add(self, loss: float, token_counts: Sequence[int], seconds: float) -> None:
        """Add a step: its loss, the three counts of `Objective.token_counts`, and its duration."""
        self.loss_sum += loss
        self.steps += 1
        self.tokens += token_counts[0]
        self.real_tokens += token_counts[1]
        self.padded_tokens += token_counts[2]
        self.seconds += seconds
