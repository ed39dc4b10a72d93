"""Memory that `kit generate` holds above the loaded model while a long file streams through.

    python benchmarks/generate_memory.py [--lines 200000] [--limit 300]

makes a file of short lines and a tiny model with random weights, which writes to its limit of 16 tokens, and translates
the file greedily with the real command. The reference is the same command on a file of one line: the difference of the
two peaks is what the file costs. Exits with 1 if that is more than `--limit` megabytes.
"""

import argparse
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECIPE: dict[str, Any] = {
    "task": "translation",
    "model": {
        "type": "transformer_seq2seq", "hidden_size": 32, "encoder_layers": 1, "decoder_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 64,
    },
    "tokenizer": {"train": "bpe", "vocab_size": 1000},
    "data": {"path": "builtin:dates", "sizes": {"train": 2000, "validation": 10, "test": 10}},
    "train": {"max_steps": 1, "batch_size": 8},
    "eval": {"max_new_tokens": 16},
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One run of the command."""

    peak_mb: float
    seconds: float


def make_model(folder: Path) -> None:
    from kit.pretrained.export import export_model
    from kit.runs.prepare import prepare
    from kit.tasks.families.seq2seq.evaluation import search_settings
    from kit.tasks.translation.recipe import TranslationRecipe

    prepared = prepare(TranslationRecipe.model_validate(RECIPE))
    generation = search_settings(prepared.recipe.eval, 1).seq2seq_config(prepared.model)
    export_model(folder, prepared.model, prepared.tokenizers, generation, prepared.task.pipelines)


def make_lines(path: Path, count: int) -> None:
    drawn = random.Random(0)
    words = ["Januar", "Februar", "März", "Mai", "lunedì", "martes", "samedi", "2019", "1984", "2001", "12.", "3."]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            print(*drawn.choices(words, k=drawn.randint(1, 8)), file=file)


def measure(model: Path, source: Path, output: Path) -> Measured:
    """Translate a file in a process of its own; its peak memory is what the system counted."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "kit", "generate", model, source, "--output", output, "--num-beams", "1"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"kit generate failed with exit code {process.returncode}")
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return Measured(usage.ru_maxrss / scale, time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--limit", type=float, default=300, help="megabytes above the reference")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # elsewhere, because the system counts what this process holds as held by its children, too
        maker = multiprocessing.get_context("spawn").Process(target=make_model, args=(folder / "model",))
        maker.start()
        maker.join()
        if maker.exitcode:
            sys.exit("the model could not be made")
        make_lines(folder / "one.txt", 1)
        make_lines(folder / "many.txt", arguments.lines)
        reference = measure(folder / "model", folder / "one.txt", folder / "one.out")
        many = measure(folder / "model", folder / "many.txt", folder / "many.out")
        with (folder / "many.out").open("rb") as file:
            written = sum(1 for _ in file)
    if written != arguments.lines:
        sys.exit(f"{written:,} lines were written for {arguments.lines:,}")
    above = many.peak_mb - reference.peak_mb
    print(f"one line: peak {reference.peak_mb:,.0f} MB, {reference.seconds:,.0f} s")
    print(f"{arguments.lines:,} lines: peak {many.peak_mb:,.0f} MB, {many.seconds:,.0f} s")
    print(f"above the model: {above:,.0f} MB (limit {arguments.limit:,.0f})")
    sys.exit(above > arguments.limit)


if __name__ == "__main__":
    main()
