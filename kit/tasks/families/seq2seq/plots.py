"""Attention maps of a model that reads a text: which maps to draw, and the figure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedModel

from kit.data.text.tokenizer import Tokenizers
from kit.decoding.settings import GenerationSettings
from kit.errors import KitError, RunError, did_you_mean
from kit.plots.attention import attention_figure
from kit.prediction.text import BLANK
from kit.tasks.families.seq2seq.attention_weights import KINDS, Attention, Kind, Question, attention_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TURNS, MAX_DIALOGUES = 3, 200
"""Turns that a plotted dialogue should have, and dialogues that are searched for one."""


@dataclass(frozen=True)
class Maps:
    """Which maps of a kind of attention to draw; layers and heads are counted from 1."""

    layer: int | str | None = None  # a number, "all", or by default the last
    head: int | str = "all"  # a number, "all" or "mean"

    @classmethod
    def of(cls, layer: str | None, head: str | None) -> "Maps":
        """Parse the options --layer and --head."""
        return cls(
            None if layer is None else parse_number("--layer", layer, ("all",)),
            "all" if head is None else parse_number("--head", head, ("all", "mean")),
        )

    def name(self, kind: Kind) -> str:
        """A different name for each choice of maps, so that no plot overwrites another."""
        parts = ["attention" if kind == "cross" else f"{kind}_attention"]
        if self.layer is not None:
            parts.append("all_layers" if self.layer == "all" else f"layer_{self.layer}")
        if self.head != "all":
            parts.append("mean" if self.head == "mean" else f"head_{self.head}")
        return "_".join(parts)


def first_question(rows: Iterable[Mapping[str, Any]]) -> Question | None:
    """The first row of a split whose source is not blank.

    Of dialogues, the first one with TURNS turns, if there is one: attention over a single turn shows nothing.
    """
    questions = (row for row in rows if not BLANK.fullmatch(row["source"]))
    row = next(questions, None)
    if row is None:
        return None
    if "turns" in row:  # a dialogue, as `history_of` reads it
        row = max([row, *islice(questions, MAX_DIALOGUES)], key=lambda row: min(len(row["turns"]), TURNS))
        return Question(json.dumps(row["turns"], ensure_ascii=False))
    languages = (row["source_language"], row["target_language"]) if "direction" in row else (None, None)
    return Question(row["source"], None, *languages)


def figures_of_kinds(
    model: PreTrainedModel,
    tokenizers: Tokenizers,
    question: Question,
    kind: str = "cross",
    maps: Maps = Maps(),  # noqa: B008  # immutable
    settings: GenerationSettings | None = None,
) -> "dict[str, Figure]":
    """Plot the chosen maps of one kind of attention, or of all kinds that the model has; figures by name.

    Empty for a model without attention. Raises RunError for a kind that the model does not have.
    """
    attention = attention_of(model, tokenizers, question, settings)
    kinds = [known for known in attention.weights if kind in (known, "all")]
    if attention.weights and not kinds:
        existing = " and ".join(KINDS[known] for known in attention.weights)
        raise RunError(f"--kind {kind}: the model ({model.config.model_type}) has no such attention, only {existing}")
    return {maps.name(known): draw_maps(attention, known, maps, question) for known in kinds}


def draw_maps(attention: Attention, kind: Kind, maps: Maps, question: Question) -> "Figure":
    """Draw the chosen maps. Raises KitError if the model does not have them."""
    weights, title, captions = choose_maps(attention.weights[kind], kind, maps)
    if question.target is not None:
        title += " · the output was given"
    if attention.truncated_at is not None:
        title += f" · truncated after {attention.truncated_at} tokens"
    columns = {"cross": attention.source, "encoder": attention.source, "decoder": attention.written}[kind]
    rows = attention.source if kind == "encoder" else attention.output
    names = (
        "attends to output so far" if kind == "decoder" else "attends to source",
        "source" if kind == "encoder" else "output",
    )
    return attention_figure(weights, columns, rows, title, names=names, captions=captions, causal=kind == "decoder")


def choose_maps(weights: Tensor, kind: Kind, maps: Maps) -> tuple[Tensor, str, list[str] | None]:
    """Select maps from weights (layers, heads, …); also returns their title, and captions for several maps that are
    not heads."""
    layers, heads = weights.shape[:2]
    title, captions = KINDS[kind], None
    layer = layers if maps.layer is None or (maps.layer == "all" and layers == 1) else maps.layer
    head = 1 if maps.head in ("all", "mean") and heads == 1 else maps.head
    if isinstance(layer, int):
        _check("--layer", layer, layers, f"the {'encoder' if kind == 'encoder' else 'decoder'} has")
        weights = weights[layer - 1]
        title += f" · layer {layer} of {layers}" if layers > 1 else ""
    if isinstance(head, int):
        _check("--head", head, heads, "each layer has")
        weights = weights.select(-3, head - 1)
        title += f" · head {head} of {heads}" if heads > 1 else ""
    elif head == "mean":
        weights = weights.mean(-3)
        title += f" · mean of {heads} heads"
    if layer == "all" and weights.dim() == 3:
        captions = [f"layer {number}" for number in range(1, layers + 1)]
    return weights, title, captions


MAX_DIGITS = 9
"""Digits of a number of a layer or a head; Python refuses to convert thousands of them."""


def parse_number(option: str, text: str, words: tuple[str, ...]) -> int | str:
    """The number in the value of an option, or the value itself if it is one of `words`. Raises KitError for any
    other text."""
    if text in words:
        return text
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        expected = " or ".join(["a number", *(f'"{word}"' for word in words)])
        raise KitError(f'{option} "{text}": expected {expected}.{did_you_mean(text, words)}')
    return int(text)


def _check(option: str, number: int, count: int, owner: str) -> None:
    """Raise KitError unless a number, counted from 1, is at most `count`."""
    if not 1 <= number <= count:
        what = option.removeprefix("--") + "s" * (count > 1)
        raise KitError(f"{option} {number}: {owner} {count} {what}, counted from 1")
