"""Recipe files as text: YAML with the line of every key, `key=value` overrides, and writing YAML back.

Scalars follow the YAML 1.2 core schema: only `true` and `false` are booleans, so `no` (Norwegian) stays text,
and `1e-3` is a number. Anchors, aliases and tags are refused: a recipe is read as it stands.
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
_LARGEST_FILE = 1_000_000  # bytes; no recipe is near it, but a file of weights given by mistake is far above
_DEEPEST = 20  # levels; a recipe has four


class _Mistake(Exception):
    """What is wrong, and in which line (from 1) of the text being read."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass
class Document:
    """A YAML file as a value, and where each part of the value comes from."""

    value: Any
    filename: str
    lines: dict[str, int] = field(default_factory=dict)
    """Line of each key path, such as "train.max_steps" (list items are numbered from 0: "eval.metrics.0")."""
    arguments: dict[str, str] = field(default_factory=dict)
    """The `key=value` argument that set a key path, for those that come from the command line."""

    def where(self, path: Sequence[str | int]) -> str:
        """Where the value at `path`, or the nearest thing around it, was given: to begin a message with."""
        key = self._nearest(path)
        if key is None:
            return self.filename
        argument = self.arguments.get(key)
        return f"on the command line ({argument})" if argument else f"{self.filename}, line {self.lines[key]}"

    def order(self, path: Sequence[str | int]) -> tuple[bool, int]:
        """What to sort messages by: as the file goes, then the command line."""
        key = self._nearest(path)
        return (key in self.arguments, self.lines.get(key, 0)) if key is not None else (False, 0)

    def _nearest(self, path: Sequence[str | int]) -> str | None:
        keys = (_dotted(path[:length]) for length in range(len(path), 0, -1))
        return next((key for key in keys if key in self.arguments or key in self.lines), None)

    def override(self, argument: str) -> None:
        """Set what a `key=value` argument says; of two arguments for one key the later wins."""
        key, value = parse_override(argument)
        argument = printable(argument)
        if not isinstance(self.value, dict):
            raise RecipeError(f"{self.filename} has no sections that {argument} could change.")
        *sections, name = key.split(".")
        place = self.value
        for depth, section in enumerate(sections, start=1):
            inner = place.get(section)
            if inner is None:
                inner = place[section] = {}
                if _dotted(sections[:depth]) not in self.lines:
                    self.arguments[_dotted(sections[:depth])] = argument
            elif not isinstance(inner, dict):
                raise RecipeError(
                    f"on the command line ({argument}): {_dotted(sections[:depth])} is not a section; "
                    f"give its value as a whole."
                )
            place = inner
        place[name] = value
        for known in (self.lines, self.arguments):
            for old in [old for old in known if f"{old}.".startswith(f"{key}.")]:
                del known[old]
        self.arguments[key] = argument


def read_text(path: Path) -> str:
    """The text of a recipe file; whatever keeps it from being read is a RecipeError."""
    name = printable(path)
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise RecipeError(f"{name} has {size:,} bytes: that is no recipe.")
        content = path.read_bytes()
    except FileNotFoundError:
        raise RecipeError(f"{name} does not exist.") from None
    except IsADirectoryError:
        raise RecipeError(f"{name} is a folder; give the recipe file in it.") from None
    except (OSError, ValueError) as error:
        raise RecipeError(f"{name} cannot be read: {error}") from None
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise RecipeError(f"{name}, line {line}: there is a NUL byte, so this is not a text file.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise RecipeError(
            f"{name}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8. Save the file as UTF-8."
        ) from None


def read_yaml(text: str, filename: str) -> Document:
    """The value of a YAML text with the line of every key; duplicate keys and broken YAML are refused."""
    document = Document(None, filename)
    try:
        node = _compose(text)
        if node is not None:
            document.value = _value(node, (), document.lines)
    except _Mistake as mistake:
        raise RecipeError(f"{filename}, line {mistake.line}: {mistake}") from None
    return document


def parse_override(argument: str) -> tuple[str, Any]:
    """Key path and value of a `key=value` argument.

    The value is taken as it stands, as number, true/false, null (or nothing at all) or text; one that begins
    with a bracket, a brace or a quote is read as YAML: `eval.metrics=[bleu, chrf]`.
    """
    shown = printable(argument)
    if not _is_text(argument):
        raise RecipeError(f"on the command line: {shown} is not text in UTF-8.")
    key, equals, text = argument.partition("=")
    if not equals or not all(re.fullmatch(r"[^\s.]+", part) for part in key.split(".")):
        raise RecipeError(f'on the command line: "{shown}" is not of the form key=value (train.max_steps=500).')
    try:
        if _begins_yaml(text):
            node = _compose(text)
            return key, None if node is None else _value(node, tuple(key.split(".")), {})
        return key, _plain(text)
    except (_Mistake, ValueError) as mistake:
        raise RecipeError(f"on the command line ({shown}): {mistake}") from None


def write_override(key: str, value: Any) -> str:
    """A `key=value` argument that `parse_override` reads as the same value; a shell needs quotes around some."""
    if isinstance(value, str) and value.isprintable() and _stands_for_itself(value):
        return f"{key}={value}"
    line = yaml.dump(
        [value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1_000_000
    )
    return f"{key}={line.strip()[1:-1]}"


def write_yaml(value: Any) -> str:
    """YAML text that `read_yaml` reads as an equal value; other readers, of YAML 1.1 too, take it alike."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)


def printable(value: object) -> str:
    """An argument or path on one line; Python keeps bytes in it that are no text as surrogates: shown escaped."""
    text = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def key_name(path: Sequence[str | int]) -> str:
    """A key path as a message shows it: dotted, with quotes around what is no plain word."""
    return ".".join(str(part) if re.fullmatch(r"[\w-]{1,60}", str(part)) else _quoted(str(part)) for part in path)


def _quoted(text: str) -> str:
    return f'"{printable(text[:40])}{"…" * (len(text) > 40)}"'


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in path)


def _begins_yaml(text: str) -> bool:
    return text.lstrip()[:1] in ("[", "{", "'", '"')


def _stands_for_itself(text: str) -> bool:
    try:
        return not _begins_yaml(text) and _plain(text) == text
    except ValueError:  # a number that is too long
        return False


def _plain(text: str) -> Any:
    """The value of an unquoted scalar by the core schema of YAML 1.2."""
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text.lower() == "true"
    if _INT.match(text):
        # the length comes first: Python itself refuses to convert thousands of digits
        number = None if len(text) > 64 else int(text, 0 if text[:2] in ("0o", "0x") else 10)
        if number is None or abs(number) >= 2**63:
            raise ValueError(f"the number {text[:20]}{'…' if len(text) > 20 else ''} does not fit into 64 bits.")
        return number
    if _FLOAT.match(text):
        return float(re.sub(r"\.(?=[a-zA-Z]{3}\Z)", "", text))  # Python writes inf and nan without the dot
    return text


class _Loader(yaml.SafeLoader):
    """Composes nodes without resolving scalars (`_plain` does that); refuses what makes YAML hard to read."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's own attribute)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Mistake(line, "anchors (&name) and aliases (*name) are not used in recipes: write the value out.")
        if getattr(event, "tag", None) is not None:
            raise _Mistake(line, f"tags such as {event.tag} are not used in recipes: quote a text that begins with !.")
        if self.depth > _DEEPEST:
            raise _Mistake(line, f"nested deeper than {_DEEPEST} levels: a recipe has sections and keys.")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Writes lists on one line, and quotes every text that YAML 1.1 or 1.2 would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern in (("null", _NULL), ("bool", _BOOL), ("int", _INT), ("float", _FLOAT)):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, None)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # PyYAML's single quotes lose rare line ends; in double quotes they are escaped
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
        raise _Mistake(line, f"this is not YAML: {_yaml_problem(error)}") from None
    except (ValueError, OverflowError) as error:  # PyYAML converts some escapes and directives unchecked
        line = loader.line + 1 if loader else 1
        raise _Mistake(line, f"this is not YAML: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "it cannot be read"
    if r"'\t'" in problem:
        return "a tab begins a value; indent with spaces."
    if "mapping values are not allowed" in problem:
        return 'a second ": " on this line, or wrong indentation; put a text with ": " in quotes.'
    if "expected a single document" in (error.context or ""):
        return "a second document (---) begins here; a recipe is one document."
    return f"{problem}." if not error.context else f"{problem} ({error.context})."


def _value(node: yaml.Node, path: tuple[str | int, ...], lines: dict[str, int]) -> Any:
    """The value of a node; the lines of its keys and items are entered into `lines`."""
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
        return _plain(text)
    except ValueError as error:
        raise _Mistake(node.start_mark.line + 1, f"{key_name(path)}: {error}") from None


def _text(node: yaml.Node) -> str:
    text = str(node.value)
    if not _is_text(text):
        raise _Mistake(node.start_mark.line + 1, "an escape names half a character (a surrogate), which is no text.")
    return text


def _items(node: yaml.MappingNode, path: tuple[str | int, ...], lines: dict[str, int]) -> Iterator[tuple[str, Any]]:
    first: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise _Mistake(line, "a key must be a word, not a list or a mapping.")
        key = _text(key_node)  # also what looks like a number: recipes have no numbered keys
        if key in first:
            raise _Mistake(
                line,
                f"{key_name((*path, key))} is given twice, first in line {first[key]}. Keep one of them.",
            )
        first[key] = line
        lines.setdefault(_dotted((*path, key)), line)
        yield key, _value(value_node, (*path, key), lines)
