"""The fields that a model's config class adds to the section `model`.

The config class is the only source of model keys. transformers is imported inside the functions that need it, because
the import takes seconds and most commands do not need it.
"""

import ast
import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from kit.errors import RecipeError, RunError, did_you_mean
from kit.models import MODELS
from kit.models import config_class as kit_config_class
from kit.recipe.document import key_name
from kit.recipe.messages import KeyPath, Problem, field_problems, show
from kit.system.files import read_json

SET_BY_KIT = {
    "vocab_size": "it is the size of the tokenizer (tokenizer.vocab_size)",
    "decoder_vocab_size": "it is the size of the target's tokenizer (tokenizer.vocab_size)",
    "separate_vocabularies": "it follows tokenizer.shared",
    "pad_token_id": "it comes from the tokenizer",
    "bos_token_id": "it comes from the tokenizer",
    "eos_token_id": "it comes from the tokenizer",
    "decoder_start_token_id": "it comes from the tokenizer",
    "is_encoder_decoder": "it comes with the model type",
    "value_size": "it is the number of values at each step (data.targets)",
    "context_size": "it is the number of known numbers at each step (data.context)",
    "horizon": "it is data.horizon",
}
"""Config fields that a recipe cannot set, each with the reason."""


def config_class(model_type: str, kit_types: Sequence[str] | None = None, mapping: str | None = None) -> Any:
    """The config class of a model type.

    Raises RecipeError unless the type is one of kit's, or of `kit_types` if given, or in the `mapping` of transformers,
    such as `MODEL_FOR_MASKED_LM_MAPPING_NAMES`, if given. A type is also in there if a program has registered it with
    `AutoConfig`, and its model with the Auto class of the mapping.
    """
    kit_types = list(MODELS) if kit_types is None else kit_types
    if model_type in kit_types:
        return kit_config_class(model_type)
    mapped: dict[str, Any] = {}
    if mapping is not None:
        from transformers.models.auto import configuration_auto, modeling_auto

        mapped = getattr(modeling_auto, mapping)
        if model_type in mapped:
            return configuration_auto.CONFIG_MAPPING[model_type]
        if model_type not in MODELS and model_type in configuration_auto.CONFIG_MAPPING:
            config = configuration_auto.CONFIG_MAPPING[model_type]
            if config in getattr(modeling_auto, mapping.removesuffix("_NAMES")):
                return config
    of_transformers = f" or of transformers for this task ({len(mapped)} types)" if mapped else ""
    of_kit = f" of kit ({', '.join(kit_types)})" if kit_types else ""
    raise RecipeError(
        f"model.type: {show(model_type)} is not a model type{of_kit}{of_transformers}."
        f"{did_you_mean(model_type, [*kit_types, *mapped])}"
        + " A class of your own must be registered with transformers' Auto classes."
        * bool(mapped)
    )


def model_fields(model_type: str) -> dict[str, FieldInfo]:
    """The fields that the section `model` accepts for a model type, with annotation, default and description."""
    return settings_model(config_class(model_type)).model_fields


def settings_model(config: Any) -> type[BaseModel]:
    """A pydantic model of the fields of a config class that a recipe may set, to check names and types.

    A config class of kit has names that are registered elsewhere, such as attention scores, in `field_choices()`, and
    the limits of its numbers in `bounds()`.
    """
    choices = config.field_choices() if hasattr(config, "field_choices") else {}
    return _settings_model(config, tuple(choices.items()))


@functools.cache
def _settings_model(config: type, choices: tuple[tuple[str, tuple[str, ...]], ...]) -> type[BaseModel]:
    from transformers import PreTrainedConfig

    inherited = {item.name for item in dataclasses.fields(PreTrainedConfig)}
    descriptions = _descriptions(config)
    bounds = config.bounds() if hasattr(config, "bounds") else {}
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        if item.name in inherited or item.name in SET_BY_KIT:
            continue
        if item.default_factory is not dataclasses.MISSING:
            info = Field(default_factory=item.default_factory, description=descriptions.get(item.name))
        else:
            default = ... if item.default is dataclasses.MISSING else item.default
            info = Field(default=default, description=descriptions.get(item.name))
        annotation = Literal[dict(choices)[item.name]] if item.name in dict(choices) else _checkable(item.type)
        if item.name in bounds:
            annotation = _bounded(annotation, *bounds[item.name])
        fields[item.name] = (annotation, info)
    for name, parameter in _own_parameters(config).items():
        if name not in fields and name not in inherited and name not in SET_BY_KIT:
            default = ... if parameter.default is parameter.empty else parameter.default
            kind = Any if isinstance(parameter.annotation, str) else parameter.annotation
            fields[name] = (Any if kind is parameter.empty else _checkable(kind), Field(default=default))
    rules = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
    return create_model(config.__name__, __config__=rules, **fields)


def _own_parameters(config: type) -> dict[str, inspect.Parameter]:
    """The named parameters of a config class with an `__init__` that is not a dataclass, as before transformers 5."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = list(inspect.signature(config).parameters.values())
    return {parameter.name: parameter for parameter in parameters if parameter.kind in named}


def _bounded(annotation: Any, low: float, high: float) -> Any:
    """The annotation with bounds on its numbers, also on those in a list."""
    members = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        # a float may be written as a whole number
        distinct = [member for member in members if not (member is int and float in members)]
        return Union[tuple(_bounded(member, low, high) for member in distinct)]  # noqa: UP007 (built at run time)
    if get_origin(annotation) is list:
        return list[_bounded(members[0], low, high)]  # type: ignore[misc]
    return Annotated[annotation, Ge(low), Le(high)] if annotation in (int, float) else annotation


def _checkable(annotation: Any) -> Any:
    """The annotation, or Any where transformers uses a type that pydantic cannot check."""
    try:
        return annotation if TypeAdapter(annotation).pydantic_complete else Any
    except PydanticUserError:
        return Any


def check_settings(config: type, settings: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """`settings` with each value converted to the type of its config field, and the mistakes in names and values."""
    fields = settings_model(config)
    try:
        checked = fields.model_validate(settings)
    except ValidationError as error:
        return settings, field_problems(
            error, fields, settings, functools.partial(_unknown_setting, config), ("model",)
        )
    return {name: getattr(checked, name) for name in settings}, []


def _unknown_setting(config: Any, path: KeyPath) -> str:
    name = str(path[0])
    if name in SET_BY_KIT:
        return f"model.{name} cannot be set in a recipe: {SET_BY_KIT[name]}. Leave it out."
    hint = did_you_mean(name, settings_model(config).model_fields)
    return f"{key_name(('model', *path))} is not a setting of {config.model_type}.{hint}"


def combination_problem(config: Any, settings: dict[str, Any], shared_vocabulary: bool) -> str:
    """The error of the config class about a combination of settings that are valid one by one, or an empty string."""
    from huggingface_hub.errors import StrictDataclassError

    if any(item.name == "separate_vocabularies" for item in dataclasses.fields(config)):
        settings = {**settings, "separate_vocabularies": not shared_vocabulary}
    try:
        config(**settings)
    except (ValueError, TypeError, StrictDataclassError) as error:
        return " ".join(str(error).split())
    return ""


def pretrained_type(pretrained: str) -> str | None:
    """The model type of a run folder or model folder if it is one of kit's, else None."""
    for path in (Path(pretrained) / "model" / "config.json", Path(pretrained) / "config.json"):
        try:
            model_type = read_json(path, "a model configuration").get("model_type")
        except RunError:
            continue
        if isinstance(model_type, str) and model_type in MODELS:
            return model_type
    return None


def _descriptions(config: type) -> dict[str, str]:
    """The docstring below each attribute of a config class and its bases."""
    descriptions: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):  # no source available, as in a frozen program
            continue
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for attribute, below in pairwise(statements):
            match attribute, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    descriptions[name] = inspect.cleandoc(text)
    return descriptions
