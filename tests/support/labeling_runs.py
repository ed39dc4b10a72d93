"""Data files and recipes of tiny models for tests of fine-tuning."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kit import train
from kit.recipe.base import Recipe
from kit.runs.finished import FinishedRun
from support.recipes import make_recipe

TINY: dict[str, Any] = {
    "type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip

KINDS = ["classification", "pairs", "several", "numbers", "tagging", "question_answering"]
"""What is learned in runs of this task."""


def write_rows(folder: Path, **splits: Sequence[dict[str, Any]]) -> Path:
    """A folder of JSON lines, a file for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return folder


def recipe(folder: Path, task: str, data: dict[str, Any], **sections: dict[str, Any]) -> Recipe:
    """A recipe that fine-tunes a tiny model for a few steps."""
    train = {"max_steps": 2, "batch_size": 16, "learning_rate": 3e-3, **sections.pop("train", {})}
    evaluation = {"steps": 0, **sections.pop("eval", {})}
    return make_recipe(folder, task, data, **{"model": TINY, "train": train, "eval": evaluation, **sections})


def trained(folder: Path, kind: str) -> FinishedRun:
    """A run of a tiny model that has learned enough to make different predictions."""
    builtin = {"classification": "date_language", "tagging": "date_tags", "question_answering": "date_questions"}
    if kind in builtin:
        sizes = {"train": 120, "validation": 10, "test": 15}
        data = {"path": f"builtin:{builtin[kind]}", "languages": ["en", "de", "ja"], "sizes": sizes}
        data |= {"max_length": 48, "doc_stride": 12, "max_question_length": 12} if kind == "question_answering" else {}
        return train(recipe(folder, kind, data, train={"max_steps": 100}), folder / "run")
    texts = ["aa b", "c dd", "b a", "d", "aa d c"] * 4
    labels = {
        "pairs": lambda text: "xy"["a" in text],
        "several": lambda text: sorted(set(text) - {" "}),
        "numbers": lambda text: float(len(text)),
    }
    rows = [{"text": text, "other": text[::-1], "label": labels[kind](text)} for text in texts]
    data = {"path": str(write_rows(folder / "data", train=rows, validation=rows, test=rows[:7]))}
    data |= {"pairs": {"text_pair": "other"}, "several": {"problem_type": "multi_label_classification"}}.get(
        kind, {"problem_type": "regression"}
    )
    return train(recipe(folder, "classification", data, train={"max_steps": 60}), folder / "run")


def plain(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that are numbers: `pytest.approx` takes no tables."""
    return {name: value for name, value in figures.items() if not isinstance(value, dict | list)}
