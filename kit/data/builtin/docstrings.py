"""The docstrings of Python's standard library and what they describe: `builtin:docstrings`.

    column      content                                               example
    docstring   the text on one line                                  Fill a single paragraph of text. Reformat the …
    summary     its first sentence                                    Fill a single paragraph of text.
    body        the rest; missing if there is none                    Reformat the single paragraph in 'text' to fit …
    signature   the documented definition; missing for a module       def fill(text, width=70, **kwargs)
    module      the module that contains it                           textwrap
    name        what is documented; empty for a module                fill

`data.source` and `data.target` choose two of them: body to summary is summarization, docstring to signature is text to
code. The set has the rows with both columns, and distinct sources. Text of more than 600 characters is truncated at a
word. Each top-level module is in a single split, so that the test is about code that training has not seen.

The source files are parsed, never executed. Their content depends on the version of Python.
"""

import ast
import random
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cache
from pathlib import Path

import pyarrow as pa

from kit.errors import DataError

COLUMNS = ("docstring", "summary", "body", "signature", "module", "name")
SHARE_HELD_OUT = 0.1  # maximum share of the rows for validation, and for test
MAX_TEXT_LENGTH = 600  # characters
MAX_DEFAULT_LENGTH = 24  # longer default values of arguments become `...`

# Tests, demos, and what does not belong to the library.
EXCLUDED = {"test", "tests", "idle_test", "lib2to3", "turtledemo", "ensurepip", "site-packages", "dist-packages"}
END_OF_SENTENCE = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)[.!?](?=\s+[^\sa-z])")

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Row = dict[str, str]


def generate(columns: Sequence[str], sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, pa.Table]:
    """Train, validation and test, each with all columns and the rows that have text in `columns`.

    The texts of the first of them are distinct, each top-level module is in one split, and equal arguments give equal
    rows on the same Python. Raises DataError if this Python is installed without the sources of its library.
    """
    rows: dict[object, Row] = {}
    for number, row in enumerate(documented_rows(Path(sysconfig.get_path("stdlib")))):
        if all(row.get(column) for column in columns if column in COLUMNS):
            rows.setdefault(row.get(columns[0], number), row)
    splits = assign_splits(list(rows.values()), random.Random(f"docstrings/{seed}/modules"))
    return {split: sample(rows, (sizes or {}).get(split), split, seed) for split, rows in splits.items()}


def assign_splits(rows: Sequence[Row], rng: random.Random) -> dict[str, list[Row]]:
    """The rows by split: top-level modules in random order, each in a split that has room for all of its rows."""
    names = [row["module"].partition(".")[0] for row in rows]
    count = Counter(names)
    room = dict.fromkeys(("test", "validation"), int(len(rows) * SHARE_HELD_OUT))
    split_of = {}
    order = sorted(count)
    rng.shuffle(order)
    for name in order:
        split_of[name] = next((split for split, left in room.items() if count[name] <= left), "train")
        if split_of[name] in room:
            room[split_of[name]] -= count[name]
    splits: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for name, row in zip(names, rows, strict=True):
        splits[split_of[name]].append(row)
    return splits


def sample(rows: Sequence[Row], size: int | None, split: str, seed: int) -> pa.Table:
    """`size` of the rows, or all of them, shuffled."""
    if size is not None and size > len(rows):
        raise DataError(
            f"data.sizes.{split}: {size} rows requested, but builtin:docstrings has {len(rows)} for this split and "
            "these columns. Request fewer rows."
        )
    order = random.Random(f"docstrings/{seed}/{split}").sample(rows, len(rows) if size is None else size)
    return pa.Table.from_pylist(order, pa.schema([(column, pa.string()) for column in COLUMNS]))


@cache
def documented_rows(library: Path) -> tuple[Row, ...]:
    """A row for every docstring in a folder of Python files, by module and then from top to bottom."""
    rows: list[Row] = []
    for path in sorted(library.rglob("*.py")) if library.is_dir() else ():
        relative = path.relative_to(library)
        if EXCLUDED.isdisjoint(relative.parts) and not relative.name.startswith(("test_", "_test")):
            rows += rows_of(path, ".".join(relative.with_suffix("").parts).removesuffix(".__init__"))
    if not rows:
        raise DataError(
            f"builtin:docstrings is generated from the sources of Python's standard library, and there are none in "
            f"{library}: this Python is installed without them. Use another Python, or other data (data.path)."
        )
    return tuple(rows)


def rows_of(path: Path, module: str) -> Iterator[Row]:
    """A row for each docstring of a file, without its empty columns."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about the code being parsed, such as invalid escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a file for another version of Python
        return
    for name, definition in definitions(tree):
        if text := (ast.get_docstring(definition) or "").strip():
            summary, body = split_summary(text)
            row = {"docstring": tidy(text), "summary": summary, "body": body, "module": module, "name": name}
            if not isinstance(definition, ast.Module):
                row["signature"] = signature(definition)
            yield {column: value for column, value in row.items() if value or column == "name"}


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Everything that can have a docstring, with its name: the module, and classes and functions at any depth."""
    if isinstance(node, ast.Module):
        yield "", node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
            yield from definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from definitions(child, prefix)


def tidy(text: str) -> str:
    """Text on one line, truncated at a word if it is too long."""
    words = " ".join(text.split())
    return words if len(words) <= MAX_TEXT_LENGTH else words[: MAX_TEXT_LENGTH + 1].rpartition(" ")[0]


def split_summary(docstring: str) -> tuple[str, str]:
    """The first sentence (at most the first paragraph), and the rest."""
    first, rest = (*re.split(r"\n\s*\n", docstring.strip(), maxsplit=1), "")[:2]
    end = END_OF_SENTENCE.search(first)
    if end is not None:
        first, rest = first[: end.end()], f"{first[end.end() :]}\n\n{rest}"
    return tidy(first), tidy(rest)


def signature(definition: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The first line of a definition, as `ast.unparse` formats it, without decorators and the colon."""
    bare = copy(definition)
    bare.decorator_list = []
    bare.body = [ast.Expr(ast.Constant(...))]
    if not isinstance(bare, ast.ClassDef):
        bare.args = copy(bare.args)
        bare.args.defaults = [short(value) for value in bare.args.defaults]
        bare.args.kw_defaults = [value and short(value) for value in bare.args.kw_defaults]
    return tidy(ast.unparse(bare)).removesuffix("...").rstrip().removesuffix(":")


def short(default: ast.expr) -> ast.expr:
    return default if len(ast.unparse(default)) <= MAX_DEFAULT_LENGTH else ast.Constant(...)
