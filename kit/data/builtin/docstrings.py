"""The docstrings of Python's standard library and what they describe: `builtin:docstrings`.

    column      what it holds                                         an example
    docstring   the text, on one line                                 Fill a single paragraph of text. Reformat the …
    summary     its first sentence                                    Fill a single paragraph of text.
    body        what follows; missing where nothing does              Reformat the single paragraph in 'text' to fit …
    signature   the documented line; missing for a whole module       def fill(text, width=70, **kwargs)
    module      where it stands                                       textwrap
    name        what is documented; empty for a whole module          fill

`data.source` and `data.target` choose two of them: body to summary is summarization, docstring to signature is text to
code. The set has the rows that have both, and no source twice. Text of more than 600 characters is cut at a word.
Top-level modules are dealt out to the splits as a whole, so that the test asks about code that training has not seen.

The source files are parsed, never run. What is in them depends on the version of Python.
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
SHARE_HELD_OUT = 0.1  # most of the rows that validation, and that test, may have
LONGEST_TEXT = 600
LONGEST_DEFAULT = 24  # longer default values of arguments are written as `...`

# Tests, programs to look at, and what does not belong to the library.
LEFT_OUT = {"test", "tests", "idle_test", "lib2to3", "turtledemo", "ensurepip", "site-packages", "dist-packages"}
END_OF_SENTENCE = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\betc)(?<!\bvs)[.!?](?=\s+[^\sa-z])")

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Row = dict[str, str]


def generate(columns: Sequence[str], sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, pa.Table]:
    """Train, validation and test, each with all columns and the rows that have text in `columns`.

    No text of the first of them is in two rows, no top-level module in two splits, and equal arguments give equal rows
    on the same Python. Raises DataError if this Python comes without the sources of its library.
    """
    rows: dict[object, Row] = {}
    for number, row in enumerate(documented(Path(sysconfig.get_path("stdlib")))):
        if all(row.get(column) for column in columns if column in COLUMNS):
            rows.setdefault(row.get(columns[0], number), row)
    splits = deal(list(rows.values()), random.Random(f"docstrings/{seed}/modules"))
    return {split: sample(rows, (sizes or {}).get(split), split, seed) for split, rows in splits.items()}


def deal(rows: Sequence[Row], chance: random.Random) -> dict[str, list[Row]]:
    """The rows by split: the top-level modules in random order, each to a split that has room for all of it."""
    names = [row["module"].partition(".")[0] for row in rows]
    count = Counter(names)
    room = dict.fromkeys(("test", "validation"), int(len(rows) * SHARE_HELD_OUT))
    place = {}
    order = sorted(count)
    chance.shuffle(order)
    for name in order:
        place[name] = next((split for split, left in room.items() if count[name] <= left), "train")
        if place[name] in room:
            room[place[name]] -= count[name]
    splits: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for name, row in zip(names, rows, strict=True):
        splits[place[name]].append(row)
    return splits


def sample(rows: Sequence[Row], size: int | None, split: str, seed: int) -> pa.Table:
    """`size` of the rows, or all of them, in random order."""
    if size is not None and size > len(rows):
        raise DataError(
            f"data.sizes.{split}: {size} rows asked for, but builtin:docstrings has {len(rows)} for this split and "
            "these columns. Ask for fewer."
        )
    order = random.Random(f"docstrings/{seed}/{split}").sample(rows, len(rows) if size is None else size)
    return pa.Table.from_pylist(order, pa.schema([(column, pa.string()) for column in COLUMNS]))


@cache
def documented(library: Path) -> tuple[Row, ...]:
    """Everything in a folder of Python files that has a docstring, by module and then from top to bottom."""
    found: list[Row] = []
    for path in sorted(library.rglob("*.py")) if library.is_dir() else ():
        place = path.relative_to(library)
        if LEFT_OUT.isdisjoint(place.parts) and not place.name.startswith(("test_", "_test")):
            found += rows_of(path, ".".join(place.with_suffix("").parts).removesuffix(".__init__"))
    if not found:
        raise DataError(
            f"builtin:docstrings is made from the source files of Python's standard library, and there are none in "
            f"{library}: this Python comes without them. Use another Python, or other data (data.path)."
        )
    return tuple(found)


def rows_of(path: Path, module: str) -> Iterator[Row]:
    """A row for each docstring of a file; a column that has nothing to say is left out of it."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of the code that is read, such as doubtful escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a file for another version of Python
        return
    for name, definition in definitions(tree):
        if text := (ast.get_docstring(definition) or "").strip():
            summary, body = in_two(text)
            row = {"docstring": tidy(text), "summary": summary, "body": body, "module": module, "name": name}
            if not isinstance(definition, ast.Module):
                row["signature"] = signature(definition)
            yield {column: value for column, value in row.items() if value or column == "name"}


def definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Whatever may have a docstring, with its name: the module, and classes and functions at any depth."""
    if isinstance(node, ast.Module):
        yield "", node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
            yield from definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from definitions(child, prefix)


def tidy(text: str) -> str:
    """Text on one line, cut at a word if it is too long."""
    words = " ".join(text.split())
    return words if len(words) <= LONGEST_TEXT else words[: LONGEST_TEXT + 1].rpartition(" ")[0]


def in_two(docstring: str) -> tuple[str, str]:
    """The first sentence, which ends with the first paragraph at the latest, and the rest."""
    first, rest = (*re.split(r"\n\s*\n", docstring.strip(), maxsplit=1), "")[:2]
    end = END_OF_SENTENCE.search(first)
    if end is not None:
        first, rest = first[: end.end()], f"{first[end.end() :]}\n\n{rest}"
    return tidy(first), tidy(rest)


def signature(definition: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The line that begins a definition, as `ast.unparse` writes it, without decorators and the colon."""
    bare = copy(definition)
    bare.decorator_list = []
    bare.body = [ast.Expr(ast.Constant(...))]
    if not isinstance(bare, ast.ClassDef):
        bare.args = copy(bare.args)
        bare.args.defaults = [short(value) for value in bare.args.defaults]
        bare.args.kw_defaults = [value and short(value) for value in bare.args.kw_defaults]
    return tidy(ast.unparse(bare)).removesuffix("...").rstrip().removesuffix(":")


def short(default: ast.expr) -> ast.expr:
    return default if len(ast.unparse(default)) <= LONGEST_DEFAULT else ast.Constant(...)
