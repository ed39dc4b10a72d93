"""Every rendered template has valid metadata, no gaps, no empty sections, code that compiles, and valid Markdown."""

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it.token import Token
from support.cards import RESULTS, body, inline, tables, write_card

from kit.recipe.base import Recipe
from kit.recipe.catalog import model_cards_folder, shipped_recipes
from kit.tasks.registry import TASKS, create_task, load_recipe, task_class

ROWS: dict[str, dict[str, Any]] = {
    "translation": {"source": "ein Haus", "target": "a house", "prediction": "the house"},
    "masked_lm": {"text": "a [MASK] house", "target": ["red"], "prediction": ["blue"]},
    "causal_lm": {"prompt": "The", "prediction": " house"},
    "instruction_tuning": {"prompt": "2 + 2?", "answer": "4", "prediction": "5"},
    "classification": {"text": "good", "pair": "bad", "label": "positive", "prediction": ["negative", "neutral"]},
    "tagging": {"tokens": ["Ada", "ran"], "tags": ["B-PER", "O"], "prediction": ["O", "O"]},
    "question_answering": {"question": "Who?", "context": "Ada.", "answers": ["Ada", "Ada"], "prediction": ""},
    "captioning": {"source": "1.png", "target": ["a dog", "one dog"], "prediction": "a cat"},
    "dialogue": {"turns": ["hello", "hi"], "target": "how are you?", "prediction": "bye"},
    "forecasting": {},
}
"""A prediction of each task, as its runs write it; those of a forecast are not shown."""


@cache
def recipe_of(task: str) -> Recipe:
    recipe = next(recipe for recipe in map(load_recipe, shipped_recipes()) if recipe.task == task)
    return recipe.model_copy(update={"peft": recipe.peft.model_copy(update={"method": None})})


def with_base(recipe: Recipe, pretrained: str, method: str | None = None) -> Recipe:
    """The recipe of a model fine-tuned from `pretrained`, with an adapter if there is a `method`."""
    model = recipe.model.model_copy(update={"type": None, "pretrained": pretrained, "settings": {}})
    peft = recipe.peft.model_copy(update={"method": method})
    return recipe.model_copy(update={"model": model, "peft": peft})


def results_of(recipe: Recipe) -> Mapping[str, Any]:
    metrics = dict.fromkeys(recipe.eval.metrics, 0.5) | {"loss": 1.25, "perplexity": math.inf}
    figures = metrics | {"examples": 3, "by": {"language": {"de": {"count": 2, "loss": 1.0}}}}
    return {**RESULTS, "validation": figures, "test": figures, "trained_parameters": 30864}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "some_run"
    (folder / "predictions").mkdir(parents=True)
    (folder / "plots").mkdir()
    for name in ("loss.png", "attention_1.png"):
        (folder / "plots" / name).write_bytes(b"")
    return folder


def check(card: str) -> list[Token]:
    """Assert what holds for every card; returns its tokens."""
    assert card.startswith("---\n")
    assert isinstance(yaml.safe_load(card.split("\n---\n", 1)[0]), dict)
    assert ModelCard(card).data.to_dict()["library_name"] in ("transformers", "peft")
    tokens = body(card)
    prose = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", card)
    assert not re.search(r"\{\{|\}\}|\{%|%\}|\{#|Undefined|\bNone\b|\bTrue\b(?!`)|\bnan\b", prose), "a placeholder"
    assert "\n\n\n" not in prose.replace("\n\n\n\n", "\n\n"), "two blank lines"  # a removed block leaves three
    assert "```" not in prose, "an open code block"
    hard_break = "  "
    trailing = [line for line in card.splitlines() if line.removesuffix(hard_break) != line.rstrip()]
    assert not trailing, "spaces at the end of a line"
    assert card.endswith("\n")
    assert not card.endswith("\n\n")
    check_sections(tokens)
    check_code(tokens)
    for rows in tables(tokens):
        assert len(rows) > 1, "an empty table"
        assert len({len(row) for row in rows}) == 1
    assert len(re.findall(r"(?m)^\|[-| ]+\|$", prose)) == len(tables(tokens)), "a table that is not parsed as one"
    assert not [token for token in tokens if token.type == "html_block"]
    return tokens


def check_sections(tokens: list[Token]) -> None:
    """No heading without content, each after a blank line, and the sections in their order."""
    levels = [(int(token.tag[1]), index) for index, token in enumerate(tokens) if token.type == "heading_open"]
    for level, index in levels:
        after = tokens[index + 3] if index + 3 < len(tokens) else None
        assert after is not None, "an empty section at the end"
        assert after.type != "heading_open" or int(after.tag[1]) > level, "an empty section"
    names = [tokens[index + 1].content for level, index in levels if level == 2]
    order = ["Results", "Examples", "Usage", "Training data", "Training", "Attention", "Reproducing this run"]
    assert names == [name for name in [*order, "Limitations"] if name in names]
    assert {"Usage", "Training data", "Reproducing this run", "Limitations"} <= set(names)
    assert tokens[-1].type == "bullet_list_close"


def check_code(tokens: list[Token]) -> None:
    blocks = [(token.info, token.content) for token in tokens if token.type == "fence"]
    assert {"python", "yaml"} <= {language for language, _ in blocks} <= {"python", "yaml", "bash"}
    for language, text in blocks:
        assert text.strip()
        if language == "python":
            compile(text, "card", "exec")
        elif language == "yaml":
            assert yaml.safe_load(text)["task"] in TASKS


@pytest.mark.parametrize("repo_id", [None, "owner/name"])
@pytest.mark.parametrize("optional", [True, False], ids=["full", "bare"])
@pytest.mark.parametrize("task", TASKS)
def test_card_of_a_task(run: Path, task: str, optional: bool, repo_id: str | None) -> None:
    recipe = recipe_of(task)
    if optional and ROWS[task]:
        (run / "predictions" / "test.jsonl").write_text(json.dumps(ROWS[task]) + "\n")
    folder, results = (run, results_of(recipe)) if optional else (run.parent / "bare", {})
    card = create_task(recipe).write_card(folder, results, repo_id=repo_id)
    tokens = check(card)
    assert bool([token for token in inline(tokens) if token.type == "image"]) == optional
    assert ("## Examples" in card) == bool(optional and ROWS[task])
    assert ("## Results" in card) == ("### By language (test)" in card) == optional
    for line in re.findall(r"(?m)^model = .*$", card):
        assert line.startswith('model = "owner/name"  #' if repo_id else 'model = "model"  #')
    custom = recipe.model.type in type(recipe).kit_types or bool(create_task(recipe).pipelines)
    assert ("trust_remote_code=True" in card) == custom


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("base", ["owner/base@" + 40 * "a", "owner/base", "/home/jane/runs/base/model"])
@pytest.mark.parametrize("task", [name for name in TASKS if recipe_of(name).peft_task_type is not None])
def test_card_of_an_adapter(run: Path, task: str, base: str, merged: bool) -> None:
    recipe = with_base(recipe_of(task), base, "lora")
    card = create_task(recipe).write_card(run, results_of(recipe), merged=merged)
    blocks = "".join(token.content for token in check(card) if token.info == "python")
    data = ModelCard(card).data
    assert data.library_name == ("transformers" if merged else "peft")
    assert data.base_model == ("owner/base" if base.startswith("owner") else None)
    assert "30,864 parameters (2.50%) were trained with LoRA; the rest are frozen." in card
    assert "jane" not in card
    assert ("PeftModel.from_pretrained(base, model)" in blocks) is not merged
    if not merged:
        assert f"{recipe.auto_class}.from_pretrained(" in blocks
        assert "adapter_config.json" in blocks
        assert ('"owner/base",' in blocks) == base.startswith("owner")
        assert (f'revision="{40 * "a"}"' in blocks) == ("@" in base)
        assert ("PeftConfig.from_pretrained(model)" in blocks) == base.startswith("/")
        assert "adapted(" in blocks or "adapted.generate(" in blocks


@pytest.mark.parametrize("task", TASKS)
def test_card_of_a_fine_tuned_model(run: Path, task: str) -> None:
    recipe = with_base(recipe_of(task), "/home/jane/runs/base/model")
    card = write_card(run, recipe, results_of(recipe))
    check(card)
    assert "jane" not in card
    assert "fine-tuned from base with kit" in card
    assert "30,864 parameters (2.50%) were trained; the rest are frozen." in card


def test_every_template_belongs_to_a_task() -> None:
    templates = {path.stem for path in model_cards_folder().glob("*.md")}
    assert templates == {"base"} | {task_class(name).card_template for name in TASKS}


@pytest.mark.parametrize("path", sorted(model_cards_folder().glob("*.md")), ids=lambda path: path.stem)
def test_templates_extend_the_base(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith('{% extends "base.md" %}') == (path.stem != "base")
