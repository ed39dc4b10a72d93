"""Notebooks: read, executed in this process, and written with their outputs."""

import ast
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any


def read_notebook(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """Execute the code cells in order and set their outputs; returns the names that they define."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for count, cell in enumerate(code_cells(notebook), 1):
        tree = ast.parse("".join(cell["source"]))
        stdout, stderr = io.StringIO(), io.StringIO()
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            exec(compile(tree, f"cell {count}", "exec"), names)
            value = None if last is None else eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
        cell["execution_count"] = count
        result = [] if value is None else [_result(value, count)]
        cell["outputs"] = [*_stream("stdout", stdout.getvalue()), *_stream("stderr", stderr.getvalue()), *result]
    return names


def write_notebook(notebook: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _stream(name: str, text: str) -> list[dict[str, Any]]:
    """The output of a stream, without the lines of progress bars that later ones replaced."""
    text = re.sub(r"[^\n]*\r", "", text)
    return [{"name": name, "output_type": "stream", "text": text.splitlines(True)}] if text else []


def _result(value: Any, count: int) -> dict[str, Any]:
    data = {"text/plain": repr(value).splitlines(True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(True)
    return {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}
