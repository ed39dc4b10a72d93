"""One small file per task: what it does to data, model and loss. All else is the same for every task."""

from kit.recipe import Recipe
from kit.tasks.translation import Translation

TASKS = {"translation": Translation}


def task_of(recipe: Recipe) -> Translation:
    """The task that a recipe names."""
    return TASKS[recipe.task](recipe)
