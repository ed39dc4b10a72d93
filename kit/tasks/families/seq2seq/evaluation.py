"""Evaluation over processes: every example exactly once, results in the order of the data."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset

from kit.data.batching.plan import length_sorted_batches
from kit.data.batching.ragged import IGNORE_INDEX, TokenPairs
from kit.data.text.tokenizer import Tokenizers
from kit.decoding.search import Hypothesis, SearchSettings, search
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.groups import by_group
from kit.evaluation.metrics import compute_metrics
from kit.tasks.families.seq2seq.recipe import Seq2SeqEval
from kit.training.objective import Batch, Seq2SeqObjective


def own_batches(lengths: np.ndarray, tokens: int, accelerator: Accelerator) -> list[np.ndarray]:
    """This process's share of the batches; lengths alternate between processes, so that all finish together."""
    return length_sorted_batches(lengths, tokens)[accelerator.process_index :: accelerator.num_processes]


MakeInputs = Callable[[np.ndarray], Batch]
"""From the indices of examples to tensors."""


@torch.inference_mode()
def mean_loss(
    objective: Seq2SeqObjective, lengths: np.ndarray, make: MakeInputs, tokens: int, accelerator: Accelerator
) -> float:
    """Mean cross-entropy of a label, without label smoothing."""
    objective.eval()
    total, count = 0.0, 0
    for indices in own_batches(lengths, tokens, accelerator):
        batch = {k: v.to(accelerator.device) for k, v in make(indices).items()}
        total += float(objective.summed_loss(batch))
        count += int((batch["labels"] != IGNORE_INDEX).sum())
    sums = accelerator.reduce(torch.tensor([total, count], dtype=torch.float64, device=accelerator.device))
    return float(sums[0] / sums[1])


def teacher_forced_loss(
    objective: Seq2SeqObjective, examples: TokenPairs, pad: int, tokens: int, accelerator: Accelerator
) -> float:
    """Mean cross-entropy of a target token, without label smoothing."""
    lengths = np.maximum(examples.source.lengths, examples.target.lengths)
    return mean_loss(objective, lengths, lambda indices: examples.batch(indices, pad), tokens, accelerator)


def predict(
    objective: Seq2SeqObjective,
    examples: TokenPairs,
    pad: int,
    tokens: int,
    settings: Mapping[str | None, SearchSettings],
    accelerator: Accelerator,
) -> list[Hypothesis]:
    """The best hypothesis of every example, in the order of the data, on every process.

    `settings` belong to a language to write each; None is that of models with one direction.
    """
    objective.eval()
    found: list[tuple[int, Hypothesis]] = []
    for language, how in settings.items():
        rows = np.arange(len(examples)) if language is None else np.flatnonzero(examples.languages == language)
        lengths = examples.source.lengths[rows]
        make = partial(_some, examples, rows, pad)
        found += [(int(rows[i]), best) for i, best in best_of_each(objective, lengths, make, tokens, how, accelerator)]
    return in_order(found, len(examples))


def _some(examples: TokenPairs, rows: np.ndarray, pad: int, places: np.ndarray) -> Batch:
    return examples.batch(rows[places], pad)


def best_of_each(
    objective: Seq2SeqObjective,
    lengths: np.ndarray,
    make: MakeInputs,
    tokens: int,
    how: SearchSettings,
    accelerator: Accelerator,
) -> list[tuple[int, Hypothesis]]:
    """The best hypothesis of each source that is this process's share, with its number."""
    found: list[tuple[int, Hypothesis]] = []
    # a hypothesis is about as long as its source, and every beam is a row of its own
    for places in own_batches(lengths, max(1, tokens // how.num_beams), accelerator):
        batch = {k: v.to(accelerator.device) for k, v in make(places).items()}
        for place, hypotheses in zip(places, search(objective.model, batch, how), strict=True):
            found.append((int(place), hypotheses[0]))
    return found


def in_order(found: list[tuple[int, Hypothesis]], number: int) -> list[Hypothesis]:
    """The hypotheses that all processes have found, in the order of the data."""
    everyone = gather_object(found)
    ordered = dict(everyone)
    if len(everyone) != number or len(ordered) != number:
        raise RuntimeError(f"{len(everyone)} predictions for {number} examples: each must occur exactly once")
    return [ordered[i] for i in range(number)]


def evaluate_split(
    objective: Seq2SeqObjective,
    examples: TokenPairs,
    texts: Dataset,
    tokenizers: Tokenizers,
    section: Seq2SeqEval,
    num_beams: int,
    accelerator: Accelerator,
) -> Evaluation:
    """Loss, metrics, metrics by group, and predictions of a split; the figures are the same on every process."""
    pad = tokenizers.source.pad_token_id
    loss = teacher_forced_loss(objective, examples, pad, section.tokens_per_batch, accelerator)
    figures: dict[str, Any] = {"loss": loss, "perplexity": math.exp(min(loss, 700)), "examples": len(examples)}
    if examples.cut:
        figures["cut"] = examples.cut
    if not section.metrics and not section.examples:
        return Evaluation(figures, [])
    settings = by_language(search_settings(section, num_beams), examples, tokenizers)
    hypotheses = predict(objective, examples, pad, section.tokens_per_batch, settings, accelerator)
    predictions = tokenizers.decode([hypothesis.tokens for hypothesis in hypotheses])
    rows = [
        {**text, "prediction": prediction, "score": hypothesis.score, "finished": hypothesis.finished}
        for text, prediction, hypothesis in zip(texts, predictions, hypotheses, strict=True)
    ]
    if accelerator.is_main_process:
        figures |= compute_metrics(section.metrics, predictions, texts["target"])
        if section.group_by:
            figures["by"] = by_group(section.group_by, rows, section.metrics)
    return Evaluation(broadcast_object_list([figures])[0], rows)


def evaluate_writing(
    objective: Seq2SeqObjective,
    lengths: np.ndarray,
    make: MakeInputs,
    source_lengths: np.ndarray,
    make_source: MakeInputs,
    described: Callable[[], list[dict[str, Any]]],
    tokenizers: Tokenizers,
    section: Seq2SeqEval,
    num_beams: int,
    accelerator: Accelerator,
) -> Evaluation:
    """Loss, metrics and predictions of a split whose sources are no text, and may have several right targets.

    `make` gives batches of targets with their sources, of these `lengths`; `make_source` those of sources alone, each
    of which is a row of `described`, with its `target`. The figures are the same on every process.
    """
    loss = mean_loss(objective, lengths, make, section.tokens_per_batch, accelerator)
    figures: dict[str, Any] = {"loss": loss, "perplexity": math.exp(min(loss, 700)), "examples": len(source_lengths)}
    if not section.metrics and not section.examples:
        return Evaluation(figures, [])
    how = search_settings(section, num_beams)
    found = best_of_each(objective, source_lengths, make_source, section.tokens_per_batch, how, accelerator)
    hypotheses = in_order(found, len(source_lengths))
    predictions = tokenizers.decode([hypothesis.tokens for hypothesis in hypotheses])
    rows = [
        {**row, "prediction": prediction, "score": hypothesis.score, "finished": hypothesis.finished}
        for row, prediction, hypothesis in zip(described(), predictions, hypotheses, strict=True)
    ]
    if accelerator.is_main_process:
        figures |= compute_metrics(section.metrics, predictions, [row["target"] for row in rows])
        if section.group_by:
            figures["by"] = by_group(section.group_by, rows, section.metrics)
    return Evaluation(broadcast_object_list([figures])[0], rows)


def by_language(
    settings: SearchSettings, examples: TokenPairs, tokenizers: Tokenizers
) -> dict[str | None, SearchSettings]:
    """The search for each language that the examples are to be translated into.

    Languages that are told by the source alone need no search, and no batches, of their own.
    """
    if examples.languages is None:
        return {None: settings}
    tokens = {str(language): tokenizers.generation_tokens(language) for language in np.unique(examples.languages)}
    if not any(tokens.values()):
        return {None: settings}
    return {language: replace(settings, **needed) for language, needed in tokens.items()}


def search_settings(section: Seq2SeqEval, num_beams: int) -> SearchSettings:
    """The search that a recipe asks for."""
    return SearchSettings(
        num_beams=num_beams,
        max_new_tokens=section.max_new_tokens,
        length_penalty=section.length_penalty,
        early_stopping=section.early_stopping,
        no_repeat_ngram_size=section.no_repeat_ngram_size,
    )
