"""The pipelines that transformers 5 removed, back: as `kit.pipeline(...)`, or as stock ones after `kit.register()`."""

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM
from transformers import pipeline as transformers_pipeline
from transformers.pipelines import (
    PIPELINE_REGISTRY,
    Pipeline,
    TextClassificationPipeline,
    ZeroShotClassificationPipeline,
)

from kit.errors import RunError
from kit.models import register_models
from kit.pipelines import dialogue, image_to_text, question_answering, text_to_text
from kit.pipelines.text_to_text import DIRECTION
from kit.pretrained.padding import padding_problem

__all__ = ["PIPELINES", "code_files", "custom_pipelines", "pipeline", "register"]

PIPELINES: dict[str, type[Pipeline]] = {
    **text_to_text.PIPELINES,
    **question_answering.PIPELINES,
    **image_to_text.PIPELINES,
    **dialogue.PIPELINES,
}
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
        homes = (question_answering, image_to_text, dialogue)
        found |= next((home for home in homes if task in home.PIPELINES), text_to_text).custom_pipelines([task])
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
        if task == image_to_text.TASK:
            continue  # transformers takes this name for another before it asks its registry
        removed.pop(task, None)
        if task not in PIPELINE_REGISTRY.supported_tasks:
            answers = task in question_answering.PIPELINES
            model = AutoModelForQuestionAnswering if answers else AutoModelForSeq2SeqLM
            PIPELINE_REGISTRY.register_pipeline(task, pipeline_class=pipeline_class, pt_model=model)
    if not isinstance(PIPELINE_REGISTRY.task_aliases, TaskNames):
        PIPELINE_REGISTRY.task_aliases = TaskNames(PIPELINE_REGISTRY.task_aliases)


def pipeline(task: str, model: Any, **kwargs: Any) -> Pipeline:
    """`transformers.pipeline` for kit's tasks, with kit's own code: nothing from the model's folder is executed.

    `model` may be a run folder, too, or `OWNER/NAME[@REVISION]` on the Hub. With `trust_remote_code=True` a model that
    needs code of its own is handed to transformers as it is.
    """
    from kit.pretrained.adapters import adapted_class, adapter_config_file
    from kit.pretrained.loading import load_config, load_model, model_place

    register()
    name = DIRECTION.sub("translation", task)
    if name in PIPELINES:
        kwargs.setdefault("pipeline_class", PIPELINES[name])
    if isinstance(model, str | Path) and not kwargs.setdefault("trust_remote_code", False):
        model = model_place(model)
        if adapter_config_file(model) is not None:
            kwargs.setdefault("tokenizer", model)
            model = load_model(adapted_class(model), model)
        else:
            kwargs["model_kwargs"] = {"use_safetensors": True, **kwargs.get("model_kwargs", {})}
    if name == image_to_text.TASK and not kwargs.get("trust_remote_code"):
        # a task that the configuration has is the only one whose name transformers leaves as it is
        kwargs["config"] = copy.copy(load_config(model) if isinstance(model, str) else model.config)
        kwargs["config"].custom_pipelines = custom_pipelines([name])
    pipe = transformers_pipeline(task, model=model, **kwargs)
    classifies = isinstance(pipe, TextClassificationPipeline | ZeroShotClassificationPipeline)
    if classifies and (problem := padding_problem(pipe.model.config)):
        raise RunError(f"{pipe.model.name_or_path}: {problem}")
    return pipe
