"""Samples of a masked language model: what it predicts at the masks of a few texts."""

from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from kit.data.batching.ragged import IGNORE_INDEX
from kit.tasks.masked_lm.examples import MaskedExamples
from kit.training.lm_objectives import MaskedLMObjective


@torch.inference_mode()
def sample_predictions(
    objective: MaskedLMObjective,
    examples: MaskedExamples,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    device: torch.device,
) -> list[dict[str, Any]]:
    """`count` masked texts of a split, evenly spaced, with the tokens that the model predicts."""
    rows = []
    for index in np.linspace(0, len(examples) - 1, min(count, len(examples))).astype(int):
        batch = examples.evaluation_batch(np.array([index]))
        logits, pair_logits = objective.logits({name: tensor.to(device) for name, tensor in batch.items()})
        labels = batch["labels"][batch["labels"] != IGNORE_INDEX]
        row = {
            "text": tokenizer.decode(batch["input_ids"][0]),
            "target": tokenizer.convert_ids_to_tokens(labels.tolist()),
            "prediction": tokenizer.convert_ids_to_tokens(logits.argmax(-1).tolist()),
        }
        if pair_logits is not None:
            row["pair"] = int(batch["next_sentence_label"][0])
            row["pair_prediction"] = int(pair_logits.argmax(-1)[0])
        rows.append(row)
    return rows
