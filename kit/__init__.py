"""kit trains sequence models on the Hugging Face stack, and proves that nothing in it is silently wrong.

    from kit import load_recipe, train
    run = train(load_recipe("dates_rnn"), output="runs/dates_rnn")
    print(run.results["test"]["exact_match"])

Importing kit is light; torch and transformers are loaded when something that needs them is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kit.system.version import __version__

if TYPE_CHECKING:
    from kit.errors import DataError, HubError, KitError, NetworkError, RecipeError, RunError
    from kit.evaluation.compare import compare_runs
    from kit.evaluation.metrics.adapter import load_metric
    from kit.evaluation.metrics.custom import register_metric
    from kit.pretrained.pipelines import pipeline, register
    from kit.recipe.base import Recipe
    from kit.runs.evaluate import evaluate
    from kit.runs.finished import FinishedRun
    from kit.runs.train import train
    from kit.tasks.families.seq2seq.inference import Translator
    from kit.tasks.registry import load_recipe
    from kit.training.callbacks import Callback, TrainingState

_HOMES = {
    "DataError": "kit.errors",
    "HubError": "kit.errors",
    "KitError": "kit.errors",
    "NetworkError": "kit.errors",
    "RecipeError": "kit.errors",
    "RunError": "kit.errors",
    "evaluate": "kit.runs.evaluate",
    "compare_runs": "kit.evaluation.compare",
    "load_metric": "kit.evaluation.metrics.adapter",
    "register_metric": "kit.evaluation.metrics.custom",
    "Translator": "kit.tasks.families.seq2seq.inference",
    "pipeline": "kit.pretrained.pipelines",
    "register": "kit.pretrained.pipelines",
    "Recipe": "kit.tasks.registry",
    "load_recipe": "kit.tasks.registry",
    "FinishedRun": "kit.runs.finished",
    "Callback": "kit.training.callbacks",
    "TrainingState": "kit.training.callbacks",
    "train": "kit.runs.train",
}

__all__ = [
    "Callback",
    "DataError",
    "FinishedRun",
    "HubError",
    "KitError",
    "NetworkError",
    "Recipe",
    "RecipeError",
    "RunError",
    "TrainingState",
    "Translator",
    "__version__",
    "compare_runs",
    "evaluate",
    "load_metric",
    "load_recipe",
    "pipeline",
    "register",
    "register_metric",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
