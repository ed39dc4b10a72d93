"""Evaluate a trained model again: on another split, on other data or with another search."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from kit.data.in_memory import datasets_of
from kit.data.report import DataReport
from kit.data.sources import SPLITS
from kit.data.splits import Splits
from kit.errors import DataError, MissingDataError, RecipeError, RunError, did_you_mean
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.hub.download import resolve_folder
from kit.pretrained.folder import ModelFolder
from kit.recipe.base import Recipe
from kit.recipe.data import IN_MEMORY
from kit.recipe.document import parse_override
from kit.recipe.parse import check_overrides
from kit.runs.folder import RunFolder
from kit.system.console import counted
from kit.system.device import check_environment, preserved_random_state
from kit.tasks.base import Task
from kit.tasks.registry import create_task, load_recipe

NAMES_OTHER_DATA = ("data.path", "data.name", "data.revision", "data.train")
"""Keys whose override means different data from that of the run."""
OF_ONE_PATH = ("name", "revision", "languages", "sizes")
"""Data keys that describe what is at `data.path`: with another path they are reset to their defaults."""


def evaluate(
    run: str | Path,
    split: str | None = None,
    overrides: list[str] | None = None,
    report: Callable[[str], object] = lambda line: None,
    *,
    data: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Evaluate a run's best model on a split of its data, or on other data; returns figures and predictions.

    `run` is a run folder, or a run on the Hub. Without `split`, it is test, or the only split of other data, such as a
    file. `overrides` change the run's recipe for this evaluation: `eval.num_beams=5`, `data.path=…`. `data` has rows
    from Python, by split, as for `kit.train`. Every row of other data is evaluated: none is held out, and the filters
    for training data do not apply. `report` is called with a line about the split, and with notes on rows that are left
    out. Nothing is written. Raises KitError if the run has no model yet, the data has no such split, or an override is
    wrong.
    """
    overrides = [*(overrides or []), *([] if data is None else [f"data.path={IN_MEMORY}"])]
    folder = RunFolder.open(resolve_folder(run), overrides)
    recipe = changed_recipe(folder, split, overrides)
    if data is not None:
        recipe = load_recipe(recipe, rows=datasets_of(data))
    if not folder.model.is_dir():
        raise RunError(f"{folder.path} has no model yet: finish it with `kit train {folder.path} --resume`")
    task = create_task(recipe)
    model_folder = ModelFolder.open(folder.model)
    model = task.load_model(model_folder)
    splits = load_splits(task, str(run), overrides)
    names = list(splits.datasets)
    if split is None:
        split = names[0] if len(names) == 1 else "test"
    if split not in names:
        raise DataError(
            f"the data has no split {split!r}, only {', '.join(names)}.{did_you_mean(split, names)} Choose one of them "
            "with --split."
        )
    check_environment()
    state, rows, accelerator = task.restore(model_folder, splits), splits.datasets[split], Accelerator()
    # not encoded as "train", whose filters would drop examples
    encoded = task.encode(rows, state, "evaluated" if split == "train" else split)
    report(f"evaluated: {recipe.data.path}, {split}, {counted(len(rows), 'row')}")
    for line in [*DataReport({split: splits.report.splits[split]}).lines(), *encoded.notes]:
        report(line)
    objective = task.objective(model.to(accelerator.device).eval(), state)
    evaluator = Evaluator(recipe.eval.tokens_per_batch, accelerator)
    with preserved_random_state():
        return task.evaluate(evaluator, objective, rows, encoded, state)


def load_splits(task: Task[Any, Any], run: str, overrides: list[str]) -> Splits:
    """The data of the evaluation. If that of the run is not on this machine, raises DataError with how to name other
    data."""
    try:
        return task.load_splits()
    except MissingDataError as error:
        if any(override.partition("=")[0] in NAMES_OTHER_DATA for override in overrides):
            raise
        columns = [*task.recipe.data.text_columns, *task.recipe.data.value_columns]
        described = f"with {' and '.join(columns)}" if columns else "like it"
        raise DataError(
            f"the data of {run} is not available here, and is not a part of the run. {error} To evaluate on other data "
            f"{described}: kit eval {run} data.path=FILE_OR_FOLDER"
        ) from None


def changed_recipe(folder: RunFolder, split: str | None, overrides: list[str]) -> Recipe:
    """The recipe of an evaluation. Raises RecipeError for an override that would have no effect on it."""
    trained = folder.recipe()
    changed = check_overrides(
        overrides, trained, trained.keys_after_training("evaluation_keys"), f"the evaluation of {folder.path}"
    )
    # not read as saved: a metric that is not registered here is reported before anything is computed
    recipe = load_recipe(folder.recipe_file, [*implied_overrides(trained, overrides, split), *overrides])
    unused: dict[str, str] = {}
    for name in ("data", "eval"):
        reasons = getattr(recipe, name).unused_in_evaluation()
        unused |= {f"{name}.{key}": reason for key, reason in reasons.items()}
    for key in sorted(changed & unused.keys()):
        raise RecipeError(f"on the command line: {key} has no effect {unused[key]}. Leave it out.")
    encoding = {f"data.{key}" for key in recipe.data.keys_of("encoding_keys")}
    rows_changed = {key for key in changed - encoding if key.startswith("data.")} - {"data.fingerprints"}
    if not rows_changed:
        return recipe
    if not rows_changed.isdisjoint(NAMES_OTHER_DATA):
        keys = [key for key in recipe.data.keys_of("own_data_keys") if f"data.{key}" not in changed]
        if split in ("validation", "test"):
            keys = [key for key in keys if key != "streaming"]  # what is not evaluated need not fit into memory
        return recipe.with_values("data", **defaults(recipe, keys))
    if recipe.data.is_held_out(split or "test"):
        raise RecipeError(
            f"on the command line: {min(rows_changed)} would change which rows are held out of the training data, and "
            f"with them the split {split or 'test'}. Evaluate other data (data.path), or leave it out."
        )
    return recipe if "data.fingerprints" in changed else recipe.with_values("data", fingerprints=None)


def implied_overrides(trained: Recipe, overrides: Sequence[str], split: str | None) -> list[str]:
    """Overrides that follow from those of the user: they reset keys of the trained recipe that would not match them.

    They go before the user's own, which take precedence.
    """
    changed = dict(map(parse_override, overrides))
    keys: list[str] = []
    names: list[str] = []
    if "data.path" in changed:
        # other data need not have the splits that are not evaluated, and a file has no names of splits
        is_file = Path(str(changed["data.path"])).expanduser().is_file()
        names = [f"data.{name}={name}" for name in SPLITS if is_file or name != (split or "test")]
        keys += [f"data.{name}" for name in OF_ONE_PATH if name in type(trained.data).model_fields]
    if "data.directions" in changed:  # these keys apply to training data only, and may name other directions
        keys += ["data.direction_sizes", "data.direction_repeats"]
    # an evaluation chooses no checkpoint
    best = ["eval.metric_for_best_model=loss"] if "eval.metrics" in changed else []
    return [*(f"{key}=null" for key in keys), *names, *best]


def defaults(recipe: Recipe, keys: Collection[str]) -> dict[str, Any]:
    """The default values of these keys of the recipe's section `data`."""
    fields = type(recipe.data).model_fields
    return {key: fields[key].get_default(call_default_factory=True) for key in keys}
