"""The windows of a question and its context, labeled with the tokens where the answer starts and ends.

The windows are those of the pipeline, so that a model is trained on the inputs that it gets in inference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from kit.pipelines.question_answering import DEFAULTS, Window, question_windows


@dataclass(frozen=True)
class LabeledQuestion:
    """The windows of a question, and the first and last token of its answer in each: the null token in windows that do
    not contain the whole answer."""

    windows: list[Window]
    starts: list[int]
    ends: list[int]
    lost: bool
    """Whether there is an answer, but no window contains all of it."""


def label_question(
    row: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_len: int = DEFAULTS["max_seq_len"],
    doc_stride: int = DEFAULTS["doc_stride"],
    max_question_len: int = DEFAULTS["max_question_len"],
) -> LabeledQuestion:
    """Divide a row with `question`, `context` and `answers` into windows, labeled with its first answer that is not
    lost.

    An answer with at least one token is never lost if it has at most one token more than the windows overlap.
    """
    windows = question_windows(tokenizer, row["question"], row["context"], max_seq_len, doc_stride, max_question_len)
    nulls = [window.null for window in windows]
    pairs = list(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True))
    for text, start in pairs:
        spans = answer_spans(windows, start, start + len(text))
        if any(span is not None for span in spans):
            labels = [span or (null, null) for span, null in zip(spans, nulls, strict=True)]
            return LabeledQuestion(windows, [first for first, _ in labels], [last for _, last in labels], lost=False)
    return LabeledQuestion(windows, nulls, nulls, lost=bool(pairs))


def answer_spans(windows: Sequence[Window], start: int, end: int) -> list[tuple[int, int] | None]:
    """For each window, the first and the last token of the characters from `start` to before `end`; None if the
    window lacks some of them."""
    overlapping = [
        [token for token, pair in enumerate(window.offsets) if pair is not None and pair[0] < end and start < pair[1]]
        for window in windows
    ]
    # The outermost tokens of all windows define which characters a whole answer has. The characters of the answer
    # itself do not, since some, such as a space at its end, may belong to no token.
    offsets = [window.offsets[token] for window, tokens in zip(windows, overlapping, strict=True) for token in tokens]
    first = min((pair[0] for pair in offsets if pair is not None), default=0)
    last = max((pair[1] for pair in offsets if pair is not None), default=0)
    spans: list[tuple[int, int] | None] = []
    for window, tokens in zip(windows, overlapping, strict=True):
        covered = [pair for token in tokens if (pair := window.offsets[token]) is not None]
        is_whole = bool(covered) and covered[0][0] == first and covered[-1][1] == last
        spans.append((tokens[0], tokens[-1]) if is_whole else None)
    return spans
