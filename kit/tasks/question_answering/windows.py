"""Questions and answers as examples to train on: windows of the text, with the tokens where the answer starts and ends.

The windows are those of the pipeline, so that a model is asked in training what it will be asked later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from kit.pipelines.question_answering import DEFAULTS, Window, question_windows


@dataclass(frozen=True)
class LabelledQuestion:
    """The windows of a question and where its answer is in each: at the null token where it is not, or not whole."""

    windows: list[Window]
    starts: list[int]
    ends: list[int]
    lost: bool
    """Whether there is an answer, and no window has all of it."""


def label_question(
    row: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_len: int = DEFAULTS["max_seq_len"],
    doc_stride: int = DEFAULTS["doc_stride"],
    max_question_len: int = DEFAULTS["max_question_len"],
) -> LabelledQuestion:
    """The windows of a row with `question`, `context` and `answers`, labeled by its first answer that is not lost.

    No answer is lost that has tokens, and no more than the windows have in common and one.
    """
    windows = question_windows(tokenizer, row["question"], row["context"], max_seq_len, doc_stride, max_question_len)
    nulls = [window.null for window in windows]
    pairs = list(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True))
    for text, start in pairs:
        places = answer_places(windows, start, start + len(text))
        if any(place is not None for place in places):
            labels = [place or (null, null) for place, null in zip(places, nulls, strict=True)]
            return LabelledQuestion(windows, [first for first, _ in labels], [last for _, last in labels], lost=False)
    return LabelledQuestion(windows, nulls, nulls, lost=bool(pairs))


def answer_places(windows: Sequence[Window], start: int, end: int) -> list[tuple[int, int] | None]:
    """For each window the first and the last token of the characters from `start` to `end`; None if it lacks some."""
    touched = [
        [place for place, pair in enumerate(window.offsets) if pair is not None and pair[0] < end and start < pair[1]]
        for window in windows
    ]
    # Together the windows have all tokens: the outermost of them say which characters a whole answer has. Those of the
    # answer itself will not do, since there may be no token for some, such as a space at its end.
    offsets = [window.offsets[place] for window, places in zip(windows, touched, strict=True) for place in places]
    first = min((pair[0] for pair in offsets if pair is not None), default=0)
    last = max((pair[1] for pair in offsets if pair is not None), default=0)
    found: list[tuple[int, int] | None] = []
    for window, places in zip(windows, touched, strict=True):
        own = [pair for place in places if (pair := window.offsets[place]) is not None]
        whole = bool(own) and own[0][0] == first and own[-1][1] == last
        found.append((places[0], places[-1]) if whole else None)
    return found
