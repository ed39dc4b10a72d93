"""Results on benchmarks of the Hub, as files in `.eval_results/`: the model's page and the benchmark's leaderboard show
them (https://huggingface.co/docs/hub/eval-results).

The metadata of the card (`model-index`) lists all results of a run, whatever the data. This format is for data sets
that are registered as benchmarks: their repository has an `eval.yaml` with the tasks, each of them a configuration and
a split.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from kit.cards.metadata import dataset_id
from kit.cards.tables import SPLITS, figures_of
from kit.errors import HubError, KitError, RecipeError
from kit.hub.download import read_repo_file
from kit.hub.names import one_line
from kit.hub.upload import BENCHMARK_RESULTS
from kit.recipe.base import Recipe
from kit.recipe.document import read_yaml

TASKS_FILE = "eval.yaml"
_DEFAULT_CONFIG = "default"
"""How `eval.yaml` names the configuration of a dataset that has a single one."""


def write_benchmark_results(recipe: Recipe, results: Mapping[str, Any], target: Path, repo: str) -> list[str]:
    """Write the results of a run that are on tasks of a benchmark into the folder to publish; returns notes.

    Asks the Hub only if the data of the run is a dataset there. If the Hub does not answer, or the benchmark is
    malformed, a note replaces the file: the card has the same results.
    """
    dataset = dataset_id(recipe)
    if dataset is None:
        return []
    try:
        tasks = read_tasks(dataset)
    except KitError as error:
        return [f"no {BENCHMARK_RESULTS}: {one_line(error)}"]
    from huggingface_hub import EvalResultEntry, constants, eval_result_entries_to_yaml

    entries, notes = [], []
    for task, split in matching_tasks(tasks, recipe):
        if (score := headline(recipe, figures_of(results, split))) is None:
            continue
        metric, value = score
        details = [metric, *left_out(results, split)]
        if split == "validation":
            details.append("the checkpoint was chosen on this split")
        entries.append(
            EvalResultEntry(
                dataset_id=dataset,
                task_id=task["id"],
                value=value,
                dataset_revision=recipe.data.revision,
                source_url=f"{constants.ENDPOINT}/{repo}",
                source_name="Model card",
                notes="; ".join(details),
            )
        )
        notes.append(f"{BENCHMARK_RESULTS}: {metric} {value} on the task {task['id']} of the benchmark {dataset}")
    if entries:
        (target / BENCHMARK_RESULTS).parent.mkdir()
        text = yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)
        (target / BENCHMARK_RESULTS).write_text(text, encoding="utf-8")
    return notes


def read_tasks(dataset: str) -> list[dict[str, Any]]:
    """The tasks of a benchmark on the Hub; none for any other dataset. Raises KitError if it is malformed."""
    content = read_repo_file(dataset, TASKS_FILE, "dataset", f"cannot look up whether {dataset} is a benchmark")
    if content is None:
        return []
    name = f"{TASKS_FILE} of {dataset}"
    try:
        benchmark = read_yaml(content.decode("utf-8"), name).value
    except (RecipeError, UnicodeDecodeError) as error:
        raise HubError(f"{name} cannot be read: {error}") from None
    tasks = benchmark.get("tasks") if isinstance(benchmark, dict) else None
    if not isinstance(tasks, list):
        raise HubError(f"{name} has no list of tasks")
    return [task for task in tasks if isinstance(task, dict) and isinstance(task.get("id"), str)]


def matching_tasks(tasks: list[dict[str, Any]], recipe: Recipe) -> Iterator[tuple[dict[str, Any], str]]:
    """The tasks that a run was evaluated on, each with the name of that split in the results.

    The whole split of the same configuration, and not rows held out of it; if the benchmark names the column that is
    read, the model has to read it, too.
    """
    data = recipe.data
    for task in tasks:
        fields = task.get("field_spec")
        column = fields.get("input") if isinstance(fields, dict) else None
        if isinstance(column, str) and column not in data.text_columns | data.value_columns:
            continue
        if str(task.get("config", _DEFAULT_CONFIG)) != (data.name or _DEFAULT_CONFIG):
            continue
        for split in SPLITS:
            if not data.is_held_out(split) and task.get("split") == getattr(data, split):
                yield task, split


def headline(recipe: Recipe, figures: Mapping[str, Any]) -> tuple[str, float] | None:
    """The first metric of the recipe with its value, rounded as on the card; None if it was not measured."""
    for metric in recipe.eval.metrics[:1]:
        value = figures.get(metric)
        if isinstance(value, int | float) and math.isfinite(value):
            return metric, round(float(value), 4)
    return None


def left_out(results: Mapping[str, Any], split: str) -> list[str]:
    """What the report on the data remarks on a split, such as rows that could not be read."""
    notes = figures_of(results, "data").get("notes") or ()
    return [str(note).partition(": ")[2] for note in notes if str(note).startswith(f"{split}: ")]
