"""A checkout whose recipes, scripts and benchmarks are those of this one, only small: they train for a moment.

Nothing that a user types has to change, neither commands nor Python, to run here in seconds what takes hours.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("kit", "recipes", "model_cards", "benchmarks")
WIDTH = 16
SMALL: dict[str, dict[str, str]] = {
    "model": {
        "hidden_size": str(WIDTH),
        "embedding_size": "8",
        "intermediate_size": "32",
        "n_embd": "24",
        "cnn_channels": "[4, 4, 8, 8]",
        "image_size": "32",
    },
    "tokenizer": {"vocab_size": "600", "train_examples": "1000"},
    "data": {"validation_size": "16", "test_size": "16", "block_size": "64", "pair_passes": "1", "buffer_size": "64"},
    "train": {
        "max_steps": "6",
        "num_train_epochs": "1",
        "batch_size": "8",
        "tokens_per_batch": "512",
        "micro_batches": "2",
        "warmup_steps": "2",
        "save_steps": "1",
        "sampling_start": "1",
        "sampling_steps": "3",
    },
    "eval": {"steps": "3", "max_new_tokens": "8", "average": "5", "tokens_per_batch": "1024"},
}
"""The values that keys of a recipe get, by section."""
DOCUMENTS = {"train": 8, "validation": 4, "test": 32}  # as many test documents as `kit compare` needs
EXAMPLES = {"train": 64, "validation": 16, "test": 16}
STANDARD_SIZES = {
    "type: bert": "{hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32}",
    "type: gpt2": "{n_embd: 16, n_layer: 1, n_head: 2}",
}
"""Sizes for recipes that leave them at the defaults of the class."""
CONSTANTS = {
    "benchmarks/mlm_step.py": {"VOCABULARY, PAIRS, LENGTH = 16_000, 32, 128": "VOCABULARY, PAIRS, LENGTH = 200, 4, 16"},
    "benchmarks/clm_step.py": {"BLOCKS, LENGTH = 50_000, 16, 256": "BLOCKS, LENGTH = 500, 4, 16"},
    "benchmarks/train_overhead.py": {"hidden_size: 512": "hidden_size: 16"},
}
"""Sizes in the benchmarks, which no argument changes."""


def small_checkout(folder: Path) -> Path:
    """Copy what the documentation uses of this checkout into a folder, and make it small."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("finished"))
    for path in sorted((folder / "recipes").glob("*/*.yaml")):
        if path.parent.name != "accelerate":
            path.write_text(small_recipe(path.read_text(encoding="utf-8")), encoding="utf-8")
    for name, constants in CONSTANTS.items():
        text = (folder / name).read_text(encoding="utf-8")
        for value, small in constants.items():
            assert value in text, (name, value)
            text = text.replace(value, small)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def small_recipe(text: str) -> str:
    """A recipe with small values for its keys; comments and lines stay."""
    section, lines = "", []
    is_built_in, with_sizes = "builtin:" in text, re.search(r"^  sizes:", text, re.MULTILINE)
    for line in text.splitlines():
        if head := re.match(r"(\w+):", line):
            section = head[1]
        if item := re.match(r"  (\w+): +(\[[^]]*\]|\{[^}]*\}|[^ #]+)", line):
            key, value = item.groups()
            if key == "sizes":
                line = f"  sizes: {sizes(text)}"
            elif key == "cnn_channels":
                line = f"  {key}: [{', '.join(['4'] * (value.count(',') + 1))}]"
            elif key in SMALL.get(section, {}) and value != "null":
                line = line.replace(f"{key}: {value}", f"{key}: {SMALL[section][key]}", 1)
        lines.append(line)
        plain = line.partition("#")[0].strip()
        if plain in STANDARD_SIZES and not re.search(r"^  (num_hidden_layers|n_layer):", text, re.MULTILINE):
            lines += [f"  {part}" for part in re.split(r", ", STANDARD_SIZES[plain].strip("{}"))]
        if section == "data" and plain.startswith("path: builtin:") and is_built_in and not with_sizes:
            lines.append(f"  sizes: {sizes(text)}")
    return "\n".join(lines) + "\n"


def sizes(text: str) -> str:
    chosen = DOCUMENTS if "builtin:pydocs" in text else EXAMPLES
    return "{" + ", ".join(f"{split}: {size}" for split, size in chosen.items()) + "}"
