"""What recipe fields accept, in words, and which fields a model's config class adds to the section `model`.

The config class is the only source of model keys. transformers is imported inside the functions that need it, because
the import takes seconds and most commands do not need it.
"""

import ast
import dataclasses
import functools
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from kit.errors import RecipeError, RunError, did_you_mean
from kit.models import MODELS
from kit.models import config_class as kit_config_class
from kit.recipe.document import key_name
from kit.recipe.section import Extensible
from kit.system.files import read_json

Problem = tuple[tuple[str | int, ...], str]
"""A key path, and the message about the mistake there."""

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
    """The config class of a model type: one of kit's (or of `kit_types`), or one in transformers' `mapping`.

    Raises RecipeError for an unknown model type.
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
    of_transformers = f" or of transformers for this task ({len(mapped)} types)" if mapped else ""
    of_kit = f" of kit ({', '.join(kit_types)})" if kit_types else ""
    raise RecipeError(
        f"model.type: {show(model_type)} is not a model type{of_kit}{of_transformers}."
        f"{did_you_mean(model_type, [*kit_types, *mapped])}"
    )


def model_fields(model_type: str) -> dict[str, FieldInfo]:
    """The fields that the section `model` accepts for a model type, with annotation, default and description."""
    return settings_model(config_class(model_type)).model_fields


def settings_model(config: Any) -> type[BaseModel]:
    """A pydantic model of the fields of a config class that a recipe may set, to check names and types.

    A config class of kit lists names that are registered elsewhere, such as attention scores, in `field_choices()`.
    """
    choices = config.field_choices() if hasattr(config, "field_choices") else {}
    return _settings_model(config, tuple(choices.items()))


@functools.cache
def _settings_model(config: type, choices: tuple[tuple[str, tuple[str, ...]], ...]) -> type[BaseModel]:
    from transformers import PreTrainedConfig

    inherited = {item.name for item in dataclasses.fields(PreTrainedConfig)}
    descriptions = _descriptions(config)
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
        fields[item.name] = (annotation, info)
    rules = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
    return create_model(config.__name__, __config__=rules, **fields)


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
        problems = field_problems(error, fields, settings)
        return settings, [(("model", *path), _setting_problem(config, path, text)) for path, text in problems]
    return {name: getattr(checked, name) for name in settings}, []


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


def describe(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a field of this type accepts, in words: "a whole number (above 0) or null"."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe(inner[0], [*inner[1:], *metadata])
    if origin in (Union, UnionType):
        kinds = [kind for kind in inner if kind is not NoneType and not (kind is int and float in inner)]
        return " or ".join([describe(kind) for kind in kinds] + ["null"] * (NoneType in inner))
    if origin is Literal:
        names = f"one of {', '.join(map(str, inner))}" if len(inner) > 1 else str(inner[0])
        return " or ".join([names, *(item.description for item in metadata if isinstance(item, Extensible))])
    if origin is list:
        text = f"a list, each item {describe(inner[0])}"
    elif origin is dict:
        text = f"a mapping, each value {describe(inner[1])}"
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        text = "a section with keys"
    else:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Any: "anything"}
        text = words.get(annotation, str(annotation))
    limits = [_limit(item) for item in metadata if isinstance(item, Gt | Ge | Lt | Le | MinLen)]
    return f"{text} ({', '.join(limits)})" if limits else text


def show(value: Any) -> str:
    """A value as messages quote it: as JSON, which is also YAML, shortened to 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:59]}…"


def field_problems(error: ValidationError, model: type[BaseModel], value: Any) -> list[Problem]:
    """Each mistake that pydantic found in `value`, with its key path and a message that gives the expected value."""
    messages: dict[tuple[str | int, ...], str] = {}
    for item in error.errors(include_url=False):
        path = item["loc"]
        if item["type"] == "contradictions":
            for key, message in item["ctx"]["problems"]:
                full_path = (*path, *key.split(".")) if key else path
                messages.setdefault(full_path, f"{key_name(full_path)}: {message}")
        elif item["type"] == "extra_forbidden":
            messages[path] = _unknown_key(path, model)
        elif item["type"] == "missing":
            messages[path] = f"{key_name(path)} is missing: expected {describe(*_expected(model, path)[1:])}."
        elif path[-1:] == ("[key]",):
            mapping = next(kind for kind in _kinds(_expected(model, path[:-2])[1]) if get_origin(kind) is dict)
            options = _options(get_args(mapping)[0])
            hint = did_you_mean(str(path[-2]), options)
            messages[path[:-1]] = f"{key_name(path[:-1])}: the key must be one of {', '.join(options)}.{hint}"
        else:
            # pydantic reports each member of a union separately; one message describes them all
            existing, annotation, metadata = _expected(model, _within(value, path))
            wrong = functools.reduce(lambda part, step: part[step], existing, value)
            message = f"expected {describe(annotation, metadata)}, got {show(wrong)}"
            messages.setdefault(existing, f"{key_name(existing)}: {message}{_hint(annotation, wrong)}")
    return list(messages.items())


def _limit(item: Gt | Ge | Lt | Le | MinLen) -> str:
    match item:
        case Gt():
            return f"above {item.gt}"
        case Ge():
            return f"{item.ge} or more"
        case Lt():
            return f"below {item.lt}"
        case Le():
            return f"at most {item.le}"
        case MinLen():
            return "not empty"


def _hint(annotation: Any, wrong: Any) -> str:
    """The end of the message about a wrong value: the correction, where it can be guessed."""
    kinds = _kinds(annotation)
    options = _options(annotation)
    if isinstance(wrong, str) and options:
        return f".{did_you_mean(wrong, options)}"
    if type(wrong) in (str, int) and any(get_origin(kind) is list for kind in kinds):
        return f"; write [{key_name([wrong])}]."
    if isinstance(wrong, float) and wrong.is_integer() and int in kinds:
        return f"; write {int(wrong)}."
    if isinstance(wrong, str) and re.fullmatch("[0-9]+(_[0-9]+)+", wrong) and (int in kinds or float in kinds):
        return f"; write {wrong.replace('_', '')}."
    return "."


def _unknown_key(path: tuple[str | int, ...], model: type[BaseModel]) -> str:
    *sections, key = map(str, path)
    owner = _expected(model, sections)[1]
    hint = did_you_mean(key, owner.model_fields)
    if not hint:
        word = key.rpartition(".")[2]
        for name, field in model.model_fields.items():
            if word in getattr(field.annotation, "model_fields", {}):
                hint += f' There is a "{word}" under "{name}:".'
    if not sections:
        return f"{key_name(path)} is not a section of a recipe.{hint}"
    return f'{key_name(path)} is not a key of "{".".join(sections)}".{hint}'


def _setting_problem(config: Any, path: tuple[str | int, ...], message: str) -> str:
    name = str(path[0])
    valid = settings_model(config).model_fields
    if name in SET_BY_KIT:
        return f"model.{name} cannot be set in a recipe: {SET_BY_KIT[name]}. Leave it out."
    if name not in valid:
        hint = did_you_mean(name, valid)
        return f"{key_name(('model', *path))} is not a setting of {config.model_type}.{hint}"
    return f"model.{message}"


def _expected(model: Any, location: Sequence[str | int]) -> tuple[tuple[str | int, ...], Any, Sequence[Any]]:
    """The part of `location` that exists in the input (pydantic adds steps of its own), and the expected type there."""
    annotation, metadata = model, []
    for number, part in enumerate(location):
        for kind in _kinds(annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
                annotation, metadata = (
                    kind.model_fields[str(part)].annotation,
                    kind.model_fields[str(part)].metadata,
                )
                break
            if get_origin(kind) is dict or (get_origin(kind) is list and isinstance(part, int)):
                annotation, metadata = get_args(kind)[-1], []
                break
        else:
            return tuple(location[:number]), annotation, metadata
    return tuple(location), annotation, metadata


def _within(value: Any, location: Sequence[str | int]) -> tuple[str | int, ...]:
    """The part of `location` that exists in the input: for a union with a mapping, pydantic adds the names of its
    members."""
    for number, part in enumerate(location):
        exists = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if not exists:
            return tuple(location[:number])
        value = value[part]
    return tuple(location)


def _kinds(annotation: Any) -> list[Any]:
    """The types that an annotation allows, without constraints."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for member in get_args(annotation) for kind in _kinds(member)]
    return [annotation]


def _options(annotation: Any) -> list[str]:
    """The words that an annotation allows, if it allows only certain words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        registered = [name for item in inner[1:] if isinstance(item, Extensible) for name in item.registered()]
        return [*_options(inner[0]), *registered]
    if origin in (Union, UnionType):
        return [word for member in inner for word in _options(member)]
    return list(map(str, inner)) if origin is Literal else []


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
