"""Titles of figures: those of the metrics, of the model itself and of baselines."""

from __future__ import annotations

from collections.abc import Sequence

from kit.evaluation.evaluation import UNKNOWN_TOKENS
from kit.evaluation.metrics import METRICS, MODEL_METRICS

_TITLES = {
    "loss": "Loss",
    "perplexity": "Perplexity per token",
    "word_perplexity": "Perplexity per word",
    "byte_perplexity": "Perplexity per byte",
    "bits_per_byte": "Bits per byte",
    "masked_loss": "Masked-token loss",
    "unigram_loss": "Masked-token loss of a unigram baseline",
    "pair_loss": "Sentence-pair loss",
    "masked_accuracy": "Masked-token accuracy",
    "pair_accuracy": "Sentence-pair accuracy",
    "answer_accuracy": "Answer accuracy",
    "answer_majority": "Answer accuracy of a majority baseline",
    "persistence_mse": "Mean squared error of repeating the last value",
    "persistence_mae": "Mean absolute error of repeating the last value",
    "seasonal_mse": "Mean squared error of the seasonal naive forecast",
    "seasonal_mae": "Mean absolute error of the seasonal naive forecast",
    "linear_mse": "Mean squared error of a linear autoregression",
    "linear_mae": "Mean absolute error of a linear autoregression",
    "regression_mse": "Mean squared error of a linear regression for each step ahead",
    "regression_mae": "Mean absolute error of a linear regression for each step ahead",
    "coverage_50": "Share of values in the central 50 % interval",
    "coverage_90": "Share of values in the central 90 % interval",
    UNKNOWN_TOKENS: "Unknown tokens in the output",
}
"""Titles of figures that are not metrics."""
_BASELINES = tuple(
    f"{baseline}_{error}"
    for baseline in ("persistence", "seasonal", "linear", "regression")
    for error in ("mse", "mae")
)


def metric_names(recipe_metrics: Sequence[str] = ()) -> list[str]:
    """All metrics, including those of the recipe that were registered while training, but not in this process."""
    return list(dict.fromkeys([*METRICS, *(name for name in recipe_metrics if name not in _TITLES)]))


def figure_titles(recipe_metrics: Sequence[str] = ()) -> dict[str, str]:
    """The titles of figures, in the order in which a card lists them."""
    names = metric_names(recipe_metrics)
    return {name: METRICS[name].title if name in METRICS else name for name in names} | _TITLES


def lower_is_better(name: str) -> bool:
    """Whether a lower value of a figure means a better model, or a baseline that is harder to beat."""
    return name in (*MODEL_METRICS, *_BASELINES, UNKNOWN_TOKENS) or (
        name in METRICS and not METRICS[name].greater_is_better
    )
