"""The pipelines that transformers 5 removed, back: as `kit.pipeline(...)`, or as stock ones after `kit.register()`."""

from typing import Any

from transformers import AutoModelForSeq2SeqLM
from transformers import pipeline as transformers_pipeline
from transformers.pipelines import PIPELINE_REGISTRY, Pipeline

from kit.models import register_models
from kit.pipelines.translation import TranslationPipeline

PIPELINES: dict[str, type[Pipeline]] = {"translation": TranslationPipeline}
MODEL_CLASSES = {"translation": AutoModelForSeq2SeqLM}


def register() -> None:
    """Make transformers know kit's models (Auto classes) and pipelines (`transformers.pipeline`)."""
    import transformers.pipelines

    register_models()
    # transformers refuses a removed name before it asks its registry; the table is private, so it may be gone
    removed = getattr(transformers.pipelines, "REMOVED_TASKS", {})
    for task, pipeline_class in PIPELINES.items():
        removed.pop(task, None)
        if task not in PIPELINE_REGISTRY.supported_tasks:
            PIPELINE_REGISTRY.register_pipeline(task, pipeline_class=pipeline_class, pt_model=MODEL_CLASSES[task])


def pipeline(task: str, model: Any, **kwargs: Any) -> Pipeline:
    """`transformers.pipeline` for kit's tasks, with kit's own code: nothing from the model's folder is executed."""
    register()
    if task in PIPELINES:
        kwargs.setdefault("pipeline_class", PIPELINES[task])
    return transformers_pipeline(task, model=model if not hasattr(model, "__fspath__") else str(model), **kwargs)
