"""JSON as kit writes it: always valid, whatever the values are.

JSON has no NaN and no infinity, and many parsers reject what Python writes for them. A number that is not finite, such
as a perplexity that is too large for a float, is null.
"""

import base64
import datetime
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.system.outputs import write_text


def to_json(value: Any, indent: int | None = None) -> str:
    """A value as JSON, on one line unless `indent` is given."""
    text = json.dumps(json_value(value), ensure_ascii=False, allow_nan=False, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # halves of surrogate pairs, which JSON has as escapes and UTF-8 has not
        text = json.dumps(json_value(value), allow_nan=False, indent=indent)
    return text


def write_json(path: Path, value: Any) -> None:
    """Write a value as an indented JSON file, atomically."""
    write_text(path, to_json(value, indent=1) + "\n")


def json_value(value: Any) -> Any:
    """A value of the types that JSON has: null for a number that is not finite, ISO 8601 for dates, base64 for bytes,
    numbers and lists for arrays, and the text of anything else."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in value]
    if hasattr(value, "tolist"):  # arrays and numbers of NumPy, tensors
        return json_value(value.tolist())
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
