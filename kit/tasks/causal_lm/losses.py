"""The losses of an evaluation, by block as the model reads them, and by document as models are compared."""

from collections.abc import Sequence

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from kit.data.batching.ragged import IGNORE_INDEX
from kit.data.rows import ColumnView
from kit.evaluation.losses import LossRow
from kit.tasks.causal_lm.examples import TextBlocks
from kit.tasks.families.language_modeling.task import FIRST_TOKENS, beginning_of
from kit.training.lm_objectives import CausalLMObjective
from kit.training.objective import Batch


def losses_of_blocks(objective: CausalLMObjective, batch: Batch) -> tuple[list[np.ndarray], list[Tensor]]:
    """The losses of the labels of each block of a batch, and their sum.

    The sum, in single precision, hides last bits that depend on where the weights are in memory: an evaluation of the
    saved model then gives equal figures.
    """
    losses, labeled = objective.label_losses(batch), (batch["labels"] != IGNORE_INDEX).cpu().numpy()
    rows = zip(losses.float().cpu().numpy(), labeled, strict=True)
    return [row[mask] for row, mask in rows], [losses.sum()]


def losses_of_documents(examples: TextBlocks, rows: Dataset, of_blocks: Sequence[np.ndarray]) -> list[LossRow]:
    """The loss of each document with the end that the model predicts after it; a document without tokens has none."""
    labels = examples.sizes[:, 0] + (examples.sizes[:, 0] > 0)
    owners = np.repeat(np.arange(len(labels)), labels)
    losses = np.bincount(owners, np.concatenate(of_blocks) if len(owners) else None, minlength=len(labels))
    columns = zip(ColumnView(rows, "text"), losses.tolist(), labels.tolist(), examples.sizes.tolist(), strict=True)
    return [
        {"document": number, "text": beginning_of(text), "loss": loss, "tokens": tokens, "words": words, "bytes": size}
        for number, (text, loss, tokens, (_, words, size)) in enumerate(columns, start=1)
    ]


def losses_of_text_blocks(
    examples: TextBlocks, of_blocks: Sequence[np.ndarray], tokenizer: PreTrainedTokenizerBase
) -> list[LossRow]:
    """The loss of each block of tokens."""
    starts = np.concatenate([[0], np.cumsum(examples.lengths)])
    return [
        {
            "block": number + 1,
            "text": beginning_of(tokenizer.decode(examples.blocks.stream[start : start + FIRST_TOKENS])),
            "loss": float(losses.sum(dtype=np.float64)),
            "tokens": len(losses),
        }
        for number, (start, losses) in enumerate(zip(starts, of_blocks, strict=False))
    ]
