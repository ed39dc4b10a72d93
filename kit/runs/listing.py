"""`kit runs`: the runs in a folder, read from their files alone, without torch."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kit.errors import KitError, RunError
from kit.evaluation.metrics import greater_is_better
from kit.recipe.document import read_text, read_yaml
from kit.system.files import read_json, read_json_lines
from kit.system.format import RUN_FILE


@dataclass(frozen=True)
class ListedRun:
    """What is known about a run without loading it."""

    folder: Path
    task: str | None
    state: str
    """running, finished, failed or unfinished; damaged if its files cannot be read."""
    metric: str | None
    """Name of the headline metric: the first of eval.metrics, or the loss."""
    value: float | None
    split: str | None
    """The split that the metric was computed on."""
    step: int | None
    """The step of the model with this value; the last step of the log if nothing was evaluated."""
    changed: datetime
    """When the run last wrote its log or its results."""
    problem: str | None = None
    """Why the run failed, or cannot be read."""

    def as_json(self) -> dict[str, Any]:
        """The run for programs."""
        return {**vars(self), "folder": str(self.folder), "changed": self.changed.isoformat(timespec="seconds")}


def list_runs(folder: Path) -> list[ListedRun]:
    """The runs in a folder, or the folder itself if it is one, the last changed first. Raises RunError if the folder
    does not exist."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder. `kit train RECIPE` creates runs, by default under runs/")
    folders = [folder] if is_run(folder) else [path for path in sorted(folder.iterdir()) if is_run(path)]
    return sorted(map(listed, folders), key=lambda run: run.changed, reverse=True)


def is_run(path: Path) -> bool:
    """Whether kit has written a run into this folder."""
    return (path / RUN_FILE).is_file() and (path / "recipe.yaml").is_file()


def listed(path: Path) -> ListedRun:
    """What the files of a run show about it; for damaged files, the state `damaged` and the problem."""
    files = [path / name for name in ("results.json", "metrics.jsonl", "failure.json", RUN_FILE)]
    changed = datetime.fromtimestamp(max(file.stat().st_mtime for file in files if file.exists())).astimezone()
    try:
        recipe = read_yaml(read_text(path / "recipe.yaml"), "recipe.yaml").value
        if not isinstance(recipe, dict):
            raise RunError("recipe.yaml is not a recipe")
        metric, value, split, step = headline(path, recipe)
        state, problem = state_of(path)
        return ListedRun(path, recipe.get("task"), state, metric, value, split, step, changed, problem)
    except KitError as error:
        return ListedRun(path, None, "damaged", None, None, None, None, changed, str(error))


def state_of(path: Path) -> tuple[str, str | None]:
    """The state of a run, and the reason if it failed."""
    if is_locked(path / ".lock"):
        return "running", None
    if (path / "results.json").is_file():
        return "finished", None
    if (path / "failure.json").is_file():
        return "failed", read_json(path / "failure.json", "the failure of a run").get("error")
    return "unfinished", None


def is_locked(lock: Path) -> bool:
    """Whether a process trains in the folder of this lock."""
    if not lock.is_file():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a read-only folder
        return False


def headline(path: Path, recipe: Mapping[str, Any]) -> tuple[str | None, float | None, str | None, int | None]:
    """The metric that describes a run, its value, its split, and the step that it belongs to.

    A finished run has that of the test split, or of validation if there is no other; an unfinished one its best on
    validation so far.
    """
    section = recipe.get("eval")
    names = [*(section.get("metrics") or []), "loss"] if isinstance(section, dict) else ["loss"]
    if (path / "results.json").is_file():
        results = read_json(path / "results.json", "the results of a run")
        step = figures_in(results, "train").get("best_step")
        for split in ("test", "validation"):
            for name in names:
                if isinstance(value := figures_in(results, split).get(name), int | float):
                    return name, value, split, step
        return None, None, None, step
    last, values = None, dict[int, Mapping[str, Any]]()
    if (path / "metrics.jsonl").is_file():
        for _, entry in read_json_lines(path / "metrics.jsonl", "a metrics log", growing=True):
            last = entry.get("step", last)
            if isinstance(figures := entry.get("validation"), dict):
                values[entry["step"]] = figures
    for name in names:
        if evaluated := {step: x for step, of in values.items() if isinstance(x := of.get(name), int | float)}:
            sign = 1.0
            with suppress(KeyError):  # a metric that is registered in the program that trains
                sign = 1.0 if greater_is_better(name) else -1.0
            best = max(evaluated, key=lambda step: sign * evaluated[step])
            return name, evaluated[best], "validation", best
    return None, None, None, last


def figures_in(results: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The mapping with this name in the results; empty if there is none."""
    part = results.get(name)
    return part if isinstance(part, dict) else {}


def lines(runs: list[ListedRun], now: datetime, width: int) -> Iterator[str]:
    """A line for each run, truncated to the width of the terminal."""
    rows = [("run", "task", "state", "metric", "step", "age")]
    for run in runs:
        figure = "" if run.value is None else f"{run.metric} {run.value:.4g} ({run.split})"
        step = "" if run.step is None else f"{run.step:,}"
        rows.append(
            (str(run.folder), run.task or "", run.state, figure, step, age((now - run.changed).total_seconds()))
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row, problem in zip(rows, [None, *(run.problem for run in runs)], strict=True):
        text = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        text += f"  {problem}" if problem else ""
        yield text if len(text) <= width else text[: width - 1] + "…"


def age(seconds: float) -> str:
    """A duration in days, hours, minutes or seconds: the largest unit of which it has at least two."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
