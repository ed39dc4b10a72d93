"""The notebooks in examples/ are valid, have the outputs of a real run, and run."""

import re
from pathlib import Path

import pytest
from support.documents import ROOT
from support.notebooks import code_cells, execute, read_notebook

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_valid_and_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = read_notebook(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert {"kernelspec", "language_info"} <= notebook["metadata"].keys()
    identifiers = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(re.fullmatch(r"[\w-]{1,64}", identifier) for identifier in identifiers)
    assert {cell["cell_type"] for cell in notebook["cells"]} == {"markdown", "code"}
    stored = [(cell["execution_count"], results_of(cell)) for cell in code_cells(notebook)]
    assert [count for count, _ in stored] == list(range(1, len(stored) + 1))

    monkeypatch.chdir(tmp_path)
    execute(notebook)
    # what was printed about speed and time differs
    assert [(cell["execution_count"], results_of(cell)) for cell in code_cells(notebook)] == stored


def results_of(cell: dict) -> list[str]:
    """The values of a cell, and what it printed itself."""
    assert all(output["output_type"] in ("stream", "execute_result") for output in cell["outputs"])
    texts = [output["data"]["text/plain"] for output in cell["outputs"] if output["output_type"] == "execute_result"]
    texts += [output["text"] for output in cell["outputs"] if output.get("name") == "stdout"]
    return ["".join(lines) for lines in texts]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
