"""Which tasks have which recipe keys, derived from their classes.

The messages about unknown keys, `kit explain` and the generated reference all read it from here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic.fields import FieldInfo

from kit.errors import did_you_mean
from kit.recipe.base import Recipe, sections_of
from kit.recipe.document import key_name
from kit.recipe.messages import KeyPath

OTHER_NAMES = {
    "lr": "train.learning_rate",
    "epochs": "train.num_train_epochs", "num_epochs": "train.num_train_epochs", "max_epochs": "train.num_train_epochs",
    "train_steps": "train.max_steps", "max_update": "train.max_steps",
    "per_device_train_batch_size": "train.batch_size", "max_tokens": "train.tokens_per_batch",
    "gradient_accumulation_steps": "train.micro_batches", "accum_count": "train.micro_batches",
    "update_freq": "train.micro_batches", "clip_norm": "train.max_grad_norm", "grad_clip": "train.max_grad_norm",
    "warmup": "train.warmup_steps", "warmup_ratio": "train.warmup_steps", "warmup_updates": "train.warmup_steps",
    "scheduler": "train.lr_scheduler_type", "lr_scheduler": "train.lr_scheduler_type", "optim": "train.optimizer",
    "beta1": "train.adam_beta1", "beta2": "train.adam_beta2", "random_seed": "train.seed",
    "fp16": "train.mixed_precision", "bf16": "train.mixed_precision", "precision": "train.mixed_precision",
    "save_every": "train.save_steps", "log_every": "train.logging_steps", "keep_last": "train.save_total_limit",
    "eval_steps": "eval.steps", "per_device_eval_batch_size": "eval.tokens_per_batch", "beam_size": "eval.num_beams",
    "beams": "eval.num_beams", "beam": "eval.num_beams", "lenpen": "eval.length_penalty",
    "select_by": "eval.metric_for_best_model", "compute_metrics": "eval.metrics",
    "max_seq_length": "data.max_length", "max_seq_len": "data.max_length", "max_len": "data.max_length",
    "max_source_length": "data.max_length", "dataset": "data.path", "dataset_name": "data.path",
    "train_file": "data.train", "validation_file": "data.validation", "test_file": "data.test",
    "source_lang": "data.source", "target_lang": "data.target", "src": "data.source", "tgt": "data.target",
    "model_name_or_path": "model.pretrained",
    "checkpoint": "model.pretrained", "heads": "model.num_attention_heads", "d_model": "model.hidden_size",
    "n_embd": "model.hidden_size", "ffn_dim": "model.intermediate_size", "num_layers": "model.num_hidden_layers",
    "bpe": "tokenizer.train", "tokenizer_name": "tokenizer.pretrained", "vocab": "tokenizer.vocab_size",
    "lora": "peft.method", "lora_r": "peft.rank", "lora_alpha": "peft.alpha", "lora_dropout": "peft.dropout",
}  # fmt: skip
"""What transformers' Trainer and scripts, fairseq, OpenNMT and everyday language call keys of kit."""

Recipes = Mapping[str, type[Recipe]]
"""The recipe class of each task."""


@dataclass(frozen=True)
class KeyVariant:
    """A definition of a key, and the tasks that have the key in this form."""

    field: FieldInfo
    tasks: list[str]


def key_variants(recipes: Recipes) -> dict[str, dict[str, list[KeyVariant]]]:
    """For each section and each of its keys, the definitions in which tasks have it."""
    sections: dict[str, dict[str, list[KeyVariant]]] = {name: {} for name in recipe_fields(recipes)}
    for task, recipe in recipes.items():
        for section, model in sections_of(recipe).items():
            for key, field in model.model_fields.items():
                variants = sections[section].setdefault(key, [])
                same = next((variant for variant in variants if _alike(variant.field, field)), None)
                if same is None:
                    variants.append(KeyVariant(field, [task]))
                else:
                    same.tasks.append(task)
    return {name: keys for name, keys in sections.items() if keys}


def recipe_fields(recipes: Recipes) -> dict[str, FieldInfo]:
    """The sections of recipes of any task, and `task` and `measured`, in their order in a recipe."""
    fields = {name: field for recipe in recipes.values() for name, field in recipe.model_fields.items()}
    return fields | Recipe.model_fields


def name_tasks(tasks: Sequence[str], recipes: Recipes) -> str:
    """The tasks that have a key, in words: "translation and dialogue", "all tasks but forecasting"."""
    others = [task for task in recipes if task not in tasks]
    if not others:
        return "all tasks"
    return f"all tasks but {_listed(others)}" if len(others) < len(tasks) else _listed(tasks)


def unknown_key(recipe: type[Recipe], task: str | None, recipes: Recipes, path: KeyPath) -> str:
    """The message about a key or section that the recipe of a task does not have.

    Empty if `task` is None, for an unknown task, and the key exists for any task.
    """
    name, (section, *rest) = key_name(path), map(str, path)
    having = {other: sections_of(kind).get(section) for other, kind in recipes.items()}
    if tasks := [other for other, model in having.items() if model and (not rest or rest[0] in model.model_fields)]:
        if task is None:
            return ""
        return f"{name} applies to {name_tasks(tasks, recipes)}; task: {task} does not support it. Leave it out."
    sections = sections_of(recipe)
    key = str(path[-1])
    hint = did_you_mean(key, sections[section].model_fields if rest else recipe.model_fields)
    if other := known_as(key, recipe):
        hint = f" kit calls it {other}."
    if not hint:
        word = key.rpartition(".")[2]
        hint = "".join(
            f' There is a "{word}" under "{other}:".' for other, model in sections.items() if word in model.model_fields
        )
    return f'{name} is not a key of "{section}".{hint}' if rest else f"{name} is not a section of a recipe.{hint}"


def known_as(key: str, *recipes: type[Recipe]) -> str | None:
    """The key of these recipes that other tools call `key`."""
    name = OTHER_NAMES.get(key.rpartition(".")[2])
    if name is None:
        return None
    section, _, field = name.partition(".")
    kinds = [sections_of(recipe).get(section) for recipe in recipes]
    return name if section == "model" or any(kind and field in kind.model_fields for kind in kinds) else None


def _alike(first: FieldInfo, second: FieldInfo) -> bool:
    return all(getattr(first, part) == getattr(second, part) for part in ("annotation", "default", "description"))


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
