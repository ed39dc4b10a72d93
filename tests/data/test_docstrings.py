"""Built-in docstrings: what is extracted, what is excluded, and that nothing leaks between splits."""

import ast
import inspect
import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.data.builtin import docstrings, load_builtin
from kit.data.builtin.docstrings import COLUMNS, MAX_TEXT_LENGTH, documented_rows, rows_of, signature, split_summary
from kit.data.splits import load_splits
from kit.errors import DataError
from kit.tasks.translation.recipe import TranslationData

TASKS = (("body", "summary"), ("docstring", "signature"))


def rows(source: str, target: str, seed: int = 0, **sizes: int) -> dict[str, list[dict[str, str | None]]]:
    tables = load_builtin("docstrings", None, sizes, seed, (source, target))
    return {split: table.to_pylist() for split, table in tables.items()}


@pytest.mark.parametrize(("source", "target"), TASKS)
def test_nothing_is_in_two_splits(source, target):
    splits = rows(source, target)
    assert list(splits) == ["train", "validation", "test"]
    for seen in (lambda row: row[source], lambda row: row["module"].partition(".")[0]):
        values = [{seen(row) for row in split} for split in splits.values()]
        assert sum(map(len, values)) == len(set.union(*values))
    every = [row for split in splits.values() for row in split]
    assert len({row[source] for row in every}) == len(every)


@pytest.mark.parametrize(("source", "target"), TASKS)
def test_rows_have_the_documented_form(source, target):
    splits = rows(source, target)
    # Python 3.11 has 3,910 and 7,510; other versions differ by far less than a factor of ten.
    total = sum(map(len, splits.values()))
    assert total > 2500
    for split in ("validation", "test"):
        assert 0.08 * total < len(splits[split]) <= 0.1 * total
    for row in (row for split in splits.values() for row in split):
        assert tuple(row) == COLUMNS
        for column in (source, target):
            text = row[column]
            assert text == " ".join(text.split())
            assert 0 < len(text) <= MAX_TEXT_LENGTH or column == "signature"
        assert row["docstring"].startswith(row["summary"])
        assert row["module"].partition(".")[0] not in ("test", "lib2to3", "site-packages")


def test_signatures_are_python():
    for row in (row for split in rows("docstring", "signature").values() for row in split):
        (node,) = ast.parse(f"{row['signature']}: ...").body
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        assert node.name == row["name"].rpartition(".")[2]


def test_rows_match_the_modules():
    by_name = {(row["module"], row["name"]): row for row in documented_rows(Path(sysconfig.get_path("stdlib")))}
    row = by_name["textwrap", "fill"]
    assert row["docstring"] == " ".join(inspect.getdoc(textwrap.fill).split())
    assert row["summary"] == "Fill a single paragraph of text, returning a new string."
    assert row["docstring"] == f"{row['summary']} {row['body']}"
    assert row["signature"] == "def fill(text, width=70, **kwargs)"
    assert by_name["textwrap", "TextWrapper"]["signature"] == "class TextWrapper"
    assert "signature" not in by_name["textwrap", ""]
    assert by_name["textwrap", "TextWrapper.wrap"]["signature"] == "def wrap(self, text)"


FILE = '''\
# -*- coding: latin-1 -*-
"""A module. It is small.

And more of it.
"""
import nothing_that_exists
raise SystemExit("this file was run")
try:
    @decorated(1)
    async def far(a, /, b: int=1, *c, d="%s", e=None) -> str:
        """Go, e.g. Far away, i.e. There? No way.
   \t
        Or so."""
        def nested():
            "\\d is no escape"
except ImportError:
    class Empty(Exception, metaclass=type): "   "
    class Full(Exception): "Full \u00e4 [1]."
def silent(): return 1
'''


def test_files_are_parsed_and_not_executed(tmp_path):
    path = tmp_path / "made.py"
    path.write_bytes((FILE % ("x" * 30)).encode("latin-1"))
    parsed = list(rows_of(path, "made"))
    assert parsed == [
        {
            "docstring": "A module. It is small. And more of it.",
            "summary": "A module.",
            "body": "It is small. And more of it.",
            "module": "made",
            "name": "",
        },
        {
            "docstring": "Go, e.g. Far away, i.e. There? No way. Or so.",
            "summary": "Go, e.g. Far away, i.e. There?",
            "body": "No way. Or so.",
            "module": "made",
            "name": "far",
            "signature": "async def far(a, /, b: int=1, *c, d=..., e=None) -> str",
        },
        {
            "docstring": "\\d is no escape",
            "summary": "\\d is no escape",
            "module": "made",
            "name": "far.nested",
            "signature": "def nested()",
        },
        {
            "docstring": "Full ä [1].",
            "summary": "Full ä [1].",
            "module": "made",
            "name": "Full",
            "signature": "class Full(Exception)",
        },
    ]


def test_tests_other_packages_and_invalid_files_are_excluded(tmp_path):
    for name in (
        "a/b.py",
        "a/__init__.py",
        "a/test/c.py",
        "site-packages/d.py",
        "a/test_e.py",
        "_testf.py",
        "broken.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""In {name}."""' + (" (" if name == "broken.py" else ""))
    assert [row["module"] for row in documented_rows(tmp_path)] == ["a", "a.b"]


def test_a_python_without_sources_is_reported(tmp_path, monkeypatch):
    (tmp_path / "os.pyc").touch()
    for library in (tmp_path, tmp_path / "python311.zip"):
        monkeypatch.setattr(sysconfig, "get_path", lambda name, library=library: str(library))
        with pytest.raises(DataError, match=r"builtin:docstrings .* there are none in .*Use another Python"):
            docstrings.generate(("body", "summary"))


def test_rows_depend_only_on_the_seed():
    sizes = {"train": 50, "validation": 20, "test": 20}
    first, same, other = (rows("body", "summary", seed, **sizes) for seed in (3, 3, 4))
    assert first == same
    assert all(first[split] != other[split] for split in first)
    call = f"load_builtin('docstrings', None, {sizes}, 3, ('body', 'summary'))['test'].to_pylist()"
    done = subprocess.run(
        [sys.executable, "-c", f"from kit.data.builtin import load_builtin; print({call})"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8"},
    )
    assert done.stdout.strip() == str(first["test"])


def test_sizes_are_exact_and_do_not_change_other_splits():
    whole = rows("body", "summary")
    part = rows("body", "summary", train=30, test=7)
    assert [len(part[split]) for split in ("train", "test")] == [30, 7]
    assert part["validation"] == whole["validation"]
    assert {row["body"] for row in part["test"]} <= {row["body"] for row in whole["test"]}
    available = len(whole["test"])
    with pytest.raises(
        DataError, match=rf"data\.sizes\.test: {available + 1} rows requested, but .* has {available} for"
    ):
        rows("body", "summary", test=available + 1)
    assert len(rows("body", "summary", test=available)["test"]) == available


def test_columns_are_chosen_by_the_recipe():
    splits = load_splits(TranslationData(path="builtin:docstrings", source="body", target="summary"))
    assert splits.report.splits["train"].dropped.total() == 0
    assert splits.datasets["test"].column_names == ["source", "target", "docstring", "signature", "module", "name"]
    with pytest.raises(DataError, match=r'data\.target: .* has no column "sumary"\. Did you mean "summary"\?'):
        load_splits(TranslationData(path="builtin:docstrings", source="body", target="sumary"))
    with pytest.raises(DataError, match=r"data\.languages: builtin:docstrings has no languages"):
        load_splits(TranslationData(path="builtin:docstrings", source="body", target="summary", languages=["en"]))


@settings(deadline=None)
@given(st.text("aA .!?\n\t", max_size=40))
def test_summary_and_body_together_are_the_text(text):
    summary, body = split_summary(text)
    assert f"{summary} {body}".split() == text.split()
    assert bool(summary) == bool(text.strip())


defaults = st.sampled_from(
    ["1", "None", "(1, 2)", "'a'", "f(x)[0]", "lambda: 0", "'" + "long " * 9 + "'", "[" * 9 + "]" * 9]
)


@given(st.lists(defaults, max_size=3), st.lists(defaults, max_size=3), st.booleans())
def test_any_signature_can_be_written_without_changing_the_tree(positional, named, has_star):
    arguments = [f"a{n}={value}" for n, value in enumerate(positional)] + ["*rest"] * has_star
    arguments += [f"k{n}={value}" for n, value in enumerate(named)] if has_star else []
    code = f"@wrapped\ndef f({', '.join(arguments)}) -> int:\n    return 1"
    (node,) = ast.parse(code).body
    before = ast.dump(node)
    (again,) = ast.parse(f"{signature(node)}: pass").body
    assert ast.dump(node) == before
    assert [argument.arg for argument in again.args.args] == [argument.arg for argument in node.args.args]
    for old, new in zip(
        [*node.args.defaults, *node.args.kw_defaults], [*again.args.defaults, *again.args.kw_defaults], strict=True
    ):
        text = ast.unparse(old)
        assert ast.unparse(new) == (text if len(text) <= docstrings.MAX_DEFAULT_LENGTH else "...")
