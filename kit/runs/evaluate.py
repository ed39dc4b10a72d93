"""Evaluate a trained model again: on another split, on other data or with another search."""

from pathlib import Path

from accelerate import Accelerator

from kit.errors import DataError, RunError, did_you_mean
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.hub.download import is_downloaded, resolve_folder
from kit.pretrained.folder import ModelFolder
from kit.recipe.parse import check_sections
from kit.runs.folder import RunFolder
from kit.runs.revisions import check_foreign_paths
from kit.tasks.registry import create_task, load_recipe


def evaluate(run: str | Path, split: str = "test", overrides: list[str] | None = None) -> Evaluation:
    """Figures and predictions of a run's best model on a split of its data; `run` is a folder, or a run on the Hub.

    `overrides` change the run's recipe for this evaluation: `eval.num_beams=5`, `data.path=…`. Nothing is written.
    Raises KitError if the run has no model yet, the data has no such split, or an override is wrong.
    """
    folder = RunFolder.open(resolve_folder(run))
    changed = list(overrides or [])
    check_sections(changed, "data", "eval", example="eval.tokens_per_batch=4096")
    if any(override.startswith("data.") for override in changed):
        changed.append("data.fingerprints=null")  # the user asked for other data
    if any(override.startswith("data.directions=") for override in changed):
        # these keys apply to training data only, and may name other directions
        changed[:0] = ["data.direction_sizes=null", "data.direction_repeats=null"]
    folder.recipe()  # raises RunError for a recipe that was edited
    # not read as saved: a metric that is not registered here is reported before anything is computed
    recipe = load_recipe(folder.recipe_file, changed)
    if is_downloaded(folder.path):
        check_foreign_paths(recipe, str(run), overrides or [])
    if not folder.model.is_dir():
        raise RunError(f"{folder.path} has no model yet: finish it with `kit train {folder.path} --resume`")
    task = create_task(recipe)
    model_folder = ModelFolder.open(folder.model)
    model = task.load_model(model_folder)
    splits = task.load_splits()
    if split not in splits.datasets:
        names = list(splits.datasets)
        raise DataError(f"the data has no split {split!r}, only {', '.join(names)}.{did_you_mean(split, names)}")
    state, rows, accelerator = task.restore(model_folder, splits), splits.datasets[split], Accelerator()
    # not encoded as "train", whose filters would drop examples
    encoded = task.encode(rows, state, "evaluated" if split == "train" else split)
    objective = task.objective(model.to(accelerator.device).eval(), state)
    return task.evaluate(Evaluator(recipe.eval.tokens_per_batch, accelerator), objective, rows, encoded, state)
