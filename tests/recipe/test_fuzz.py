"""Fuzzed recipes and data files: each is accepted, or rejected with a KitError.

Each example runs what precedes the first training step, in one process: recipe, reader, tokenizer, batches, model.
"""

import copy
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.data_files import CASES, NASTY, VALUES, complete, edited

from kit import KitError, load_recipe
from kit.recipe.base import sections_of
from kit.recipe.document import write_yaml
from kit.runs.prepare import prepare
from kit.tasks.registry import recipe_classes

SECONDS = 300
edits = st.tuples(
    st.sampled_from(["flip", "insert", "remove", "repeat", "cut"]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(NASTY),
)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, bytes]]:
    """A recipe and its files, with a few mutations of either."""
    name = draw(st.sampled_from(sorted(CASES)))
    recipe, files = copy.deepcopy(CASES[name])
    recipe = complete(recipe)
    sections = sections_of(recipe_classes()[recipe["task"]])
    keys = [f"{section}.{key}" for section, kind in sections.items() for key in kind.model_fields]
    keys += [f"model.{key}" for key in recipe["model"]]
    keys = [key for key in keys if key not in ("model.pretrained", "tokenizer.pretrained", "train.report_to")]
    for key, value in draw(st.dictionaries(st.sampled_from(keys), st.sampled_from(VALUES), max_size=2)).items():
        section, _, field = key.partition(".")
        recipe.setdefault(section, {})[field] = value
    for file, (how, where, much, nasty) in draw(st.dictionaries(st.sampled_from(sorted(files)), edits)).items():
        files[file] = edited(files[file], how, where, much, nasty)
    for file in draw(st.lists(st.sampled_from(sorted(files)), max_size=1)) if draw(st.integers(0, 9)) == 0 else []:
        del files[file]
    return name, recipe, files


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(folder: Path, recipe: dict[str, Any], files: dict[str, bytes]) -> str | None:
    """The message of the KitError, or None if all was accepted. Any other exception fails the test."""
    shutil.rmtree(folder / "data", ignore_errors=True)
    (folder / "data").mkdir()
    for name, content in files.items():
        (folder / "data" / name).write_bytes(content)
    (folder / "recipe.yaml").write_text(write_yaml(recipe), encoding="utf-8")
    with no_longer_than(SECONDS):
        try:
            prepared = prepare(load_recipe(folder / "recipe.yaml"))
            prepared.plan.step(0)
            prepared.plan.close()
        except KitError as error:
            message = str(error)
        else:
            return None
    message.encode("utf-8")  # it can be printed
    assert message.strip()
    return message


def test_unchanged_inputs_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for recipe, files in CASES.values():
        assert outcome(tmp_path, complete(recipe), files) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", -1), ("hidden_size", 0), ("num_attention_heads", 0), ("num_attention_heads", 3),
        ("max_position_embeddings", -1), ("max_position_embeddings", 0), ("intermediate_size", -1),
    ],
)  # fmt: skip
def test_impossible_model_sizes_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: int
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, files = copy.deepcopy(CASES["columns"])
    recipe["model"][key] = value
    assert str(outcome(tmp_path, complete(recipe), files)).startswith("model")


quietly = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=300, deadline=None, suppress_health_check=quietly)
@given(given_input=inputs())
def test_fuzzed_inputs_are_accepted_or_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_input: tuple[str, dict[str, Any], dict[str, bytes]]
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome(tmp_path, *given_input[1:])
