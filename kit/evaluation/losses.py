"""The loss of each example of a language model, whose sums give its figures: what `kit compare` resamples."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kit.errors import KitError, RunError
from kit.evaluation.evaluation import perplexity
from kit.evaluation.metrics.base import Statistics
from kit.system.files import read_json_lines

LossRow = dict[str, Any]
"""An example: its number under the name of its unit, such as "document", the beginning of its text, and its SUMS."""

SUMS = ("loss", "tokens", "words", "bytes", "correct", "unigram_loss", "pair_loss", "pair_correct", "pairs")
"""Columns that add up over examples. `tokens` counts the predicted tokens, whose loss in nats `loss` is the sum of; of
masked language models, these are the masked ones, and `correct` counts those predicted correctly."""

COMPARED = (
    "loss", "masked_loss", "perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "masked_accuracy",
    "pair_loss", "pair_accuracy",
)  # fmt: skip
"""The figures that depend on the model, in the order of a comparison."""

PER_TOKEN = ("loss", "perplexity")
"""Figures that depend on how a tokenizer divides the text: they do not compare models with different tokenizers."""

MIN_DOCUMENTS = 30
"""Documents from which a sample can be drawn. With fewer, the blocks of the text are the examples: a bootstrap of a few
documents has too few distinct samples for an interval of 95 %."""


def loss_figures(sums: Mapping[str, float]) -> dict[str, float]:
    """The figures of a language model from SUMS over its examples; a figure whose sums are missing is left out.

    Figures per token are NaN for a sample of examples without any predicted token.
    """
    tokens = sums["tokens"] or math.nan
    loss = sums["loss"] / tokens
    figures = {"loss": loss, "perplexity": perplexity(loss)}
    if "bytes" in sums:
        size = max(1, sums["bytes"])
        figures["word_perplexity"] = perplexity(sums["loss"] / max(1, sums["words"]))
        figures["byte_perplexity"] = perplexity(sums["loss"] / size)
        figures["bits_per_byte"] = sums["loss"] / math.log(2) / size
    if "correct" in sums:
        figures["masked_loss"] = loss
        figures["masked_accuracy"] = sums["correct"] / tokens
        figures["unigram_loss"] = sums["unigram_loss"] / tokens
    if "pairs" in sums:
        figures["pair_loss"] = sums["pair_loss"] / sums["pairs"]
        figures["pair_accuracy"] = sums["pair_correct"] / sums["pairs"]
        figures["loss"] += figures["pair_loss"]
    return figures


def total_sums(rows: Sequence[LossRow]) -> dict[str, float]:
    """SUMS over all examples."""
    return {name: sum(row[name] for row in rows) for name in SUMS if rows and name in rows[0]}


def resampled_figure(name: str, rows: Sequence[LossRow]) -> Statistics:
    """A figure of a language model that can be computed for any sample of its examples."""
    columns = [column for column in SUMS if column in rows[0]]
    table = np.array([[row[column] for column in columns] for row in rows], dtype=np.float64)
    return Statistics(table, lambda total: loss_figures(dict(zip(columns, total.tolist(), strict=True)))[name])


def unit_of(rows: Sequence[LossRow]) -> str:
    """The name of what each row holds the loss of: "document", "block" or "pair"."""
    return next(iter(rows[0]))


def read_losses(file: Path) -> list[LossRow]:
    """The rows of a file of losses. Raises RunError, with the line, if it is malformed or empty."""
    rows: list[LossRow] = []
    for number, row in read_json_lines(file, "losses"):
        values = [row.get(name) for name in SUMS if name in (rows[0] if rows else row)]
        if not {"loss", "tokens"} <= row.keys() or not all(isinstance(value, int | float) for value in values):
            raise RunError(
                f"{file}, line {number} is not the loss of an example: expected a JSON object with the numbers "
                f'"loss" and "tokens". The file is written at the end of `kit train`.'
            )
        rows.append(row)
    if not rows:
        raise RunError(f"{file} is empty: it holds no losses.")
    return rows


def compared_figures(runs: Sequence[Sequence[LossRow]], names: Sequence[str] | None = None) -> tuple[str, ...]:
    """The figures to compare the runs by: the named ones, or all that they have and that compare them fairly.

    Raises KitError for a figure that the runs do not have, or that depends on tokenizers which differ.
    """
    available = loss_figures(total_sums(runs[0]))
    same_tokens = all([row["tokens"] for row in run] == [row["tokens"] for row in runs[0]] for run in runs[1:])
    for name in names or ():
        if name not in available or name not in COMPARED:
            known = ", ".join(figure for figure in COMPARED if figure in available)
            raise KitError(f"These language models cannot be compared by {name}. Choose from: {known}.")
        if name in PER_TOKEN and not same_tokens:
            raise KitError(
                f"{name} is per token, and the tokenizers of these runs split the text differently. Compare them by "
                "word_perplexity, byte_perplexity or bits_per_byte"
            )
    if names:
        return tuple(names)
    return tuple(name for name in COMPARED if name in available and (same_tokens or name not in PER_TOKEN))
