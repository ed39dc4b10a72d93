"""Time and memory of a pretraining step: kit's objectives against the stock classes, same weights, same batches.

    python benchmarks/language_model_step.py masked [--rounds 5]     BERT: sparse output layer against the stock class
    python benchmarks/language_model_step.py causal [--rounds 3]     GPT-2: chunked loss against the stock class

Times are of forward, backward and optimizer step, both sides in turn in one process, so that only their ratio means
something. The peak memory of each side is that of a process of its own.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining, GPT2Config, GPT2LMHeadModel, PreTrainedModel, set_seed

from kit.data.masking import Masking
from kit.machine import keep_freed_memory
from kit.training.estimate import PeakMemory
from kit.training.language_modeling import CausalLMObjective, MaskedLMObjective

Batch = dict[str, torch.Tensor]
Loss = Callable[[PreTrainedModel, Batch], torch.Tensor]


def bert() -> PreTrainedModel:
    return BertForPreTraining(
        BertConfig(
            vocab_size=16_000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
        )
    )


def bert_batch(random: np.random.Generator) -> Batch:
    """32 pairs of 128 tokens, 15 % of them masked."""
    ids = random.integers(5, 16_000, (32, 128))
    masked, labels = Masking(4, np.arange(5, 16_000))(ids, ids >= 5, random)
    return {
        "input_ids": torch.from_numpy(masked),
        "attention_mask": torch.ones(32, 128, dtype=torch.long),
        "token_type_ids": (torch.arange(128) >= 64).long().expand(32, 128).contiguous(),
        "labels": torch.from_numpy(labels),
        "next_sentence_label": torch.from_numpy(random.integers(0, 2, 32)),
    }


def gpt() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=50_000, n_embd=256, n_layer=4, n_head=4, n_positions=256))


def gpt_batch(random: np.random.Generator) -> Batch:
    """16 blocks of 256 tokens."""
    ids = torch.from_numpy(random.integers(0, 50_000, (16, 257)))
    return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def ours_masked(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    objective = MaskedLMObjective(model)
    return objective(batch, objective.counts(batch))


def ours_causal(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    objective = CausalLMObjective(model)
    return objective(batch, objective.counts(batch))


def stock_masked(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    return model(**batch).loss


def stock_causal(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    return model(batch["input_ids"], labels=batch["labels"], shift_labels=batch["labels"]).loss


KINDS: dict[str, tuple[Callable[[], PreTrainedModel], Callable[[np.random.Generator], Batch], Loss, Loss]] = {
    "masked": (bert, bert_batch, ours_masked, stock_masked),
    "causal": (gpt, gpt_batch, ours_causal, stock_causal),
}


def step(model: PreTrainedModel, optimizer: torch.optim.Optimizer, loss: Loss, batch: Batch) -> float:
    """Seconds of a whole step."""
    began = time.perf_counter()
    loss(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - began


def peak_of(kind: str, side: int) -> float:
    """Peak memory in MB of a process that does a few steps of one side."""
    make_model, make_batch, *losses = KINDS[kind]
    set_seed(0)
    model, random = make_model(), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with PeakMemory(torch.device("cpu")) as peak:  # the system's own figure begins with the peak of the parent
        for _ in range(3):
            step(model, optimizer, losses[side], make_batch(random))
    return peak.growth / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps of each side in a round")
    arguments = parser.parse_args()
    keep_freed_memory()
    make_model, make_batch, *losses = KINDS[arguments.kind]
    set_seed(0)
    model, random = make_model().train(), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for loss in losses:  # warm up
        step(model, optimizer, loss, make_batch(random))
    ratios = []
    for number in range(arguments.rounds):
        batches = [make_batch(random) for _ in range(arguments.steps)]
        ours, stock = (statistics.median(step(model, optimizer, loss, batch) for batch in batches) for loss in losses)
        ratios.append(stock / ours)
        print(f"round {number + 1}: kit {ours:.3f} s, stock {stock:.3f} s a step: {stock / ours:.2f} times as fast")
    print(f"kit is {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        ours_peak, stock_peak = pool.starmap(peak_of, [(arguments.kind, 0), (arguments.kind, 1)], chunksize=1)
    print(
        f"peak memory of the steps: kit {ours_peak:,.0f} MB, stock {stock_peak:,.0f} MB: "
        f"{stock_peak / ours_peak:.2f} times less"
    )


if __name__ == "__main__":
    main()
