"""What the fields of a recipe expect, in words, and which fields a model's own config class adds to it.

The config class is the only source of what `model` may hold. transformers is imported by the functions that
need it, not with this file: it takes seconds, and most commands do without.
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
"""A key path and what is wrong there."""

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
"""Config fields that no recipe gives, each with the reason."""


def config_class(model_type: str, own: Sequence[str] | None = None, mapping: str | None = None) -> Any:
    """The config class of a model type: of kit's (or of those in `own`), or in a `mapping` of transformers, by name."""
    own = list(MODELS) if own is None else own
    if model_type in own:
        return kit_config_class(model_type)
    theirs: dict[str, Any] = {}
    if mapping is not None:
        from transformers.models.auto import configuration_auto, modeling_auto

        theirs = getattr(modeling_auto, mapping)
        if model_type in theirs:
            return configuration_auto.CONFIG_MAPPING[model_type]
    among = f" or of transformers for this task ({len(theirs)} types)" if theirs else ""
    kits = f" of kit ({', '.join(own)})" if own else ""
    raise RecipeError(
        f"model.type: {show(model_type)} is not a model type{kits}{among}.{did_you_mean(model_type, [*own, *theirs])}"
    )


def model_fields(model_type: str) -> dict[str, FieldInfo]:
    """What the `model` section may hold for this type: fields with annotation, default and description."""
    return settings_model(config_class(model_type)).model_fields


def settings_model(config: Any) -> type[BaseModel]:
    """A pydantic model of the fields that a recipe may give for this config class: checks names and types.

    A config class of kit lists in `field_choices()` the names that are registered elsewhere, such as attention scores.
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
    """The annotation, or anything at all where transformers uses a type that pydantic cannot check."""
    try:
        return annotation if TypeAdapter(annotation).pydantic_complete else Any
    except PydanticUserError:
        return Any


def check_settings(config: type, settings: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """`settings` with each value in the type of its config field, and what is wrong with names and values."""
    fields = settings_model(config)
    try:
        checked = fields.model_validate(settings)
    except ValidationError as error:
        found = field_problems(error, fields, settings)
        return settings, [(("model", *path), _setting_problem(config, path, text)) for path, text in found]
    return {name: getattr(checked, name) for name in settings}, []


def combination_problem(config: Any, settings: dict[str, Any], shared_vocabulary: bool) -> str:
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
            model_type = read_json(place, "a model configuration").get("model_type")
        except RunError:
            continue
        if isinstance(model_type, str) and model_type in MODELS:
            return model_type
    return None


def describe(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a field of this type expects, in words: "a whole number (above 0) or null"."""
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
        text = "a section with keys of its own"
    else:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Any: "anything"}
        text = words.get(annotation, str(annotation))
    limits = [_limit(item) for item in metadata if isinstance(item, Gt | Ge | Lt | Le | MinLen)]
    return f"{text} ({', '.join(limits)})" if limits else text


def show(value: Any) -> str:
    """A value as a message quotes it: as in JSON, which is YAML too, and not too long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:59]}…"


def field_problems(error: ValidationError, model: type[BaseModel], value: Any) -> list[Problem]:
    """Each mistake that pydantic found in `value`, with its key path, in words that say what was expected."""
    found: dict[tuple[str | int, ...], str] = {}
    for item in error.errors(include_url=False):
        path = item["loc"]
        if item["type"] == "contradictions":
            for key, message in item["ctx"]["found"]:
                place = (*path, *key.split(".")) if key else path
                found.setdefault(place, f"{key_name(place)}: {message}")
        elif item["type"] == "extra_forbidden":
            found[path] = _unknown_key(path, model)
        elif item["type"] == "missing":
            found[path] = f"{key_name(path)} is missing: expected {describe(*_expected(model, path)[1:])}."
        elif path[-1:] == ("[key]",):
            mapping = next(kind for kind in _kinds(_expected(model, path[:-2])[1]) if get_origin(kind) is dict)
            options = _options(get_args(mapping)[0])
            hint = did_you_mean(str(path[-2]), options)
            found[path[:-1]] = f"{key_name(path[:-1])}: the key must be one of {', '.join(options)}.{hint}"
        else:
            # the members of a union complain one by one; the description names them all
            place, annotation, metadata = _expected(model, _within(value, path))
            wrong = functools.reduce(lambda part, step: part[step], place, value)
            wanted = f"expected {describe(annotation, metadata)}, got {show(wrong)}"
            found.setdefault(place, f"{key_name(place)}: {wanted}{_hint(annotation, wrong)}")
    return list(found.items())


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
    """The end of the message about a wrong value: what to write instead, where that can be guessed."""
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
                hint += f' There is a "{word}" below "{name}:".'
    if not sections:
        return f"{key_name(path)} is not a section of a recipe.{hint}"
    return f'{key_name(path)} is not a key of "{".".join(sections)}".{hint}'


def _setting_problem(config: Any, path: tuple[str | int, ...], message: str) -> str:
    name = str(path[0])
    valid = settings_model(config).model_fields
    if name in SET_BY_KIT:
        return f"model.{name} is not given in a recipe: {SET_BY_KIT[name]}. Leave it out."
    if name not in valid:
        hint = did_you_mean(name, valid)
        return f"{key_name(('model', *path))} is not a setting of {config.model_type}.{hint}"
    return f"model.{message}"


def _expected(model: Any, location: Sequence[str | int]) -> tuple[tuple[str | int, ...], Any, Sequence[Any]]:
    """How far `location` leads into the input (pydantic adds steps of its own), and what was expected."""
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
    """How far `location` leads into the input: for a union with a mapping, pydantic adds the names of its members."""
    for number, part in enumerate(location):
        is_there = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if not is_there:
            return tuple(location[:number])
        value = value[part]
    return tuple(location)


def _kinds(annotation: Any) -> list[Any]:
    """The types that an annotation allows, without limits."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for member in get_args(annotation) for kind in _kinds(member)]
    return [annotation]


def _options(annotation: Any) -> list[str]:
    """The words that an annotation allows, if it allows only certain ones."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        registered = [name for item in inner[1:] if isinstance(item, Extensible) for name in item.registered()]
        return [*_options(inner[0]), *registered]
    if origin in (Union, UnionType):
        return [word for member in inner for word in _options(member)]
    return list(map(str, inner)) if origin is Literal else []


def _descriptions(config: type) -> dict[str, str]:
    """The text below each attribute of a config class and of the classes that it builds on."""
    found: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):  # no source at hand, as in a frozen program
            continue
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for attribute, below in pairwise(statements):
            match attribute, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found
