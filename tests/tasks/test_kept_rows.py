"""Rows that a filter drops from train are not examples: overlaps and statistics must not count them."""

import io
from typing import Any

import pytest
from datasets import Dataset
from PIL import Image
from support.recipes import BERT

from kit.tasks.registry import create_task, load_recipe

CAPTIONER = {
    "type": "rnn_captioner", "cell": "gru", "image_size": 8, "cnn_channels": [2], "cnn_blocks": 1, "embedding_size": 4,
    "hidden_size": 4,
}  # fmt: skip
SHORT = {"max_length": 10, "truncation": "do_not_truncate"}


def image(gray: int) -> dict[str, Any]:
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (gray, gray, gray)).save(content, "PNG")
    return {"bytes": content.getvalue(), "path": f"{gray}.png"}


def answer(text: str) -> dict[str, list[Any]]:
    return {"text": [text], "answer_start": [0]}


# of each task: the model, keys of data, and rows of which the first is dropped
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = {
    "classification": (
        BERT, SHORT, [{"text": "a " * 20, "label": "x"}, {"text": "b", "label": "y"}, {"text": "c", "label": "x"}],
    ),
    "tagging": (
        BERT, {**SHORT, "scheme": "none"},
        [{"tokens": ["a"] * 20, "tags": ["X"] * 20}, {"tokens": ["b", "c"], "tags": ["X", "Y"]}],
    ),
    "question_answering": (
        BERT, {"id": None},
        [
            {"question": "who", "context": "it is her", "answers": answer("him")},
            {"question": "who", "context": "him", "answers": answer("him")},
        ],
    ),
    "instruction_tuning": (
        {"type": "rnn_lm", "cell": "gru", "embedding_size": 4, "hidden_size": 4}, {"max_length": 10},
        [{"prompt": "a" * 20, "answer": "b"}, {"prompt": "c", "answer": "d"}],
    ),
    "captioning": (
        CAPTIONER, {"max_length": 10},
        [{"image": image(0), "caption": "a" * 20}, {"image": image(9), "caption": "b"}],
    ),
    "forecasting": (
        {"type": "rnn_forecaster", "cell": "gru", "hidden_size": 4}, {"history": 2, "horizon": 2},
        [{"values": [1.0, 2.0]}, {"values": [1.0, 2.0, 3.0, 4.0, 5.0]}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_dropped_rows_are_no_examples(name: str) -> None:
    model, data, rows = CASES[name]
    keys: dict[str, Any] = {"task": name, "model": model, "data": data, "train": {"max_steps": 1, "batch_size": 2}}
    if name != "forecasting":
        keys["tokenizer"] = {"train": "char", "min_frequency": 1}
    train, validation = Dataset.from_list(rows), Dataset.from_list(rows[1:])
    task = create_task(load_recipe(keys, rows={"train": train, "validation": validation}))
    splits = task.load_training_splits()
    state = task.fit(splits, task.build_tokenizers(splits))
    encoded = task.encode(splits.datasets["train"], state, "train")
    assert sum(encoded.dropped.values()) == 1
    assert encoded.kept is not None
    assert encoded.kept.tolist() == list(range(1, len(rows)))
    assert task.encode(splits.datasets["validation"], state, "validation").kept is None
