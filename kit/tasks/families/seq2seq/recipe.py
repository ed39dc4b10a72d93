"""The recipe keys that tasks share whose models write text by beam search."""

from typing import Annotated, Literal

from pydantic import NonNegativeInt, PositiveInt

from kit.evaluation.metrics.choice import or_registered
from kit.recipe.base import Recipe
from kit.recipe.training import EvalSection

Metric = Annotated[
    Literal["bleu", "chrf", "ter", "rouge1", "rouge2", "rougeL", "rougeLsum", "exact_match", "token_accuracy"],
    or_registered("text"),
]


class Seq2SeqEval(EvalSection):
    """Evaluation: when, by which metrics, and how output is searched for."""

    metrics: list[Metric] = []  # type: ignore[assignment]  # noqa: RUF012 (pydantic copies it)
    """What is computed on decoded output, besides loss and perplexity."""

    select_by: Metric | Literal["loss"] = "loss"
    """What makes a checkpoint the best one: the loss, or one of eval.metrics."""

    num_beams: PositiveInt = 1
    """Width of the beam search of the final evaluation and of the saved model; 1 is greedy."""

    num_beams_while_training: PositiveInt = 1
    """Width of the beam search of evaluations during training; 1, greedy, is the fastest."""

    length_penalty: float = 1.0
    """Exponent of the length that a beam's score is divided by: above 0 favours longer output, below 0
    shorter; 1 is the mean log-probability of a token."""

    max_new_tokens: PositiveInt = 128
    """Longest output, in tokens; what is not finished by then is cut."""

    early_stopping: bool | Literal["never"] = False
    """When beam search ends: true with num_beams finished outputs, false when better ones are unlikely, never
    when better ones are impossible."""

    no_repeat_ngram_size: NonNegativeInt = 0
    """No sequence of this many tokens occurs twice in an output; 0 allows all."""

    group_by: list[str] = []  # noqa: RUF012
    """Report metrics for groups too: by a column of the data, such as language, or by "length" (source)."""


class Seq2SeqRecipe(Recipe):
    """A recipe whose model writes text by beam search."""

    eval: Seq2SeqEval = Seq2SeqEval()
    """Evaluation: when, by which metrics, and how output is searched for."""
