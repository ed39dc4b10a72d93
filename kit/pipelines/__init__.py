"""The pipelines that transformers 5 removed, back: as `kit.pipeline(...)`, or as stock ones after `kit.register()`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM
from transformers import pipeline as transformers_pipeline
from transformers.pipelines import PIPELINE_REGISTRY, Pipeline

from kit.models import register_models
from kit.pipelines import dialogue, question_answering, text_to_text
from kit.pipelines.text_to_text import DIRECTION

__all__ = ["PIPELINES", "code_files", "custom_pipelines", "pipeline", "register"]

PIPELINES: dict[str, type[Pipeline]] = {**text_to_text.PIPELINES, **question_answering.PIPELINES, **dialogue.PIPELINES}
"""The classes of the tasks that kit has pipelines for."""


class TaskNames(dict):
    """Other names of tasks; every translation_xx_to_yy is one of "translation"."""

    def __contains__(self, task: object) -> bool:
        return super().__contains__(task) or (isinstance(task, str) and DIRECTION.fullmatch(task) is not None)

    def __missing__(self, task: str) -> str:
        if task in self:
            return "translation"
        raise KeyError(task)


def custom_pipelines(tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What `config.custom_pipelines` says about these tasks; the file of each travels with the model."""
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        home = next((file for file in (question_answering, dialogue) if task in file.PIPELINES), text_to_text)
        found |= home.custom_pipelines([task])
    return found


def code_files(entries: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The files of this folder that these `custom_pipelines` need."""
    found = {f"{entry['impl'].split('.')[0]}.py" for entry in entries.values()}
    return found | ({"text_to_text.py"} if "dialogue.py" in found else set())


def register() -> None:
    """Make transformers know kit's models (Auto classes) and pipelines (`transformers.pipeline`)."""
    import transformers.pipelines

    register_models()
    # transformers refuses a removed name before it asks its registry; the table is private, so it may be gone
    removed = getattr(transformers.pipelines, "REMOVED_TASKS", {})
    for task, pipeline_class in PIPELINES.items():
        removed.pop(task, None)
        if task not in PIPELINE_REGISTRY.supported_tasks:
            answers = task in question_answering.PIPELINES
            model = AutoModelForQuestionAnswering if answers else AutoModelForSeq2SeqLM
            PIPELINE_REGISTRY.register_pipeline(task, pipeline_class=pipeline_class, pt_model=model)
    if not isinstance(PIPELINE_REGISTRY.task_aliases, TaskNames):
        PIPELINE_REGISTRY.task_aliases = TaskNames(PIPELINE_REGISTRY.task_aliases)


def pipeline(task: str, model: Any, **kwargs: Any) -> Pipeline:
    """`transformers.pipeline` for kit's tasks, with kit's own code: nothing from the model's folder is executed.

    `model` may be a run folder, too.
    """
    from kit.hub import model_place

    register()
    name = DIRECTION.sub("translation", task)
    if name in PIPELINES:
        kwargs.setdefault("pipeline_class", PIPELINES[name])
    return transformers_pipeline(task, model=model_place(model) if isinstance(model, str | Path) else model, **kwargs)
