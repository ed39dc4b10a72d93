"""Metrics on text: BLEU, chrF and TER by sacrebleu, exact match, token accuracy, and how varied texts are.

Wherever texts are compared, `references` holds one text, or a list of equally valid texts, for each prediction.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import sacrebleu.metrics
from sacrebleu.metrics.base import Metric

from kit.errors import DataError, KitError
from kit.evaluation.metrics.base import Statistics, check_pairs

References = Sequence[str] | Sequence[Sequence[str]]


def reference_lists(predictions: Sequence[str], references: References) -> list[list[str]]:
    """The references as one list per prediction. Raises DataError, with the number of the row, if any is not text."""
    check_pairs(predictions, references)
    lists: list[list[Any]] = [
        list(reference) if isinstance(reference, list | tuple) else [reference] for reference in references
    ]
    for number, (prediction, texts) in enumerate(zip(predictions, lists, strict=True), start=1):
        if not isinstance(prediction, str):
            raise DataError(f"Prediction {number} is not a text: {prediction!r}.")
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DataError(f"Reference {number} is neither a text nor a list of texts: {references[number - 1]!r}.")
    return lists


def bleu(predictions: Sequence[str], references: References, **options: Any) -> Statistics:
    """Corpus BLEU, 0 to 100, on detokenized text (13a tokenization unless `tokenize=` names another).

    Options are those of `sacrebleu.BLEU`. Where no reference is long enough to hold a 4-gram, plain BLEU is 0 even for
    perfect output; BLEU then uses the longest n-grams that exist, and the signature has `eff:yes`. The choice depends
    only on the references, so runs on the same data remain comparable. Under 13a a text without spaces is a single
    word: prefer chrF.
    """
    lists = reference_lists(predictions, references)
    # `force` only silences a warning about outputs that end in " .", which word-level models do produce.
    options = {"force": True, **options}
    try:
        options.setdefault("effective_order", not _has_4grams(lists, options))
        metric = sacrebleu.metrics.BLEU(**options)
    except (ImportError, RuntimeError) as error:  # a tokenizer that is not a part of sacrebleu
        extra = str(options.get("tokenize", "")).partition("-")[0]
        install = "seq2seq-kit[ja]" if extra == "ja" else f"sacrebleu[{extra}]"
        raise KitError(
            f'BLEU with the tokenizer "{options.get("tokenize")}" needs more packages: pip install "{install}". Or set '
            "eval.bleu_tokenize: char, or use chrf."
        ) from error
    return _corpus_statistics(metric, predictions, lists)


def chrf(predictions: Sequence[str], references: References, **options: Any) -> Statistics:
    """Corpus chrF2, 0 to 100: F-score of character n-grams, for all scripts; `word_order=2` gives chrF++.

    Options are those of `sacrebleu.CHRF`.
    """
    return _corpus_statistics(sacrebleu.metrics.CHRF(**options), predictions, reference_lists(predictions, references))


def ter(predictions: Sequence[str], references: References, **options: Any) -> Statistics:
    """Corpus translation edit rate: edits per 100 reference words, ignoring case; 0 is perfect, over 100 is possible.

    Options are those of `sacrebleu.TER`.
    """
    return _corpus_statistics(sacrebleu.metrics.TER(**options), predictions, reference_lists(predictions, references))


def exact_match(predictions: Sequence[str], references: References) -> Statistics:
    """Share, 0 to 1, of predictions that equal a reference character by character.

    White space at both ends is ignored; case, punctuation and Unicode form count.
    """
    hits = [
        (prediction.strip() in [text.strip() for text in texts], 1)
        for prediction, texts in zip(predictions, reference_lists(predictions, references), strict=True)
    ]
    return Statistics(np.array(hits, dtype=np.float64), lambda total: total[0] / total[1])


def token_accuracy(predictions: Sequence[str], references: References) -> Statistics:
    """Share, 0 to 1, of positions at which prediction and reference have the same white-space-separated word.

    The longer text sets the number of positions, so missing and surplus words are errors; all positions of the corpus
    weigh the same. This is the accuracy of free-running output, not of a teacher-forced decoder: one missing word
    shifts all that follow. Of several references, the best match counts.
    """
    rows = [
        max((_matching_positions(prediction, text) for text in texts), key=_share)
        for prediction, texts in zip(predictions, reference_lists(predictions, references), strict=True)
    ]
    return Statistics(np.array(rows, dtype=np.float64), _share)


def distinct(predictions: Sequence[str], references: Sequence[Any], n: int) -> dict[str, float]:
    """Share, 0 to 1, of distinct n-grams among all n-grams of the predictions (Li et al. 2016); 0 if there are none.

    Words are separated by white space, and n-grams stay within a prediction. References are not used.
    """
    check_pairs(predictions, references)
    total, distinct_ngrams = 0, set()
    for text in predictions:
        words = text.split()
        ngrams = [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]
        total += len(ngrams)
        distinct_ngrams.update(ngrams)
    return {"score": len(distinct_ngrams) / max(1, total)}


def _corpus_statistics(metric: Metric, predictions: Sequence[str], references: list[list[str]]) -> Statistics:
    # sacrebleu's own significance tests are built on these two private methods.
    rows = metric._extract_corpus_statistics(predictions, _reference_streams(references))
    return Statistics(
        rows=np.array(rows, dtype=np.float64),
        score_of_sum=lambda total: metric._compute_score_from_stats(total).score,
        signature=str(metric.get_signature()),
    )


def _reference_streams(references: list[list[str]]) -> list[list[str | None]]:
    """References in sacrebleu's layout: all first ones, all second ones; None where an example has fewer."""
    return [list(stream) for stream in zip_longest(*references)]


def _has_4grams(references: list[list[str]], options: dict[str, Any]) -> bool:
    if any(len(text.split()) >= 4 for texts in references for text in texts):
        return True  # every tokenization splits further, none joins words
    perfect = [max(texts, key=len) for texts in references]
    return sacrebleu.metrics.BLEU(**options).corpus_score(perfect, _reference_streams(references)).score > 0


def _matching_positions(prediction: str, reference: str) -> tuple[int, int]:
    """(positions with the same word, positions)"""
    predicted, expected = prediction.split(), reference.split()
    matching = sum(word == other for word, other in zip(predicted, expected, strict=False))
    return matching, max(len(predicted), len(expected))


def _share(statistics: Sequence[float] | np.ndarray) -> float:
    matching, positions = statistics
    return float(matching / positions) if positions else 1.0  # an empty output for an empty reference is right
