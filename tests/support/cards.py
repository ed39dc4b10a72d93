"""A recipe with results for the tests of model cards, and the card's Markdown as tokens."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from kit.recipe.base import Recipe
from kit.tasks.registry import create_task
from kit.tasks.translation.recipe import TranslationRecipe


def write_card(run: Path, recipe: Recipe, results: Mapping[str, Any]) -> str:
    """The card that the task of a recipe writes."""
    return create_task(recipe).write_card(run, results)


def recipe(**changes: Any) -> Recipe:
    sections: dict[str, Any] = {
        "task": "translation",
        "model": {"type": "rnn_seq2seq", "cell": "gru"},
        "tokenizer": {},
        "data": {"path": "builtin:dates", "fingerprints": {"train": "f1", "validation": "f2", "test": "f3"}},
        "train": {"max_steps": 10, "batch_size": 4},
        "eval": {"metrics": ["bleu", "exact_match"], "group_by": ["language"], "num_beams": 5, "examples": 8},
        "hub": {"license": "apache-2.0", "language": ["de", "no"], "tags": ["dates"], "datasets": ["owner/dates"]},
    }
    return TranslationRecipe.model_validate(
        {key: value | changes.get(key, {}) if isinstance(value, dict) else value for key, value in sections.items()}
    )


def figures(bleu: float) -> dict[str, Any]:
    groups = {
        "de": {"count": 7, "bleu": 41.5, "exact_match": 0.5},
        "fr|x": {"count": 1, "bleu": 3.0, "exact_match": 0.0},
    }
    return {
        "loss": 0.25,
        "perplexity": math.inf,
        "examples": 8,
        "bleu": bleu,
        "bleu_signature": "nrefs:1|case:mixed|eff:no|tok:13a",
        "exact_match": 0.987654,
        "by": {"language": groups},
    }


RESULTS = {
    "validation": figures(31.25),
    "test": figures(29.123456),
    "train": {"seconds": 61.5, "steps": 10, "tokens_per_second": 23456.7, "stopped": True},
    "data": {
        "examples": {"train": 1200, "validation": 8, "test": 8},
        "left_out": {"max_length": 1034, "min_length": 0},
        "notes": ["train: 2234 rows, 3 left out (<empty>)"],
        "fingerprints": {"train": "other"},
    },
    "versions": {"torch": "2.13.0", "kit": "0.1.0"},
    "parameters": 1234567,
    "hardware": "2 cores of a <b>fast</b> CPU",
}


def parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(text)


def body(card: str) -> list[Token]:
    return parse(card.split("\n---\n", 1)[1])


def run_card(folder: Path) -> list[dict[str, Any]]:
    """Run the Python of the card in a folder, as printed and in that folder; returns the variables of each block."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        blocks = [token.content for token in body(Path("README.md").read_text("utf-8")) if token.info == "python"]
        assert blocks
        return [run_code(code, "README.md") for code in blocks]
    finally:
        os.chdir(before)


def run_code(code: str, name: str) -> dict[str, Any]:
    """Run code as `__main__` within this process; returns its variables."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, name, "exec"), variables)
    return variables


def tables(tokens: list[Token]) -> list[list[list[str]]]:
    """Every table as rows of the text that a reader sees in each cell."""
    parsed: list[list[list[str]]] = []
    for index, token in enumerate(tokens):
        if token.type == "table_open":
            parsed.append([])
        elif token.type == "tr_open":
            parsed[-1].append([])
        elif token.type in ("th_open", "td_open"):
            parsed[-1][-1].append("".join(child.content for child in tokens[index + 1].children or ()))
    return parsed


def inline(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens for child in token.children or ()]
