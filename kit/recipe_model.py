"""What a recipe may say about a model: the fields of the model's own config class, which are the only source.

transformers is imported by the functions, not with this file: it takes seconds, and most commands do without.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from kit.errors import RecipeError, did_you_mean

CONFIG_CLASSES = {"rnn_seq2seq": "kit.models.configuration_rnn_seq2seq:RNNSeq2SeqConfig"}

SET_BY_KIT = {
    "vocab_size": "it is the size of the tokenizer (tokenizer.vocab_size)",
    "decoder_vocab_size": "it is the size of the target's tokenizer (tokenizer.vocab_size)",
    "separate_vocabularies": "it follows tokenizer.shared",
    "pad_token_id": "it comes from the tokenizer",
    "bos_token_id": "it comes from the tokenizer",
    "eos_token_id": "it comes from the tokenizer",
    "decoder_start_token_id": "it comes from the tokenizer",
    "is_encoder_decoder": "it comes with the model type",
}
"""Config fields that no recipe gives, each with the reason."""


def config_class(model_type: str) -> Any:
    """The config class of one of kit's model types."""
    if model_type not in CONFIG_CLASSES:
        raise RecipeError(
            f'model.type: "{model_type}" is not a model type of kit ({", ".join(CONFIG_CLASSES)}).'
            f"{did_you_mean(model_type, CONFIG_CLASSES)}"
        )
    module, name = CONFIG_CLASSES[model_type].split(":")
    return getattr(importlib.import_module(module), name)


def model_fields(model_type: str) -> dict[str, FieldInfo]:
    """What the `model` section may hold for this type: each field with annotation, default and description."""
    return settings_model(config_class(model_type)).model_fields


def settings_model(config: type) -> type[BaseModel]:
    """A pydantic model of the fields that a recipe may give for this config class; it checks names and types."""
    from transformers import PreTrainedConfig

    inherited = {base.name for base in dataclasses.fields(PreTrainedConfig)}
    descriptions = _descriptions(config)
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        if item.name in inherited or item.name in SET_BY_KIT:
            continue
        factory = None if item.default_factory is dataclasses.MISSING else item.default_factory
        default = {"default_factory": factory} if factory else {"default": _default(item)}
        fields[item.name] = (item.type, Field(description=descriptions.get(item.name), **default))
    rules = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
    return create_model(config.__name__, __config__=rules, **fields)


def checked_settings(config: type, settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` with every value in its field's type; pydantic.ValidationError if a name or a value is wrong.

    For `model.pretrained`, whose config class is known only once it is there, whoever loads it calls this.
    """
    checked = settings_model(config).model_validate(settings)
    return {name: getattr(checked, name) for name in settings}


def combination_error(config: type, settings: dict[str, Any], shared_vocabulary: bool) -> str:
    """What the config class itself finds wrong with settings that are each right, or nothing."""
    from huggingface_hub.errors import StrictDataclassError

    if any(item.name == "separate_vocabularies" for item in dataclasses.fields(config)):
        settings = {**settings, "separate_vocabularies": not shared_vocabulary}
    try:
        config(**settings)
    except (ValueError, TypeError, StrictDataclassError) as error:
        return " ".join(str(error).split())
    return ""


def pretrained_type(pretrained: str) -> str | None:
    """The model type of a run folder or model folder, if it is one of kit's; None for anything else."""
    for place in (Path(pretrained) / "model" / "config.json", Path(pretrained) / "config.json"):
        try:
            found = json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and found.get("model_type") in CONFIG_CLASSES:
            return str(found["model_type"])
    return None


def _default(item: "dataclasses.Field[Any]") -> Any:
    return ... if item.default is dataclasses.MISSING else item.default


def _descriptions(config: type) -> dict[str, str]:
    """The text below each attribute of a class and of the classes that it builds on."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):  # no source at hand, as in a frozen program
            continue
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for attribute, text in zip(statements, statements[1:], strict=False):
            if (
                isinstance(attribute, ast.AnnAssign)
                and isinstance(attribute.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                found[attribute.target.id] = inspect.cleandoc(text.value.value)
    return found
