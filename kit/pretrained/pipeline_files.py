"""The pipelines that kit has code for, and the files of `kit.pipelines` that are saved with a model for them."""

from collections.abc import Iterable, Mapping
from typing import Any

from transformers import Pipeline

from kit.pipelines import dialogue, image_to_text, question_answering, text_to_text

PIPELINES: dict[str, type[Pipeline]] = {
    **text_to_text.PIPELINES,
    **question_answering.PIPELINES,
    **image_to_text.PIPELINES,
    **dialogue.PIPELINES,
}
"""The pipeline class of each pipeline task of kit."""


def custom_pipelines(tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The value of `config.custom_pipelines` for these tasks, which transformers reads to find the saved code."""
    entries: dict[str, dict[str, Any]] = {}
    for task in tasks:
        modules = (question_answering, image_to_text, dialogue)
        entries |= next((module for module in modules if task in module.PIPELINES), text_to_text).custom_pipelines(
            [task]
        )
    return entries


def code_files(entries: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The files of `kit.pipelines` that these `custom_pipelines` need."""
    files = {f"{entry['impl'].split('.')[0]}.py" for entry in entries.values()}
    return files | ({"text_to_text.py"} if "dialogue.py" in files else set())
