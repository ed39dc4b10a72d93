"""Time and memory of a step of GPT's pretraining: kit's chunked loss against transformers' class, in float32.

    python benchmarks/clm_step.py [--rounds 5]

4 layers of 256, vocabulary of 50,000, 16 blocks of 256 tokens: forward, backward, optimizer. Both sides start from the
same weights and read the same blocks.
"""

import numpy as np
import torch
from steps import Side, compare
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from kit.data.batching.packing import CausalBlocks
from kit.tasks.causal_lm.examples import TextBlocks
from kit.training.layer_swaps import swap_layers
from kit.training.lm_objectives import CausalLMObjective

VOCABULARY, BLOCKS, LENGTH = 50_000, 16, 256


def make_side(ours: bool) -> Side:
    """kit's step, or that of the stock class."""
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=256, n_layer=4, n_head=4, n_positions=LENGTH, bos_token_id=0, eos_token_id=0
        )
    ).train()
    random = np.random.default_rng(0)
    stream = random.integers(0, VOCABULARY, 64 * BLOCKS * LENGTH + 1)
    examples = TextBlocks(CausalBlocks(stream, 0, LENGTH), np.zeros((1, 3), dtype=np.int64), separate=False)

    def batch() -> dict[str, torch.Tensor]:
        return examples.batch(random.choice(len(examples), BLOCKS))

    if not ours:

        def stock() -> torch.Tensor:
            blocks = batch()
            return model(blocks["input_ids"], labels=blocks["labels"], shift_labels=blocks["labels"]).loss

        return Side(model, stock)
    swap_layers(model, torch.device("cpu"), mixed_precision=False)  # as `kit train` does
    objective = CausalLMObjective(model)

    def loss() -> torch.Tensor:
        blocks = batch()
        return objective(blocks, objective.normalizers(blocks))

    return Side(model, loss)


def main() -> None:
    compare(make_side, __doc__)


if __name__ == "__main__":
    main()
