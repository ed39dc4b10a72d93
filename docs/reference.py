"""Write the three reference pages from the code: the command line, the keys of recipes, and the Python interface.

MkDocs calls `on_files` before it builds the site, so the pages exist in the site alone and are never out of date.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import typer

import kit
from kit.cli import app
from kit.models import MODELS
from kit.recipe.keys import KeyVariant, key_variants, name_tasks
from kit.recipe.messages import describe, show
from kit.recipe.model_settings import model_fields
from kit.tasks.registry import recipe_classes

RECIPES = recipe_classes()


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those that MkDocs found in docs/."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


# ---- the command line ------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command with its arguments and options, as `kit COMMAND --help` has them."""
    group = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        "Run `kit COMMAND --help` for the same text in your terminal.",
        "",
        "| command | purpose |",
        "|---|---|",
        *(f"| [`kit {name}`](#kit-{name}) | {_cell(_first(command.help))} |" for name, command in _commands(group)),
        "",
        *_exit_codes(),
    ]
    for name, command in _commands(group):
        context = command.context_class(command, info_name=name)
        records = {kind: _records(command, context, kind) for kind in ("argument", "option")}
        names = [record for record, _ in records["argument"]]
        usage = " ".join(["kit", name, *names, *(["[OPTIONS]"] if records["option"] else [])])
        lines += ["", f"## kit {name}", "", "```text", usage, "```", "", _text(command.help)]
        for kind, rows in records.items():
            if rows:
                lines += ["", f"| {kind} | meaning |", "|---|---|"]
                lines += [f"| `{record}` | {_cell(text)} |" for record, text in rows]
    return "\n".join(lines) + "\n"


def _records(command: Any, context: Any, kind: str) -> list[tuple[str, str]]:
    """The arguments or options of a command: how each is written, and its help with default and range."""
    rows = []
    for param in command.params:
        if param.param_type_name == kind:
            written, text = param.get_help_record(context)
            written = written.replace(" range>", ">")
            if kind == "argument":
                written = written.partition(" <")[0]
                written = written if param.required or written.startswith("[") else f"[{written.upper()}]"
            rows.append((written, text.replace("  [required]", "")))
    return rows


def _exit_codes() -> list[str]:
    return [
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        "| 0 | The command succeeded. |",
        "| 1 | The command failed, or a check that it ran did. |",
        "| 2 | Something in your input is wrong. One message names it and says what to do. |",
        "| 3 | The Hub could not be reached. The same command may succeed later. |",
        "| 130 | You interrupted the command. |",
    ]


def _commands(group: Any) -> list[tuple[str, Any]]:
    return list(group.commands.items())


# ---- the keys of recipes ---------------------------------------------------------------------------------------------


def recipe_keys_page() -> str:
    """Every key of every section, with what it expects, its default and the tasks that have it."""
    tasks = {
        name: " ".join((recipe.model_fields["task"].description or "").split()) for name, recipe in RECIPES.items()
    }
    lines = [
        "# Recipe keys",
        "",
        "`kit explain KEY` prints the same in your terminal, and `kit recipes --schema` prints a JSON schema for your "
        "editor. On the command line a key is written `section.key=value`.",
        "",
        "## task",
        "",
        "| task | what the model learns |",
        "|---|---|",
        *(f"| `{name}` | {_cell(text)} |" for name, text in tasks.items()),
    ]
    for section, keys in key_variants(RECIPES).items():
        lines += ["", f"## {section}", "", *_key_table(section, keys)]
        if section == "model":
            lines += [
                "",
                "The other keys are the fields of the model's config class. These are the model types of kit; ",
            ]
            lines[-1] += "with a model type of transformers, use the fields of its own config class."
            for model_type in MODELS:
                fields = {name: [KeyVariant(field, [*RECIPES])] for name, field in model_fields(model_type).items()}
                lines += ["", f"### model.type: {model_type}", "", *_key_table("model", fields)]
    return "\n".join(lines) + "\n"


def _key_table(section: str, keys: dict[str, list[KeyVariant]]) -> Iterator[str]:
    yield "| key | expects | default | meaning |"
    yield "|---|---|---|---|"
    for name, variants in keys.items():
        for variant in variants:
            expects = _cell(describe(variant.field.annotation, variant.field.metadata))
            meaning = _cell(variant.field.description) + _only_for(variant.tasks)
            yield f"| `{section}.{name}` | {expects} | {_field_default(variant.field)} | {meaning} |"


def _only_for(tasks: list[str]) -> str:
    """Which tasks have a key, unless all have it."""
    return f" *Tasks: {name_tasks(tasks, RECIPES)}.*" if len(tasks) < len(RECIPES) else ""


def _field_default(field: Any) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    return f"`{_cell(default if isinstance(default, str) else show(default))}`"


# ---- the Python interface --------------------------------------------------------------------------------------------


def python_page() -> str:
    """Every public name of the package with its signature and docstring."""
    names = [name for name in kit.__all__ if not name.startswith("__")]
    objects = {name: getattr(kit, name) for name in names}
    functions = {name: value for name, value in objects.items() if not inspect.isclass(value)}
    errors = {name: value for name, value in objects.items() if name not in functions and issubclass(value, Exception)}
    classes = {name: value for name, value in objects.items() if name not in functions and name not in errors}
    lines = ["# Python", "", "Everything here is imported from `kit`; nothing else is public.", ""]
    lines += [f"- [`kit.{name}`](#kit{name.lower()})" for name in (*functions, *classes)]
    lines += ["", "## Functions"]
    for name, function in functions.items():
        lines += ["", *_documented("kit." + name, function)]
    lines += ["", "## Classes"]
    for name, cls in classes.items():
        lines += ["", *_documented("kit." + name, cls)]
        if dataclasses.is_dataclass(cls):
            lines += ["", *(f"- `{field.name}: {_type(field.type)}`" for field in dataclasses.fields(cls))]
        properties = [f"- `{member}`: {_cell(inspect.getdoc(value))}" for member, value in _properties(cls)]
        lines += properties if dataclasses.is_dataclass(cls) else ["", *properties]
        for member, function in _methods(cls):
            lines += ["", *_documented(f"{name}.{member}", function, "####")]
    lines += ["", "## Errors", "", "| error | meaning |", "|---|---|"]
    lines += [f"| `kit.{name}` | {_cell(_text(inspect.getdoc(error)))} |" for name, error in errors.items()]
    return "\n".join(lines) + "\n"


def _documented(name: str, value: Any, level: str = "###") -> list[str]:
    heading = name if level == "###" else name.partition(".")[2]
    lines = [f"{level} {heading}", "", "```python", f"{name}{_signature(value)}", "```"]
    return [*lines, "", _text(inspect.getdoc(value))]


CALLED_BY_USERS = {"Recipe": ("to_yaml", "flat", "differences"), "Translator": ("translate",)}
"""Of classes whose other members are for kit alone: those that tasks override, and those of the engine."""


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public members with a docstring that the class defines itself."""
    for name, member in vars(cls).items():
        if not name.startswith("_") and name in CALLED_BY_USERS.get(cls.__name__, (name,)):
            value = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if inspect.getdoc(value):
                yield name, value


def _methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    return ((name, member) for name, member in _members(cls) if inspect.isfunction(member))


def _properties(cls: type) -> Iterator[tuple[str, Any]]:
    return (item for item in _members(cls) if isinstance(item[1], property | functools.cached_property))


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(…)"
    parameters = [item for item in signature.parameters.values() if item.name != "self"]
    shown = [_short_names(str(_with_short_default(item))) for item in parameters]
    given = f"({', '.join(shown)})"
    if len(given) > 90:
        given = "(\n    " + ",\n    ".join(shown) + ",\n)"
    result = signature.return_annotation
    return given if result is signature.empty or inspect.isclass(value) else f"{given} -> {_type(result)}"


class _Ellipsis:
    def __repr__(self) -> str:
        return "…"


def _with_short_default(parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter with "…" for a default that is a function, whose name would be an address, or a whole object."""
    is_plain = parameter.default is None or isinstance(parameter.default, str | int | float | tuple | type)
    return parameter if is_plain else parameter.replace(default=_Ellipsis())


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _short_names(text)


def _short_names(text: str) -> str:
    """Types without their modules, and without the quotes that postponed annotations have."""
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", re.sub(r": '([^']+)'", r": \1", text))


# ---- text ------------------------------------------------------------------------------------------------------------


def _text(text: str | None) -> str:
    """A docstring as Markdown: paragraphs stay, and what looks like HTML is shown."""
    parts = inspect.cleandoc(text or "").split("`")  # code spans, every other part, show characters as they are
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def _cell(text: str | None) -> str:
    """Text for a cell of a table."""
    leading = " " if (text or "").startswith(" ") else ""
    return leading + " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


def _first(text: str | None) -> str:
    """The first paragraph."""
    return inspect.cleandoc(text or "").partition("\n\n")[0]


PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page,
    "reference/recipe-keys.md": recipe_keys_page,
    "reference/python.md": python_page,
}
"""The pages, by their path in docs/."""


@functools.cache
def pages() -> dict[str, str]:
    """The text of each page."""
    return {name: write() for name, write in PAGES.items()}
