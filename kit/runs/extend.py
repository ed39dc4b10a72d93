"""Extending a run: `--resume train.max_steps=…` trains a finished or unfinished run for another number of steps."""

from kit.errors import RunError
from kit.recipe.base import Recipe
from kit.runs.folder import RunFolder
from kit.training.checkpoint import Checkpoints


def changes_length(recipe: Recipe, folder: RunFolder) -> bool:
    """Whether the recipe's number of steps or epochs differs from that of the run in this folder."""
    return folder.recipe_file.is_file() and not recipe.has_length_of(folder.recipe())


def check_length(recipe: Recipe, folder: RunFolder, total_steps: int) -> str:
    """A line that states how the length of the run changes, before anything is written.

    Raises RunError if it cannot be continued to this length.
    """
    checkpoint = next(Checkpoints(folder.checkpoints).intact(), None)  # the run continues from it
    done = 0 if checkpoint is None else checkpoint.step
    if folder.is_finished:
        finished = folder.results().get("train", {}).get("steps", done)
        if checkpoint is None or done < finished:
            raise RunError(
                f"{folder.path} cannot be extended: it has no intact checkpoint of step {finished}, its last. Train it "
                "again in a new folder with --output"
            )
    if total_steps < done or (folder.is_finished and total_steps == done):
        raise RunError(
            f"{folder.path} has completed {done:,} steps, but the recipe asks for {total_steps:,}. Ask for more, such "
            f"as train.max_steps={2 * done}"
        )
    patience = recipe.train.early_stopping_patience
    if patience is not None and checkpoint is not None:
        stale = checkpoint.state()["progress"]["stale_evaluations"]
        if stale >= patience:
            raise RunError(
                f"{folder.path} stopped early, after {stale} evaluations without improvement "
                "(train.early_stopping_patience): it would stop again at once. Start a new run with another patience"
            )
    return f"the run now ends after {total_steps:,} steps, of which {done:,} are done"
