"""The pipelines that transformers 5 removed: as `kit.pipeline(...)`, or as stock ones after `kit.register()`."""

import copy
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers import pipeline as transformers_pipeline
from transformers.pipelines import (
    PIPELINE_REGISTRY,
    Pipeline,
    TextClassificationPipeline,
    ZeroShotClassificationPipeline,
)

from kit.data.text.tokenizer import Tokenizers
from kit.errors import RunError
from kit.models import MODELS, config_class, register_models
from kit.pipelines import image_to_text, question_answering
from kit.pipelines.text_to_text import DIRECTION, TRANSLATION, SourceTargetTokenizer
from kit.pretrained.adapters import adapted_class, adapter_config_file
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import check_complete, load_model, quiet_transformers
from kit.pretrained.padding import padding_problem
from kit.pretrained.pipeline_files import PIPELINES, custom_pipelines
from kit.pretrained.vocabulary import check_folder

__all__ = ["pipeline", "register"]


TAGGING = ("token-classification", "ner")
SPAN_TAG = re.compile(r"O|[BI]-.*")


def marks_spans(config: Any) -> bool:
    """Whether the labels of a model mark spans as the pipeline of transformers reads them: O, B-X and I-X."""
    return all(SPAN_TAG.fullmatch(str(label)) for label in (config.id2label or {}).values())


class TaskNames(dict):
    """The aliases of pipeline tasks in transformers, extended by every translation_xx_to_yy."""

    def __contains__(self, task: object) -> bool:
        return super().__contains__(task) or (isinstance(task, str) and DIRECTION.fullmatch(task) is not None)

    def __missing__(self, task: str) -> str:
        if task in self:
            return TRANSLATION
        raise KeyError(task)


def register() -> None:
    """Register kit's models and its tokenizer with the Auto classes of transformers, and its pipelines with
    `transformers.pipeline`."""
    import transformers.pipelines

    register_models()
    for config in map(config_class, MODELS):
        if hasattr(config, "separate_vocabularies"):  # known by its name, which the folder of a tokenizer has
            AutoTokenizer.register(config, fast_tokenizer_class=SourceTargetTokenizer, exist_ok=True)
    # transformers rejects a removed name before it looks into its registry; the table is private, so it may disappear
    removed = getattr(transformers.pipelines, "REMOVED_TASKS", {})
    for task, pipeline_class in PIPELINES.items():
        if task == image_to_text.TASK:
            continue  # transformers resolves this name as an alias of another task before it looks into its registry
        removed.pop(task, None)
        if task not in PIPELINE_REGISTRY.supported_tasks:
            extractive = task in question_answering.PIPELINES
            model_class = AutoModelForQuestionAnswering if extractive else AutoModelForSeq2SeqLM
            PIPELINE_REGISTRY.register_pipeline(task, pipeline_class=pipeline_class, pt_model=model_class)
    if not isinstance(PIPELINE_REGISTRY.task_aliases, TaskNames):
        PIPELINE_REGISTRY.task_aliases = TaskNames(PIPELINE_REGISTRY.task_aliases)


def pipeline(task: str, model: Any, *, trust_remote_code: bool = False, **kwargs: Any) -> Pipeline:
    """`transformers.pipeline` for kit's tasks, with kit's own code: nothing from the model's folder is executed.

    `model` may also be a run folder, or `OWNER/NAME[@REVISION]` on the Hub. Models that tag spans get
    `aggregation_strategy="first"`, because the first token of a word has its tag. With `trust_remote_code=True`,
    transformers loads the model, with the code in its folder.
    """
    register()
    name = DIRECTION.sub(TRANSLATION, task)
    if name in PIPELINES:
        kwargs.setdefault("pipeline_class", PIPELINES[name])
    if isinstance(model, str | Path) and not trust_remote_code:
        folder = ModelFolder.open(model)
        model = str(folder.path)
        if adapter_config_file(model) is not None:
            kwargs.setdefault("tokenizer", model)
            model = load_model(adapted_class(model), folder)
        else:
            # transformers would read the configuration again, and load the kernels that it asks for; mismatched weights
            # would be logged in a table, and are reported by `check_complete`
            kwargs.setdefault("config", folder.config)
            safe = {
                "use_safetensors": True,
                "attn_implementation": folder.config._attn_implementation,
                "ignore_mismatched_sizes": True,
            }
            kwargs["model_kwargs"] = {**safe, **kwargs.get("model_kwargs", {})}
    if name == image_to_text.TASK and not trust_remote_code:
        # transformers resolves the alias unless the configuration lists the name among its own pipelines
        kwargs["config"] = copy.copy(folder.config if isinstance(model, str) else model.config)
        kwargs["config"].custom_pipelines = custom_pipelines([name])
    if task in TAGGING and "aggregation_strategy" not in kwargs:
        config = kwargs.get("config") or getattr(model, "config", None)
        if config is not None and marks_spans(config):
            kwargs["aggregation_strategy"] = "first"
    try:
        with quiet_transformers():
            pipe = transformers_pipeline(task, model=model, trust_remote_code=trust_remote_code, **kwargs)
    except SafetensorError as error:
        raise RunError(f"{model} cannot be loaded: its weights are damaged ({error})") from None
    if isinstance(model, str) and not trust_remote_code:
        check_complete(type(pipe.model), folder)
    if pipe.tokenizer is not None and name in PIPELINES:
        target = getattr(pipe.tokenizer, "target_tokenizer", pipe.tokenizer)
        check_folder(pipe.model.name_or_path, pipe.model, Tokenizers(pipe.tokenizer, target))
    classifies = isinstance(pipe, TextClassificationPipeline | ZeroShotClassificationPipeline)
    if classifies and (problem := padding_problem(pipe.model.config)):
        raise RunError(f"{pipe.model.name_or_path}: {problem}")
    return pipe
