"""Recipe files as text: YAML with the line of every key, `key=value` overrides, and writing YAML.

Scalars follow the YAML 1.2 core schema: only `true` and `false` are booleans, so `no` (Norwegian) stays text, and
`1e-3` is a number; PyYAML follows YAML 1.1 and keeps no line numbers, which is why this layer exists. Anchors, aliases
and tags are rejected, so that every value stands where it is used.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kit.errors import RecipeError

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(
    r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
)
_MAX_BYTES = 250_000  # a hundred times a long recipe; PyYAML takes seconds for more, as for data given by mistake
_MAX_DEPTH = 20  # a recipe has four levels
_MAX_WIDTH = 1_000_000  # PyYAML breaks lines at 80 characters by default, but an argument must stay on one line


class _Mistake(Exception):
    """A mistake and the line (from 1) of the text in which it was made."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass
class Document:
    """The value of a YAML file, and where each part of it was set."""

    value: Any
    filename: str
    lines: dict[str, int] = field(default_factory=dict)
    """Line of each key path, such as "train.max_steps" (list items are numbered from 0: "eval.metrics.0")."""
    arguments: dict[str, str] = field(default_factory=dict)
    """The `key=value` argument that set a key path, for those set on the command line."""

    def where(self, path: Sequence[str | int]) -> str:
        """Where the value at `path`, or its nearest parent, was set; messages begin with it."""
        key = self._nearest(path)
        if key is None:
            return self.filename
        argument = self.arguments.get(key)
        return f"on the command line ({argument})" if argument else f"{self.filename}, line {self.lines[key]}"

    def order(self, path: Sequence[str | int]) -> tuple[bool, int]:
        """Sort key for messages: in file order, then the command line."""
        key = self._nearest(path)
        return (key in self.arguments, self.lines.get(key, 0)) if key is not None else (False, 0)

    def has(self, key: Sequence[str]) -> bool:
        """Whether the document sets a key of a section."""
        section = self.value.get(key[0])
        return isinstance(section, dict) and key[1] in section

    def is_overridden(self, path: Sequence[str | int]) -> bool:
        """Whether a `key=value` argument set the value at `path`, or a part of it."""
        return any(f"{key}.".startswith(f"{_dotted(path)}.") for key in self.arguments)

    def drop(self, key: Sequence[str]) -> None:
        """Remove a key of a section."""
        del self.value[key[0]][key[1]]

    def _nearest(self, path: Sequence[str | int]) -> str | None:
        keys = (_dotted(path[:length]) for length in range(len(path), 0, -1))
        return next((key for key in keys if key in self.arguments or key in self.lines), None)

    def override(self, argument: str) -> None:
        """Set the value of a `key=value` argument; if a key is given twice, the last argument wins."""
        key, value = parse_override(argument)
        argument = printable(argument)
        if not isinstance(self.value, dict):
            raise RecipeError(f"{self.filename} has no sections for {argument} to change.")
        *sections, name = key.split(".")
        target = self.value
        for depth, section in enumerate(sections, start=1):
            inner = target.get(section)
            if inner is None:
                inner = target[section] = {}
                if _dotted(sections[:depth]) not in self.lines:
                    self.arguments[_dotted(sections[:depth])] = argument
            elif not isinstance(inner, dict):
                raise RecipeError(
                    f"on the command line ({argument}): {_dotted(sections[:depth])} is not a section; "
                    f"set its value as a whole."
                )
            target = inner
        target[name] = value
        for origins in (self.lines, self.arguments):
            for replaced in [path for path in origins if f"{path}.".startswith(f"{key}.")]:
                del origins[replaced]
        self.arguments[key] = argument


def read_text(path: Path) -> str:
    """The text of a recipe file. Raises RecipeError if it cannot be read."""
    name = printable(path)
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise RecipeError(f"{name} has {size:,} bytes: it is too large to be a recipe.")
        content = path.read_bytes()
    except FileNotFoundError:
        raise RecipeError(f"{name} does not exist.") from None
    except IsADirectoryError:
        raise RecipeError(f"{name} is a folder; name the recipe file in it.") from None
    except (OSError, ValueError) as error:
        raise RecipeError(f"{name} cannot be read: {error}") from None
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise RecipeError(f"{name}, line {line}: the file contains a NUL byte, so it is not a text file.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise RecipeError(
            f"{name}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8. Save the file as UTF-8."
        ) from None


def read_yaml(text: str, filename: str) -> Document:
    """The value of a YAML text with the line of every key. Raises RecipeError for duplicate keys and invalid YAML."""
    document = Document(None, filename)
    try:
        node = _compose(text)
        if node is not None:
            document.value = _value(node, (), document.lines)
    except _Mistake as mistake:
        raise RecipeError(f"{filename}, line {mistake.line}: {mistake}") from None
    return document


def parse_override(argument: str) -> tuple[str, Any]:
    """The key path and value of a `key=value` argument.

    The value is taken literally, as a number, true/false, null (also if empty) or text. Only a value that begins with a
    bracket, a brace or a quotation mark is parsed as YAML: `eval.metrics=[bleu, chrf]`.
    """
    shown = printable(argument)
    if not _is_text(argument):
        raise RecipeError(f"on the command line: {shown} is not valid UTF-8.")
    key, equals, text = argument.partition("=")
    if not equals or not all(re.fullmatch(r"[^\s.]+", part) for part in key.split(".")):
        raise RecipeError(f'on the command line: "{shown}" is not of the form key=value (train.max_steps=500).')
    try:
        if _starts_as_yaml(text):
            node = _compose(text)
            return key, None if node is None else _value(node, tuple(key.split(".")), {})
        return key, _parse_plain_scalar(text)
    except (_Mistake, ValueError) as mistake:
        raise RecipeError(f"on the command line ({shown}): {mistake}") from None


def write_override(key: str, value: Any) -> str:
    """A `key=value` argument that `parse_override` reads as the same value; some values need quoting in a shell."""
    if isinstance(value, str) and value.isprintable() and _is_plain_text(value):
        return f"{key}={value}"
    line = yaml.dump(
        [value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=_MAX_WIDTH
    )
    return f"{key}={line.strip()[1:-1]}"


def write_yaml(value: Any) -> str:
    """YAML text that `read_yaml` reads as an equal value; so do other parsers, including those for YAML 1.1."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_MAX_WIDTH)


def printable(value: object) -> str:
    """An argument or path on one line, with unprintable characters escaped, including the surrogates by which Python
    represents undecodable bytes."""
    text = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def key_name(path: Sequence[str | int]) -> str:
    """A key path as messages show it: dotted, with quotation marks around anything but plain words."""
    return ".".join(str(part) if re.fullmatch(r"[\w-]{1,60}", str(part)) else _quoted(str(part)) for part in path)


def _quoted(text: str) -> str:
    return f'"{printable(text[:40])}{"…" * (len(text) > 40)}"'


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in path)


def _starts_as_yaml(text: str) -> bool:
    return text.lstrip()[:1] in ("[", "{", "'", '"')


def _is_plain_text(text: str) -> bool:
    try:
        return not _starts_as_yaml(text) and _parse_plain_scalar(text) == text
    except ValueError:  # a number that is too long
        return False


def _parse_plain_scalar(text: str) -> Any:
    """The value of an unquoted scalar in the YAML 1.2 core schema. Raises ValueError for integers beyond 64 bits."""
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text.lower() == "true"
    if _INT.match(text):
        # check the length first: Python itself refuses to convert thousands of digits
        number = None if len(text) > 64 else int(text, 0 if text[:2] in ("0o", "0x") else 10)
        if number is None or abs(number) >= 2**63:
            raise ValueError(f"the number {text[:20]}{'…' if len(text) > 20 else ''} does not fit into 64 bits.")
        return number
    if _FLOAT.match(text):
        return float(re.sub(r"\.(?=[a-zA-Z]{3}\Z)", "", text))  # Python writes inf and nan without the dot
    return text


class _Loader(yaml.SafeLoader):
    """Composes nodes but leaves scalars to `_parse_plain_scalar`; rejects what makes YAML hard to read."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's own attribute)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Mistake(line, "anchors (&name) and aliases (*name) are not allowed in recipes: write out the value.")
        if getattr(event, "tag", None) is not None:
            raise _Mistake(line, f"tags such as {event.tag} are not allowed in recipes: quote text that begins with !.")
        if self.depth > _MAX_DEPTH:
            raise _Mistake(line, f"nested deeper than {_MAX_DEPTH} levels: a recipe consists of sections and keys.")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Writes lists on one line, and quotes every text that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern in (("null", _NULL), ("bool", _BOOL), ("int", _INT), ("float", _FLOAT)):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, None)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # PyYAML's single quotes lose unusual line breaks; double quotes escape them
    style = '"' if any(character in text for character in "\n\r\x85\u2028\u2029\ufeff") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)


def _compose(text: str) -> yaml.Node | None:
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise _Mistake(line, f"the character U+{ord(text[error.position]):04X} is not allowed in YAML.") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise _Mistake(line, f"this is not valid YAML: {_yaml_problem(error)}") from None
    except (ValueError, OverflowError) as error:  # PyYAML converts some escapes and directives without checks
        line = loader.line + 1 if loader else 1
        raise _Mistake(line, f"this is not valid YAML: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "it cannot be read"
    if r"'\t'" in problem:
        return "a value begins with a tab; indent with spaces."
    if "mapping values are not allowed" in problem:
        return 'a second ": " on this line, or wrong indentation; quote text that contains ": ".'
    if "expected a single document" in (error.context or ""):
        return "a second document (---) begins here; a recipe is a single document."
    return f"{problem}." if not error.context else f"{problem} ({error.context})."


def _value(node: yaml.Node, path: tuple[str | int, ...], lines: dict[str, int]) -> Any:
    """The value of a node; adds the lines of its keys and items to `lines`."""
    if isinstance(node, yaml.MappingNode):
        return dict(_items(node, path, lines))
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            lines.setdefault(_dotted((*path, number)), item.start_mark.line + 1)
        return [_value(item, (*path, number), lines) for number, item in enumerate(node.value)]
    text = _text(node)
    if not isinstance(node, yaml.ScalarNode) or node.style is not None:
        return text
    try:
        return _parse_plain_scalar(text)
    except ValueError as error:
        raise _Mistake(node.start_mark.line + 1, f"{key_name(path)}: {error}") from None


def _text(node: yaml.Node) -> str:
    text = str(node.value)
    if not _is_text(text):
        raise _Mistake(
            node.start_mark.line + 1, "an escape stands for half a character (a surrogate), which is not valid text."
        )
    return text


def _items(node: yaml.MappingNode, path: tuple[str | int, ...], lines: dict[str, int]) -> Iterator[tuple[str, Any]]:
    first: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise _Mistake(line, "a key must be a word, not a list or a mapping.")
        key = _text(key_node)  # keys that look like numbers stay text: recipes have no numeric keys
        if key in first:
            raise _Mistake(
                line,
                f"{key_name((*path, key))} is set twice, first on line {first[key]}. Keep one of them.",
            )
        first[key] = line
        lines.setdefault(_dotted((*path, key)), line)
        yield key, _value(value_node, (*path, key), lines)
