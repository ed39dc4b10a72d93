"""Training speed of kit's loop, relative to a bare PyTorch loop and to batches that are not bucketed.

    python benchmarks/train_overhead.py DATA [--source de --target en] [--steps 60] [--rounds 4]

DATA is a folder of parallel text (train.de.gz, train.en.gz, …). The same model and the same batches are trained by
kit's loop, by the shortest loop that does the same arithmetic, and by that loop over random batches of the same token
budget, in turn, several rounds in one process: only the ratios mean something, because machines drift.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from kit.data.batching.ragged import IGNORE_INDEX, TokenPairs
from kit.recipe.base import Recipe
from kit.runs.folder import RunFolder
from kit.runs.prepare import Prepared, prepare
from kit.runs.train import build_loop
from kit.system.console import Reporter
from kit.system.machine import keep_freed_memory
from kit.tasks.registry import load_recipe

RECIPE = """\
task: translation
model: {type: rnn_seq2seq, cell: lstm, hidden_size: 512, embedding_size: 256, encoder_hidden_size: 256,
        attention: additive, context_to: [input, readout], dropout: 0.2}
tokenizer: {train: bpe, vocab_size: 8000}
data: {path: DATA, validation: val, test: test_2016_flickr, source: SOURCE, target: TARGET, max_length: 64}
train: {max_steps: 1000000, tokens_per_batch: 2048, learning_rate: 1e-3, logging_steps: 50, save_steps: 1000000}
eval: {steps: 0}
"""


def recipe_for(data: str, source: str, target: str, folder: Path) -> Recipe:
    path = folder / "benchmark.yaml"
    path.write_text(RECIPE.replace("DATA", data).replace("SOURCE", source).replace("TARGET", target), encoding="utf-8")
    return load_recipe(path)


def bare_steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[dict[str, torch.Tensor]]) -> int:
    """Forward, loss, backward, clip, step: nothing else. Returns the number of target tokens."""
    tokens = 0
    model.train()
    for batch in batches:
        labels = batch["labels"]
        logits = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),  # type: ignore[operator]
            use_cache=False,
        ).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += int((labels != IGNORE_INDEX).sum())
    return tokens


def random_batches(pairs: TokenPairs, budget: int, count: int, seed: int, pad: int) -> list[dict[str, torch.Tensor]]:
    """Batches in random order, filled up to the same budget of padded tokens of the longer side."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    longer = np.maximum(pairs.source.lengths, pairs.target.lengths)
    batches, start = [], 0
    while len(batches) < count:
        end, longest = start, 0
        while end < len(order):
            longest = max(longest, int(longer[order[end]]))
            if longest * (end + 1 - start) > budget:
                break
            end += 1
        batches.append(pairs.batch(order[start:end], pad))
        start = end
    return batches


def measure(prepared: Prepared, folder: Path, steps: int, rounds: int) -> dict[str, list[float]]:
    """Target tokens per second of each contender in each round."""
    loop = build_loop(prepared, RunFolder(folder), Accelerator(), Reporter(quiet=True))
    model, pairs = prepared.model, prepared.encoded["train"].examples
    pad = prepared.tokenizers.source.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def kit_loop(first: int) -> int:
        loop.progress.step, before = first, loop.progress.target_tokens
        loop.total_steps = first + steps
        # training only: neither evaluated nor saved at the end
        loop.progress.evaluated_step = loop.progress.best_step = loop._saved_step = loop.total_steps
        loop.run()
        return loop.progress.target_tokens - before

    def bare_loop(first: int) -> int:
        return bare_steps(
            model, optimizer, [pairs.batch(prepared.plan.step(i)[0], pad) for i in range(first, first + steps)]
        )

    def unbucketed(first: int) -> int:
        size = prepared.recipe.train.tokens_per_batch or 0
        return bare_steps(model, optimizer, random_batches(pairs, size, steps, first, pad))

    contenders: dict[str, Callable[[int], int]] = {
        "kit": kit_loop,
        "bare loop, bucketed": bare_loop,
        "bare loop, random batches": unbucketed,
    }
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + 1):
        names = list(contenders)
        for name in names[round_number % len(names) :] + names[: round_number % len(names)]:
            model.load_state_dict(state)
            began = time.perf_counter()
            tokens = contenders[name](round_number * steps)
            if round_number > 0:  # the first round warms up
                speeds[name].append(tokens / (time.perf_counter() - began))
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder of parallel text")
    parser.add_argument("--source", default="de")
    parser.add_argument("--target", default="en")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    keep_freed_memory()  # as `kit train` does; the bare loops get the benefit too
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared = prepare(recipe_for(options.data, options.source, options.target, folder))
        print(f"{prepared.model.num_parameters():,} parameters, padding {prepared.plan.padding().share:.1%}")
        speeds = measure(prepared, folder, options.steps, options.rounds)
    kit_speed = speeds["kit"]
    for contender, values in speeds.items():
        ratios = [ours / other for ours, other in zip(kit_speed, values, strict=True)]
        print(
            f"{contender:28s} {statistics.median(values):8,.0f} target tokens/s   "
            f"kit / this: {statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
