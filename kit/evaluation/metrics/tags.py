"""Metrics on the tags of words: entities by seqeval, and tags one by one.

Predictions and references hold a list of tags per sentence, one for each word.
"""

from collections.abc import Sequence
from typing import Any, Literal

from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

from kit.data.text.tag_schemes import OUTSIDE, split_tag
from kit.errors import DataError
from kit.evaluation.metrics.base import check_pairs

Sentences = Sequence[Sequence[str]]

_SEQEVAL_LETTERS = {"L": "E", "U": "S"}
"""seqeval reads these letters only in its strict mode, which needs the name of the scheme."""


def tag_accuracy(predictions: Sentences, references: Sentences) -> float:
    """Share, 0 to 1, of words with the right tag, all words weighing the same."""
    _check_sentences(predictions, references)
    pairs = [
        pair for sentence in zip(predictions, references, strict=True) for pair in zip(*sentence, strict=True)
    ]  # (predicted, expected)
    if not pairs:
        raise DataError("No tags: no sentence has words.")
    return sum(predicted == expected for predicted, expected in pairs) / len(pairs)


def entity_measure(
    predictions: Sentences, references: Sentences, measure: Literal["precision", "recall", "f1"]
) -> dict[str, Any]:
    """Precision, recall or F1 of entities, 0 to 1, over all types; `by_type` holds all three for each type.

    An entity is a typed span of words, and counts if its first word, its last word and its type are right. Tags may be
    in BIO, IOB1, IOBES or BILOU, and in invalid orders, which seqeval reads as the CoNLL evaluation does. Where
    nothing can be divided, the score is 0. Raises DataError for tags that mark no spans.
    """
    _check_sentences(predictions, references)
    expected, predicted = _seqeval_tags(references, "Reference"), _seqeval_tags(predictions, "Prediction")
    types = sorted(
        {_entity_type(tag) for side in (expected, predicted) for tags in side for tag in tags if tag != OUTSIDE}
    )
    if not types:
        return {"score": 0.0, "by_type": {}}
    overall = precision_recall_fscore_support(expected, predicted, average="micro", zero_division=0)
    columns = precision_recall_fscore_support(expected, predicted, average=None, zero_division=0)
    names = ("precision", "recall", "f1", "number")
    by_type = {
        entity_type: {name: column[index].item() for name, column in zip(names, columns, strict=True)}
        for index, entity_type in enumerate(types)
    }
    return {"score": float(overall[names.index(measure)]), "by_type": by_type}


def entity_counts(predictions: Sentences, references: Sentences) -> list[tuple[int, int, int]]:
    """The numbers of right, predicted and expected entities of each sentence, as `entity_measure` counts them."""
    _check_sentences(predictions, references)
    sides = (_seqeval_tags(predictions, "Prediction"), _seqeval_tags(references, "Reference"))
    counts = []
    for predicted, expected in zip(*sides, strict=True):
        ours, theirs = set(get_entities(predicted)), set(get_entities(expected))
        counts.append((len(ours & theirs), len(ours), len(theirs)))
    return counts


def _check_sentences(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    check_pairs(predictions, references)
    for number, (predicted, expected) in enumerate(zip(predictions, references, strict=True), start=1):
        for side, tags in (("Prediction", predicted), ("Reference", expected)):
            if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
                raise DataError(f"{side} {number} is not a list of tags: {tags!r}.")
        if len(predicted) != len(expected):
            raise DataError(
                f"Prediction {number} has {len(predicted)} tags and its reference {len(expected)}: each word has one."
            )


def _seqeval_tags(sentences: Sentences, side: str) -> list[list[str]]:
    """The tags with the letters that seqeval reads. Raises DataError for a tag that marks no span."""
    converted: dict[str, str] = {}
    for number, tags in enumerate(sentences, start=1):
        for tag in tags:
            if tag not in converted:
                try:
                    letter, _ = split_tag(tag)
                except DataError as error:
                    raise DataError(f"{side} {number}: {error} For tags without spans use tag_accuracy.") from None
                converted[tag] = _SEQEVAL_LETTERS.get(letter, letter) + tag[1:]
    return [[converted[tag] for tag in tags] for tags in sentences]


def _entity_type(tag: str) -> str:
    """The type of a tag's span as seqeval names it: "_" if the tag has none."""
    return split_tag(tag)[1] or "_"
