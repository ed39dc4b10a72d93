"""A corpus of four shards that a recipe streams."""

import json
from pathlib import Path

from support.recipes import write_recipe

SHARDS = [70, 0, 45, 110]


def pair(number: int) -> dict[str, str]:
    """A text of up to fourteen letters and its reversal; all pairs are distinct."""
    text = f"{number:03d}" + "abcdefghijk"[: number % 12]
    return {"de": text, "en": text[::-1]}


def write_corpus(folder: Path, splits: tuple[str, ...] = ("validation", "test")) -> Path:
    corpus = folder / "corpus"
    corpus.mkdir()
    first = 0
    for shard, size in enumerate(SHARDS):
        lines = "".join(json.dumps(pair(number)) + "\n" for number in range(first, first + size))
        (corpus / f"train-{shard:05d}-of-{len(SHARDS):05d}.jsonl").write_text(lines or "\n", encoding="utf-8")
        first += size
    for split in splits:
        (corpus / f"{split}.jsonl").write_text("".join(json.dumps(pair(n)) + "\n" for n in range(500, 510)))
    streamed = {"source": "de", "target": "en", "streaming": True, "buffer_size": 60, "max_length": 12}
    return write_recipe(
        folder,
        "translation",
        tokenizer={"train": "char", "min_frequency": 1, "train_examples": 120},
        data={"path": "corpus", **streamed},
        train={"max_steps": 70, "tokens_per_batch": 128, "learning_rate": 1e-2, "logging_steps": 1, "save_steps": 7},
        eval={"steps": 35, "metrics": [], "max_new_tokens": 8, "examples": 0},
    )
