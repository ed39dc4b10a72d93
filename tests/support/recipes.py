"""Tiny recipes of every task, which train within seconds, and variants of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from kit import load_recipe
from kit.recipe.base import Recipe

BERT: dict[str, Any] = {
    "type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 64,
}  # fmt: skip
GPT: dict[str, Any] = {"type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
RNN: dict[str, Any] = {"cell": "gru", "hidden_size": 16, "embedding_size": 8, "dropout": 0.2}
CHARACTERS: dict[str, Any] = {"train": "char", "min_frequency": 1}
WORDS: dict[str, Any] = {"train": "word", "min_frequency": 1}
PYDOCS: dict[str, Any] = {
    "path": "builtin:pydocs", "block_size": 32, "sizes": {"train": 6, "validation": 2, "test": 2},
}  # fmt: skip
DATE_SIZES = {"train": 200, "validation": 30, "test": 30}

STEPS: dict[str, Any] = {"max_steps": 12, "learning_rate": 1e-2, "logging_steps": 1}
CHECKPOINTS: dict[str, Any] = {**STEPS, "save_steps": 4, "save_total_limit": 9}

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "translation": {
        "model": {"type": "rnn_seq2seq", **RNN, "attention": "additive"},
        "tokenizer": CHARACTERS,
        "data": {
            "path": "builtin:dates", "sizes": {"train": 200, "validation": 20, "test": 20},
            "languages": ["en", "de", "fr"],
        },
        "train": {**STEPS, "tokens_per_batch": 512, "save_steps": 4},
        "eval": {"steps": 6, "metrics": ["exact_match"], "max_new_tokens": 12},
    },
    "causal_lm": {
        "model": GPT,
        "tokenizer": CHARACTERS,
        "data": PYDOCS,
        "train": {**CHECKPOINTS, "tokens_per_batch": 512},
        "eval": {"steps": 6, "examples": 0},
    },
    "masked_lm": {
        "model": {
            "type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 32,
        },
        "tokenizer": {"train": "wordpiece", "vocab_size": 300},
        "data": PYDOCS,
        "train": {**CHECKPOINTS, "tokens_per_batch": 512},
        "eval": {"steps": 6, "examples": 0},
    },
    "instruction_tuning": {
        "model": {**GPT, "n_positions": 128},
        "tokenizer": CHARACTERS,
        "data": {
            "path": "builtin:date_instructions", "prompt": "prompt", "answer": "answer", "template": "{prompt}\n",
            "max_length": 96, "sizes": {"train": 120, "validation": 8, "test": 8},
        },
        "train": {**STEPS, "batch_size": 16},
        "eval": {"steps": 0, "examples": 0, "max_new_tokens": 4},
    },
    "classification": {
        "model": BERT,
        "tokenizer": CHARACTERS,
        "data": {"path": "builtin:date_language", "sizes": DATE_SIZES},
        "train": {**CHECKPOINTS, "batch_size": 32},
        "eval": {"steps": 6, "metrics": ["accuracy"], "examples": 0},
    },
    "tagging": {
        "model": BERT,
        "tokenizer": CHARACTERS,
        "data": {"path": "builtin:date_tags", "sizes": DATE_SIZES},
        "train": {**CHECKPOINTS, "batch_size": 32},
        "eval": {"steps": 6, "examples": 0},
    },
    "question_answering": {
        "model": BERT,
        "tokenizer": CHARACTERS,
        "data": {
            "path": "builtin:date_questions", "languages": ["en", "de"], "max_length": 64, "doc_stride": 16,
            "max_question_length": 24, "sizes": {"train": 120, "validation": 10, "test": 10},
        },
        "train": {**STEPS, "batch_size": 16},
        "eval": {"steps": 0, "examples": 0},
    },
    "captioning": {
        "model": {
            "type": "rnn_captioner", "image_size": 16, "cnn_channels": [4, 8], "cnn_blocks": 1, **RNN,
            "attention": "additive",
        },
        "tokenizer": WORDS,
        "data": {"path": "builtin:shapes", "sizes": {"train": 100, "validation": 8, "test": 8}},
        "train": {**STEPS, "batch_size": 16},
        "eval": {"steps": 0, "examples": 0, "max_new_tokens": 8},
    },
    "dialogue": {
        "model": {"type": "hred", **RNN},
        "tokenizer": WORDS,
        "data": {
            "path": "builtin:dialogues", "target": "response", "sizes": {"train": 60, "validation": 6, "test": 6},
        },
        "train": {**STEPS, "batch_size": 16},
        "eval": {"steps": 0, "examples": 0, "max_new_tokens": 6},
    },
    "forecasting": {
        "model": {"type": "rnn_forecaster", "cell": "gru", "hidden_size": 8, "dropout": 0.2},
        "data": {
            "path": "builtin:pendulum", "history": 10, "horizon": 10, "stride": 10,
            "sizes": {"train": 12, "validation": 2, "test": 2},
        },
        "train": {**STEPS, "batch_size": 4},
        "eval": {"steps": 0, "examples": 0},
    },
}  # fmt: skip
"""The sections of a recipe of each task."""

SCORED = {
    "question_answering": ["eval.metrics=[squad_f1]"],
    "captioning": ["eval.metrics=[exact_match]"],
    "dialogue": ["eval.metrics=[exact_match]"],
    "tagging": ["eval.metrics=[entity_f1, tag_accuracy]"],
    "instruction_tuning": ["eval.metrics=[exact_match]", "model.n_positions=96"],
}
"""Overrides with which runs of these recipes predict, and score their predictions."""
METRICS = {"translation": "exact_match", "causal_lm": "loss", "masked_lm": "loss", "classification": "accuracy"}
NO_DROPOUT = {
    "translation": ["model.dropout=0"],
    "causal_lm": ["model.resid_pdrop=0", "model.embd_pdrop=0", "model.attn_pdrop=0"],
    "masked_lm": ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"],
    "classification": ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"],
}


def write_recipe(folder: Path, task: str, **sections: dict[str, Any]) -> Path:
    """Write a tiny recipe of a task to TASK.yaml in a folder.

    Given sections replace those of `RECIPES`; a pretrained model brings its tokenizer.
    """
    recipe = {"task": task, **RECIPES[task], **sections}
    if "pretrained" in recipe["model"] and "tokenizer" not in sections:
        recipe.pop("tokenizer", None)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task}.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    return path


def make_recipe(
    folder: Path, task: str, data: dict[str, Any] | None = None, overrides: Sequence[str] = (), **sections: Any
) -> Recipe:
    """A tiny recipe of a task, read from a file as a user writes it; see `write_recipe`."""
    sections |= {} if data is None else {"data": data}
    return load_recipe(write_recipe(folder, task, **sections), overrides)
