"""What the tests of fine-tuning share: rows as files, and recipes of tiny models on them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from kit import load_recipe
from kit.recipe import Recipe

TINY: dict[str, Any] = {
    "type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip


def write_rows(folder: Path, **splits: Sequence[dict[str, Any]]) -> Path:
    """A folder of JSON lines, a file for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return folder


def recipe(folder: Path, task: str, data: dict[str, Any], **sections: dict[str, Any]) -> Recipe:
    """A recipe of a tiny model, as if it had been written by hand."""
    whole = {
        "task": task,
        "model": TINY,
        "tokenizer": {"train": "char", "min_frequency": 1} if "pretrained" not in sections.get("model", {}) else {},
        "data": data,
        **sections,
        "train": {"max_steps": 2, "batch_size": 16, "learning_rate": 3e-3, **sections.get("train", {})},
        "eval": {"steps": 0, **sections.get("eval", {})},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    return load_recipe(folder / "recipe.yaml")
