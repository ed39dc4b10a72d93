"""The figures of masked language models: loss and accuracy at masked positions and of pairs."""

import numpy as np
from torch import Tensor, nn

from kit.data.batching.ragged import IGNORE_INDEX
from kit.evaluation.evaluation import perplexity
from kit.evaluation.evaluator import Evaluator
from kit.tasks.masked_lm.examples import MaskedExamples
from kit.training.lm_objectives import MaskedLMObjective
from kit.training.objective import Batch


def masked_figures(objective: MaskedLMObjective, examples: MaskedExamples, evaluator: Evaluator) -> dict[str, float]:
    """Loss and accuracy at masked positions and of pairs; the masks are the same in every evaluation.

    `unigram_loss` is the loss of a model that knows only the token frequencies of this split;
    `pair_accuracy_error` is the standard error of `pair_accuracy`.
    """
    counts = examples.token_counts
    surprise = -np.log(np.maximum(counts, 1) / counts.sum())

    def sums(batch: Batch) -> list[Tensor | float]:
        logits, pair_logits = objective.logits(batch)
        labels = batch["labels"][batch["labels"] != IGNORE_INDEX]
        correct = (logits.argmax(-1) == labels).sum()
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        results: list[Tensor | float] = [loss, correct, float(surprise[labels.cpu().numpy()].sum()), len(labels)]
        if pair_logits is not None:
            order = batch["next_sentence_label"]
            results += [
                nn.functional.cross_entropy(pair_logits, order, reduction="sum"),
                (pair_logits.argmax(-1) == order).sum(),
            ]
        return results

    objective.eval()
    loss, correct, unigram, masked, *pairs = evaluator.sums(examples.lengths, examples.evaluation_batch, sums)
    figures = {"loss": loss / masked, "masked_loss": loss / masked, "perplexity": perplexity(loss / masked)}
    figures |= {"masked_accuracy": correct / masked, "unigram_loss": unigram / masked, "examples": len(examples)}
    if pairs:
        share = pairs[1] / len(examples)
        error = (share * (1 - share) / len(examples)) ** 0.5  # standard error of a proportion
        figures |= {"pair_loss": pairs[0] / len(examples), "pair_accuracy": share, "pair_accuracy_error": error}
        figures["loss"] += figures["pair_loss"]
    return figures
