"""Texts with labels as examples: tokens to read, and labels as the loss takes them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from kit.data.rows import ColumnView
from kit.tasks.families.labeling.examples import LabeledExamples, Tokenized, tokenize
from kit.training.objective import Batch


@dataclass(frozen=True)
class LabeledTexts(LabeledExamples):
    """Encoded texts with their labels."""

    labels: np.ndarray
    """The index of the label (examples,), 1 for each label that an example has (examples, labels), or numbers."""
    tunes_thresholds: bool = False
    """Whether the evaluation of this split determines the thresholds of labels."""

    def batch(self, indices: np.ndarray) -> Batch:
        labels = self.labels[indices]
        if labels.dtype == np.float64:  # which Apple GPUs do not have
            labels = labels.astype(np.float32)
        return self.inputs.batch(indices) | {"labels": torch.from_numpy(labels)}


def tokenize_texts(
    rows: Dataset, columns: Sequence[str], tokenizer: PreTrainedTokenizerBase, limit: int | None, truncation: str
) -> Tokenized:
    """Tokenize the texts, or pairs of texts, in these columns, truncated to `limit` tokens."""
    texts = list(zip(*(ColumnView(rows, column) for column in columns), strict=True))
    return tokenize(
        tokenizer,
        lambda chunk, **options: tokenizer(*map(list, zip(*chunk, strict=True)), **options),
        texts, limit, truncation,
    )  # fmt: skip
