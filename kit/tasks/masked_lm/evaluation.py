"""The figures of masked language models, and the loss of each example, from which they add up."""

from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from kit.data.batching.ragged import IGNORE_INDEX
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.losses import LossRow, loss_figures, total_sums
from kit.tasks.families.language_modeling.task import FIRST_TOKENS, beginning_of
from kit.tasks.masked_lm.examples import MaskedExamples
from kit.training.lm_objectives import MaskedLMObjective
from kit.training.objective import Batch


def masked_figures(
    objective: MaskedLMObjective, examples: MaskedExamples, tokenizer: PreTrainedTokenizerBase, evaluator: Evaluator
) -> tuple[dict[str, Any], list[LossRow]]:
    """Loss and accuracy at masked positions and of pairs, and the losses of each block or pair.

    `unigram_loss` is the loss of a model that knows only the token frequencies of this split; `pair_accuracy_error` is
    the standard error of `pair_accuracy`.
    """
    counts = examples.token_counts
    surprise = -np.log(np.maximum(counts, 1) / counts.sum())
    summed = ("loss", "pair_loss") if objective.with_pairs else ("loss",)

    def sums_of_examples(batch: Batch) -> tuple[list[dict[str, float]], list[Tensor | float]]:
        logits, pair_logits = objective.logits(batch)  # of the masked positions of all examples, in order
        masked = batch["labels"] != IGNORE_INDEX
        labels, owners = batch["labels"][masked], masked.nonzero()[:, 0].cpu().numpy()
        token_losses = nn.functional.cross_entropy(logits, labels, reduction="none").cpu().numpy()
        correct, tokens = (logits.argmax(-1) == labels).cpu().numpy(), labels.cpu().numpy()
        # added in float64 by NumPy: Apple GPUs have no tensors of that type
        sums: dict[str, np.ndarray] = {
            "loss": np.bincount(owners, token_losses, len(masked)),
            "tokens": np.bincount(owners, minlength=len(masked)),
            "correct": np.bincount(owners[correct], minlength=len(masked)),
            "unigram_loss": np.bincount(owners, surprise[tokens], len(masked)),
        }
        if pair_logits is not None:
            order = batch["next_sentence_label"]
            sums["pair_loss"] = nn.functional.cross_entropy(pair_logits, order, reduction="none").cpu().numpy()
            sums["pair_correct"] = (pair_logits.argmax(-1) == order).long().cpu().numpy()
            sums["pairs"] = np.ones(len(order), dtype=np.int64)
        rows = zip(*(values.tolist() for values in sums.values()), strict=True)
        # a sum in single precision hides last bits that depend on where the weights are in memory, so that an
        # evaluation of the saved model gives equal figures
        return [dict(zip(sums, row, strict=True)) for row in rows], [
            float(np.float32(sums[name].sum())) for name in summed
        ]

    objective.eval()
    rows, totals = evaluator.outputs_and_sums(examples.lengths, examples.evaluation_batch, sums_of_examples)
    unit = "block" if examples.pair_labels is None else "pair"
    losses = [
        {unit: number, "text": beginning_of(tokenizer.decode(examples.rows[number - 1][:FIRST_TOKENS] >> 1)), **row}
        for number, row in enumerate(rows, start=1)
    ]
    figures: dict[str, Any] = dict(loss_figures(total_sums(losses) | dict(zip(summed, totals, strict=True))))
    figures["examples"] = len(examples)
    if "pair_accuracy" in figures:
        share = figures["pair_accuracy"]
        figures["pair_accuracy_error"] = (share * (1 - share) / len(examples)) ** 0.5  # of a proportion
    return figures, losses
