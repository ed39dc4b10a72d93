"""What recipe fields accept, in words, and messages about values that they do not accept."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, ValidationError

from kit.errors import did_you_mean
from kit.recipe.document import key_name
from kit.recipe.section import MAX_COUNT, Extensible

KeyPath = tuple[str | int, ...]

Problem = tuple[KeyPath, str]
"""A key path, and the message about the mistake there."""


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


def field_problems(
    error: ValidationError,
    model: type[BaseModel],
    value: Any,
    unknown_key: Callable[[KeyPath], str],
    section: KeyPath = (),
) -> list[Problem]:
    """Each mistake that pydantic reports in `value`, with its key path and a message that gives the expected value.

    `unknown_key` writes the message about a key that `model` does not have. `section` is the path of `value` within the
    recipe.
    """
    messages: dict[KeyPath, str] = {}
    for item in error.errors(include_url=False):
        path = item["loc"]
        name = key_name((*section, *path))
        if item["type"] == "contradictions":
            for key, message in item["ctx"]["problems"]:
                full_path = (*path, *key.split(".")) if key else path
                messages.setdefault(full_path, f"{key_name((*section, *full_path))}: {message}")
        elif item["type"] == "extra_forbidden":
            messages[path] = unknown_key(path)
        elif item["type"] == "missing":
            messages[path] = f"{name} is missing: expected {describe(*_expected(model, path)[1:])}."
        elif path[-1:] == ("[key]",):
            mapping = next(kind for kind in _kinds(_expected(model, path[:-2])[1]) if get_origin(kind) is dict)
            options = _options(get_args(mapping)[0])
            hint = did_you_mean(str(path[-2]), options)
            name = key_name((*section, *path[:-1]))
            messages[path[:-1]] = f"{name}: the key must be one of {', '.join(options)}.{hint}"
        else:
            # pydantic reports each member of a union separately; one message describes them all
            existing, annotation, metadata = _expected(model, _within(value, path))
            wrong = functools.reduce(lambda part, step: part[step], existing, value)
            message = f"expected {describe(annotation, metadata)}, got {show(wrong)}{_hint(annotation, wrong)}"
            messages.setdefault(existing, f"{key_name((*section, *existing))}: {message}")
    return [((*section, *path), message) for path, message in messages.items() if message]


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
    if isinstance(wrong, float) and wrong.is_integer() and abs(wrong) <= MAX_COUNT and int in kinds:
        return f"; write {int(wrong)}."
    if isinstance(wrong, str) and re.fullmatch("[0-9]+(_[0-9]+)+", wrong) and (int in kinds or float in kinds):
        return f"; write {wrong.replace('_', '')}."
    return "."


def _expected(model: Any, location: KeyPath) -> tuple[KeyPath, Any, Sequence[Any]]:
    """The part of `location` that exists in the input (pydantic adds steps to it), and the expected type there."""
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
            return location[:number], annotation, metadata
    return location, annotation, metadata


def _within(value: Any, location: KeyPath) -> KeyPath:
    """The part of `location` that exists in the input: for a union with a mapping, pydantic adds the names of its
    members."""
    for number, part in enumerate(location):
        exists = part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)
        if not exists:
            return location[:number]
        value = value[part]
    return location


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
