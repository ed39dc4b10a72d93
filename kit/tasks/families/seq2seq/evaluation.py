"""Evaluation of models that generate text: the loss with teacher forcing, and the metrics of a search."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset
from torch import Tensor

from kit.data.batching.ragged import IGNORE_INDEX, TokenPairs
from kit.data.text.tokenizer import Tokenizers
from kit.decoding.search import Hypothesis, search
from kit.decoding.settings import GenerationSettings
from kit.evaluation.evaluation import UNKNOWN_TOKENS, Evaluation, perplexity
from kit.evaluation.evaluator import Evaluator, MakeBatch
from kit.evaluation.groups import by_group
from kit.evaluation.metrics import compute_metrics
from kit.tasks.families.seq2seq.recipe import Seq2SeqEval
from kit.training.objective import Batch, Seq2SeqObjective


@dataclass(frozen=True)
class Sources:
    """Inputs of the examples of a split: their lengths, and how to make a batch of them."""

    lengths: np.ndarray
    make_batch: MakeBatch


def mean_loss(objective: Seq2SeqObjective, examples: Sources, evaluator: Evaluator) -> float:
    """Compute the mean cross-entropy per label, without label smoothing."""
    objective.eval()

    def sums(batch: Batch) -> list[Tensor]:
        return [objective.summed_loss(batch), (batch["labels"] != IGNORE_INDEX).sum()]

    loss, count = evaluator.sums(examples.lengths, examples.make_batch, sums)
    return loss / count


def best_hypotheses(
    objective: Seq2SeqObjective, sources: Sources, settings: GenerationSettings, evaluator: Evaluator
) -> list[Hypothesis]:
    """Search for the best hypothesis of each source, in order."""
    objective.eval()

    def best(batch: Batch) -> list[Hypothesis]:
        return [hypotheses[0] for hypotheses in search(objective.model, batch, settings)]

    # a hypothesis is about as long as its source, and each beam is a row of the batch
    return evaluator.outputs(sources.lengths, sources.make_batch, best, rows_per_example=settings.num_beams)


def evaluate_split(
    objective: Seq2SeqObjective,
    examples: TokenPairs,
    texts: Dataset,
    tokenizers: Tokenizers,
    section: Seq2SeqEval,
    num_beams: int,
    evaluator: Evaluator,
) -> Evaluation:
    """Evaluate a split of texts with one target each: loss, metrics, metrics by group, and predictions."""
    pad = tokenizers.source.pad_token_id
    lengths = np.maximum(examples.source.lengths, examples.target.lengths)
    settings = search_settings(section, num_beams)

    def hypotheses() -> list[Hypothesis]:
        return predict(objective, examples, pad, by_language(settings, examples, tokenizers), evaluator)

    pairs = Sources(lengths, lambda indices: examples.batch(indices, pad))
    rows: Callable[[], list[dict[str, Any]]] = partial(list, texts)
    evaluation = evaluate_generation(objective, pairs, len(examples), hypotheses, rows, tokenizers, section, evaluator)
    truncated = {"truncated": examples.truncated} if examples.truncated else {}
    return replace(evaluation, figures={**evaluation.figures, **truncated})


def predict(
    objective: Seq2SeqObjective,
    examples: TokenPairs,
    pad: int,
    settings: Mapping[str | None, GenerationSettings],
    evaluator: Evaluator,
) -> list[Hypothesis]:
    """Search for the best hypothesis of each example, in order.

    `settings` has the search for each target language; the key None is for models with one direction.
    """
    hypotheses: dict[int, Hypothesis] = {}
    for language, language_settings in settings.items():
        rows = np.arange(len(examples)) if language is None else np.flatnonzero(examples.languages == language)
        sources = Sources(examples.source.lengths[rows], partial(_batch_of, examples, rows, pad))
        best = best_hypotheses(objective, sources, language_settings, evaluator)
        hypotheses.update(zip(rows.tolist(), best, strict=True))
    return [hypotheses[index] for index in range(len(examples))]


def _batch_of(examples: TokenPairs, rows: np.ndarray, pad: int, indices: np.ndarray) -> Batch:
    """A batch of the examples `rows[indices]`."""
    return examples.batch(rows[indices], pad)


def evaluate_generation(
    objective: Seq2SeqObjective,
    pairs: Sources,
    count: int,
    hypotheses: Callable[[], list[Hypothesis]],
    rows: Callable[[], list[dict[str, Any]]],
    tokenizers: Tokenizers,
    section: Seq2SeqEval,
    evaluator: Evaluator,
) -> Evaluation:
    """Evaluate generated text: the loss over `pairs` of source and target, and metrics and predictions of `count`
    sources.

    `hypotheses` and `rows` return those of the sources, in order. A row has the `target`: a text, or a list of
    references.
    """
    loss = mean_loss(objective, pairs, evaluator)
    figures: dict[str, Any] = {"loss": loss, "perplexity": perplexity(loss), "examples": count}
    if not section.metrics and not section.examples:
        return Evaluation(figures, [])
    best = hypotheses()
    sequences = [hypothesis.tokens for hypothesis in best]
    predictions = tokenizers.decode(sequences)
    if unknown := tokenizers.count_unknown(sequences):
        figures[UNKNOWN_TOKENS] = unknown
    predicted = [
        {**row, "prediction": prediction, "score": hypothesis.score, "finished": hypothesis.finished}
        for row, prediction, hypothesis in zip(rows(), predictions, best, strict=True)
    ]

    def metrics() -> dict[str, Any]:
        options = section.metric_options
        computed = compute_metrics(section.metrics, predictions, [row["target"] for row in predicted], options)
        groups = {"by": by_group(section.group_by, predicted, section.metrics, options)} if section.group_by else {}
        return computed | groups

    return Evaluation(figures | evaluator.on_main(metrics), predicted)


def by_language(
    settings: GenerationSettings, examples: TokenPairs, tokenizers: Tokenizers
) -> dict[str | None, GenerationSettings]:
    """The search settings for each target language of the examples.

    Languages that only the source encodes need neither a search nor batches of their own.
    """
    if examples.languages is None:
        return {None: settings}
    tokens = {str(language): tokenizers.generation_tokens(language) for language in np.unique(examples.languages)}
    if not any(tokens.values()):
        return {None: settings}
    return {language: replace(settings, **changes) for language, changes in tokens.items()}


def search_settings(section: Seq2SeqEval, num_beams: int) -> GenerationSettings:
    """The search settings of a recipe, with `num_beams` beams."""
    return GenerationSettings(
        num_beams=num_beams,
        max_new_tokens=section.max_new_tokens,
        length_penalty=section.length_penalty,
        early_stopping=section.early_stopping,
        no_repeat_ngram_size=section.no_repeat_ngram_size,
    )
