"""Evaluate a trained model again: on another split, other data or with another search."""

from pathlib import Path

from accelerate import Accelerator

from kit.errors import DataError, RunError, did_you_mean
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.hub.download import resolve_folder
from kit.recipe.parse import check_sections
from kit.runs.folder import RunFolder
from kit.tasks.base import Encoded
from kit.tasks.registry import create_task, load_recipe


def evaluate(run: str | Path, split: str = "test", overrides: list[str] | None = None) -> Evaluation:
    """Figures and predictions of a run's best model on a split of its data; `run` is a folder, or a run on the Hub.

    `overrides` change the run's recipe for this evaluation: `eval.num_beams=5`, `data.path=…`.
    """
    folder = RunFolder.existing(resolve_folder(run))
    changed = list(overrides or [])
    check_sections(changed, "data", "eval", example="eval.tokens_per_batch=4096")
    if any(override.startswith("data.") for override in changed):
        changed.append("data.fingerprints=null")  # other data is what is asked for
    if any(override.startswith("data.directions=") for override in changed):
        # they concern training data alone, and may name other directions
        changed[:0] = ["data.direction_sizes=null", "data.direction_repeats=null"]
    recipe = load_recipe(folder.recipe_file, changed)
    if not folder.model.is_dir():
        raise RunError(f"{folder.path} has no model yet: finish it with `kit train {folder.path} --resume`")
    task = create_task(recipe)
    tokenizers = task.load_tokenizers(folder.model)
    model = task.load_model(folder.model)
    splits = task.load()
    if split not in splits.datasets:
        names = list(splits.datasets)
        raise DataError(f"the data has no split {split!r}, only {', '.join(names)}.{did_you_mean(split, names)}")
    accelerator = Accelerator()
    objective = task.objective(model.to(accelerator.device).eval())
    encoded = Encoded({split: task.encode_split(splits.datasets[split], tokenizers, model.config)})
    return task.evaluate(
        objective, splits, encoded, tokenizers, split, Evaluator(recipe.eval.tokens_per_batch, accelerator)
    )
