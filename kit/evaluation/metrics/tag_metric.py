"""Metrics on the tags of words: entities that are entirely right, by seqeval, and tags one by one."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import datasets
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

from kit.data.text.tag_schemes import split_tag
from kit.errors import DataError
from kit.evaluation.metrics.local_metric import LocalMetric, check_pairs

Sentences = list[list[str]]

_LETTERS_OF_SEQEVAL = {"L": "E", "U": "S"}  # what seqeval reads without being told the scheme


class TagMetric(LocalMetric):
    """Compares predicted with right tags, word by word of each sentence."""

    inputs = """
    predictions: for each sentence a list of tags.
    references: for each prediction as many right tags.
    """

    @abstractmethod
    def result(self, predictions: Sentences, references: Sentences) -> dict[str, Any]:
        """The score, and what else there is to tell."""

    def columns(self) -> dict[str, Any]:
        tags = datasets.List(datasets.Value("string"))
        return {"predictions": tags, "references": tags}

    def add_batch(self, *, predictions: Sequence[Any], references: Sequence[Any], **kwargs: Any) -> None:
        """Add predicted tags of sentences and the right ones."""
        check_pairs(predictions, references)
        for number, (predicted, right) in enumerate(zip(predictions, references, strict=True), start=1):
            for side, tags in (("Prediction", predicted), ("Reference", right)):
                if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
                    raise DataError(f"{side} {number} is not a list of tags: {tags!r}.")
            if len(predicted) != len(right):
                raise DataError(
                    f"Prediction {number} has {len(predicted)} tags and its reference {len(right)}: each word has one."
                )
        super().add_batch(predictions=list(map(list, predictions)), references=list(map(list, references)), **kwargs)

    def add(self, *, prediction: Sequence[str], reference: Sequence[str], **kwargs: Any) -> None:
        """Add the predicted tags of one sentence and the right ones."""
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def _compute(self, predictions: Sentences, references: Sentences) -> dict[str, Any]:
        return self.result(predictions, references)


class TagAccuracy(TagMetric):
    """Share, 0 to 1, of words that have the right tag, all words weighing the same."""

    def result(self, predictions: Sentences, references: Sentences) -> dict[str, Any]:
        pairs = [
            pair for both in zip(predictions, references, strict=True) for pair in zip(*both, strict=True)
        ]  # (predicted, right)
        if not pairs:
            raise DataError("No tags: all sentences are without words.")
        return {"score": sum(predicted == right for predicted, right in pairs) / len(pairs)}


class EntityMeasure(TagMetric):
    """One of precision, recall and F1 of entities, 0 to 1, all types together; `by_type` has all three for each type.

    An entity is a span of words with a type, and counts if its first word, its last word and its type are right. Tags
    may be in any of the schemes BIO, IOB1, IOBES and BILOU, and in an impossible order, which seqeval reads as the
    CoNLL evaluation does. Where there is nothing to divide by, the score is 0.
    """

    measure: ClassVar[str]

    def result(self, predictions: Sentences, references: Sentences) -> dict[str, Any]:
        right, predicted = _for_seqeval(references, "Reference"), _for_seqeval(predictions, "Prediction")
        kinds = sorted({kind for side in (right, predicted) for tags in side for kind in _kinds(tags)})
        if not kinds:
            return {"score": 0.0, "by_type": {}}
        overall = precision_recall_fscore_support(right, predicted, average="micro", zero_division=0)
        each = precision_recall_fscore_support(right, predicted, average=None, zero_division=0)
        names = ("precision", "recall", "f1", "number")
        by_type = {
            kind: {name: column[place].item() for name, column in zip(names, each, strict=True)}
            for place, kind in enumerate(kinds)
        }
        return {"score": float(overall[names.index(self.measure)]), "by_type": by_type}


def _for_seqeval(sentences: Sentences, side: str) -> Sentences:
    """The tags with letters that seqeval knows. Raises DataError if one is not that of a span."""
    letters: dict[str, str] = {}
    for number, tags in enumerate(sentences, start=1):
        for tag in tags:
            if tag not in letters:
                try:
                    letter, _ = split_tag(tag)
                except DataError as error:
                    raise DataError(f"{side} {number}: {error} For tags without spans use tag_accuracy.") from None
                letters[tag] = _LETTERS_OF_SEQEVAL.get(letter, letter) + tag[1:]
    return [[letters[tag] for tag in tags] for tags in sentences]


def _kinds(tags: list[str]) -> set[str]:
    """The types of spans, as seqeval names them."""
    return {split_tag(tag)[1] or "_" for tag in tags if tag != "O"}


class EntityPrecision(EntityMeasure):
    """Of the entities that were predicted, the share that is right, 0 to 1."""

    measure = "precision"


class EntityRecall(EntityMeasure):
    """Of the right entities, the share that was found, 0 to 1."""

    measure = "recall"


class EntityF1(EntityMeasure):
    """F1 of entities, 0 to 1: the harmonic mean of their precision and recall."""

    measure = "f1"
