"""Time and memory of a step of BERT's pretraining: kit against transformers' class and collator, on 2 cores in float32.

    python benchmarks/mlm_step.py [--rounds 5]

4 layers of 256, vocabulary of 16,000, 32 pairs of 128 tokens, 15 % of them masked. A step is all that a training does
from encoded examples on: collate and mask, forward, backward, optimizer. Both sides start from the same weights.
"""

import numpy as np
import torch
from steps import Side, compare
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    BertConfig,
    BertForPreTraining,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    set_seed,
)

from kit.data.batching.ragged import RaggedTokens
from kit.tasks.masked_lm.examples import MaskedExamples
from kit.tasks.masked_lm.masking import Masking
from kit.training.layer_swaps import swap_layers
from kit.training.lm_objectives import MaskedLMObjective

VOCABULARY, PAIRS, LENGTH = 16_000, 32, 128
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, CLS, SEP, MASK = 0, 2, 3, 4


def texts(random: np.random.Generator) -> np.ndarray:
    """Many pairs: [CLS] A [SEP] B [SEP]."""
    ids = random.integers(len(SPECIAL), VOCABULARY, (64 * PAIRS, LENGTH))
    ids[:, 0], ids[:, LENGTH // 2], ids[:, -1] = CLS, SEP, SEP
    return ids


def make_side(ours: bool) -> Side:
    """kit's step, or that of the stock class with the stock collator."""
    set_seed(0)
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    model = BertForPreTraining(BertConfig(vocab_size=VOCABULARY, **sizes)).train()
    random = np.random.default_rng(0)
    ids = texts(random)
    follows = random.integers(0, 2, len(ids))
    return kit_side(model, ids, follows, random) if ours else stock_side(model, ids, follows, random)


def kit_side(model: BertForPreTraining, ids: np.ndarray, follows: np.ndarray, random: np.random.Generator) -> Side:
    swap_layers(model, torch.device("cpu"), mixed_precision=False)  # as `kit train` does
    objective = MaskedLMObjective(model)
    examples = MaskedExamples(
        RaggedTokens((ids << 1) + 1),
        first_lengths=np.full(len(ids), LENGTH // 2 + 1),
        pair_labels=follows,
        masking=Masking(MASK, np.arange(len(SPECIAL), VOCABULARY)),
        special=np.arange(len(SPECIAL)),
        pad=PAD,
        whole_word_mask=False,
    )

    def loss() -> torch.Tensor:
        batch = examples.batch(random.choice(len(ids), PAIRS), random)
        return objective(batch, objective.normalizers(batch))

    return Side(model, loss)


def stock_side(model: BertForPreTraining, ids: np.ndarray, follows: np.ndarray, random: np.random.Generator) -> Side:
    words = SPECIAL + [f"word{number}" for number in range(VOCABULARY - len(SPECIAL))]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, "[UNK]")),
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    segments = (np.arange(LENGTH) > LENGTH // 2).astype(int).tolist()
    features = [
        {"input_ids": row, "token_type_ids": segments, "next_sentence_label": label}
        for row, label in zip(ids.tolist(), follows.tolist(), strict=True)
    ]

    def loss() -> torch.Tensor:
        return model(**collate([features[i] for i in random.choice(len(ids), PAIRS)])).loss

    return Side(model, loss)


def main() -> None:
    compare(make_side, __doc__)


if __name__ == "__main__":
    main()
