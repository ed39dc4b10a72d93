"""Run a code block of the documentation, and compare what it returns with the comment below: types, keys and lengths.

python tests/support/run_block.py FILE
"""

import ast
import re
import sys
from pathlib import Path
from typing import Any


def literal_below(lines: list[str], end: int) -> Any:
    """The value in the comment below a statement that ends in a line; Ellipsis if there is none."""
    comments = []
    for line in lines[end:]:
        if not (match := re.match(r"# ?(.*)", line)):
            break
        comments.append(match[1])
    try:
        return ast.literal_eval("\n".join(comments)) if comments else ...
    except (SyntaxError, ValueError):  # a comment in words
        return ...


def shape(value: Any) -> Any:
    """A value without its numbers and texts."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [shape(inner) for inner in value]
    return "number" if isinstance(value, int | float) else type(value).__name__


def run(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    names: dict[str, Any] = {"__name__": "__main__"}
    for statement in ast.parse(source).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), str(path), "exec"), names)
            continue
        value = eval(compile(ast.Expression(statement.value), str(path), "eval"), names)
        shown = literal_below(lines, statement.end_lineno or 0)
        if shown is not ... and shape(value) != shape(shown):
            sys.exit(f"{ast.unparse(statement)} returned {value!r}, the page shows {shown!r}")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
