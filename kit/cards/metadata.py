"""The YAML metadata of a card, which the Hub reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kit.cards.provenance import base_on_hub, short_path
from kit.cards.tables import SPLITS, figures_of
from kit.evaluation.metrics import ACCURACIES, MODEL_METRICS
from kit.evaluation.titles import figure_titles, metric_names
from kit.hub.names import parse_repo_id

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

    from kit.recipe.base import Recipe


def metadata(name: str, recipe: Recipe, results: Mapping[str, Any], adapter: bool) -> ModelCardData:
    """License, languages, task, tags, data, base model and evaluation results, as the Hub's model card metadata."""
    from huggingface_hub import ModelCardData

    names = metric_names(recipe.eval.metrics)
    measured = [name for name in names if any(name in figures_of(results, split) for split in SPLITS)]
    data = dataset_id(recipe)
    return ModelCardData(
        language=recipe.hub.language or None,
        license=recipe.hub.license,
        library_name="peft" if adapter else "transformers",
        pipeline_tag=recipe.hub_task,
        tags=_tags(recipe),
        datasets=recipe.hub.datasets or ([data] if data else None),
        base_model=base.repo if (base := base_on_hub(recipe)) is not None else None,
        metrics=measured or None,
        model_name=name,
        eval_results=_eval_results(recipe, results) or None,
    )


def _tags(recipe: Recipe) -> list[str]:
    kind = recipe.peft.method or recipe.model.type
    return list(dict.fromkeys(["seq2seq-kit", *recipe.hub_tags, *([kind] if kind else []), *recipe.hub.tags]))


def _eval_results(recipe: Recipe, results: Mapping[str, Any]) -> list[EvalResult]:
    from huggingface_hub import EvalResult

    path, titles = short_path(recipe.data.path), figure_titles(recipe.eval.metrics)
    eval_results = []
    for split in SPLITS:
        figures = figures_of(results, split)
        for name in (*metric_names(recipe.eval.metrics), *MODEL_METRICS, *ACCURACIES):
            value = figures.get(name)
            if not isinstance(value, int | float) or not math.isfinite(value):
                continue
            signature = figures.get(f"{name}_signature")
            eval_results.append(
                EvalResult(
                    task_type=recipe.hub_task,
                    dataset_type=dataset_id(recipe) or path,
                    dataset_name=path,
                    dataset_config=recipe.data.name,
                    dataset_revision=recipe.data.revision,
                    dataset_split=getattr(recipe.data, split) or recipe.data.train,
                    metric_type=name,
                    metric_name=titles[name],
                    metric_value=round(float(value), 4),
                    metric_args={"signature": signature} if signature else None,
                )
            )
    return eval_results


def dataset_id(recipe: Recipe) -> str | None:
    """The `OWNER/NAME` of the dataset on the Hub that a run was trained on; None for other data.

    The recipe of such a run has the revision of the dataset. The path of a file that is no longer there, or is relative
    to another folder, can look like an id, too.
    """
    ref = parse_repo_id(recipe.data.path) if recipe.data.revision is not None else None
    return ref.repo if ref is not None and "/" in ref.repo else None
