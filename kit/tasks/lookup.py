"""Which class each task has."""

import importlib
from typing import Any

from kit.tasks.base import Task
from kit.tasks.registry import Recipe

TASKS = {
    "translation": "translation:Translation",
    "masked_lm": "masked_lm:MaskedLM",
    "causal_lm": "causal_lm:CausalLM",
    "instruction_tuning": "instruction_tuning:InstructionTuning",
    "classification": "classification:Classification",
    "tagging": "tagging:Tagging",
    "question_answering": "question_answering:QuestionAnswering",
    "captioning": "captioning:Captioning",
    "dialogue": "dialogue:Dialogue",
    "forecasting": "forecasting:Forecasting",
}
"""File and class of each task: imported when asked for, since each imports what it alone needs."""


def task_of(recipe: Recipe) -> Task[Any]:
    """The task that a recipe names."""
    file, name = TASKS[recipe.task].split(":")
    return getattr(importlib.import_module(f"kit.tasks.{file}.task"), name)(recipe)
