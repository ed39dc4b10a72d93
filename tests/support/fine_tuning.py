"""Recipes that fine-tune tiny encoder-decoders on nine sentence pairs."""

from pathlib import Path
from typing import Any

from kit import load_recipe
from kit.runs.prepare import Prepared, prepare
from support.pretrained_models import Family
from support.recipes import write_recipe

PAIRS = [
    ("der hund", "a dog"), ("die katze", "the cat"), ("das haus", "my home"), ("ein baum", "palm"),
    ("kein geld", "no cash"), ("guten tag", "hi"), ("bis bald", "so long"), ("ja", "yes"), ("ach so", "i know"),
]  # fmt: skip
DIRECTIONS = ["de-en", "en-fr", "fr-de"]


def write_text(folder: Path, pairs: list[tuple[str, str]], split: str = "train") -> None:
    """Parallel text in three languages, of which the third repeats the first backwards."""
    for suffix, lines in (
        ("de", [source for source, _ in pairs]),
        ("en", [target for _, target in pairs]),
        ("fr", [source[::-1] for source, _ in pairs]),
    ):
        (folder / f"{split}.{suffix}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_pairs(folder: Path) -> Path:
    """Write text that a model can memorize; validation has the training pairs."""
    for split in ("train", "val"):
        write_text(folder, PAIRS, split)
    return folder


def recipe_file(folder: Path, data: Path, *parts: dict[str, Any]) -> Path:
    """A recipe that memorizes the pairs; `parts` add keys to its sections."""
    recipe: dict[str, Any] = {
        "model": {},
        "tokenizer": {},
        "data": {"path": str(data), "source": "de", "target": "en"},
        "train": {"max_steps": 60, "batch_size": 9, "learning_rate": 1e-2, "lr_scheduler_type": "constant"},
        "eval": {"steps": 0, "metrics": ["exact_match"], "max_new_tokens": 16, "num_beams": 2, "examples": 0},
    }
    for part in parts:
        for section, values in part.items():
            recipe[section].update(values)
    if "directions" in recipe["data"]:
        recipe["data"].pop("source")
        recipe["data"].pop("target")
    return write_recipe(folder, "translation", **recipe)


def fine_tuning(folder: Path, data: Path, family: Family, *parts: dict[str, Any]) -> Path:
    """A recipe for a model of this family, which is made here."""
    pretrained = {"model": {"pretrained": str(family.save(folder / "pretrained"))}}
    return recipe_file(folder, data, pretrained, *parts)


def multilingual_model(folder: Path, data: Path, *parts: dict[str, Any]) -> Prepared:
    """A new model for several directions."""
    model = {"type": "transformer_seq2seq", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    keys = {"model": model, "tokenizer": {"min_frequency": 1}, "data": {"directions": DIRECTIONS}}
    return prepare(load_recipe(recipe_file(folder, data, keys, *parts)))
