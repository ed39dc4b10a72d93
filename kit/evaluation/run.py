"""Evaluate a trained model again: on another split, other data or with another search."""

from pathlib import Path

from accelerate import Accelerator

from kit.data.sources import load_splits
from kit.errors import DataError, RunError, did_you_mean
from kit.evaluation.predict import Evaluation, evaluate_split
from kit.generate import Translator
from kit.positions import position_limit
from kit.recipe import load_recipe
from kit.run_folder import RunFolder
from kit.tasks.translation import encode_pairs
from kit.training.objective import Seq2SeqObjective


def evaluate(run: str | Path, split: str = "test", overrides: list[str] | None = None) -> Evaluation:
    """Figures and predictions of a run's best model on a split of its data.

    `overrides` change the run's recipe for this evaluation: `eval.num_beams=5`, `data.path=…`.
    """
    folder = RunFolder.existing(Path(run))
    changed = list(overrides or [])
    if any(override.startswith("data.") for override in changed):
        changed.append("data.fingerprints=null")  # other data is what is asked for
    if any(override.startswith("data.directions=") for override in changed):
        # they concern training data alone, and may name other directions
        changed[:0] = ["data.direction_sizes=null", "data.direction_repeats=null"]
    recipe = load_recipe(folder.recipe_file, changed)
    if not folder.model.is_dir():
        raise RunError(f"{folder.path} has no model yet: finish it with `kit train {folder.path} --resume`")
    translator = Translator(folder.path)
    datasets = load_splits(recipe.data).datasets
    if split not in datasets:
        raise DataError(f"the data has no split {split!r}, only {', '.join(datasets)}.{did_you_mean(split, datasets)}")
    accelerator = Accelerator()
    objective = Seq2SeqObjective(translator.model.to(accelerator.device))
    limit = position_limit(translator.model.config)
    examples = encode_pairs(datasets[split], translator.tokenizers, limit)
    return evaluate_split(
        objective, examples, datasets[split], translator.tokenizers, recipe.eval, recipe.eval.num_beams, accelerator
    )
