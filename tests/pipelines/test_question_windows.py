"""Windows over long texts: they lose no answer, and the best answers are those of trying every part of the text."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.question_answering import KINDS, TEXTS, tokenizer_of

from kit.pipelines.question_answering import Window, _candidates, find_answers, question_windows
from kit.tasks.question_answering.windows import answer_spans, label_question

KIND = st.sampled_from(KINDS)


@given(st.sampled_from(sorted(TEXTS)), KIND, st.integers(18, 60), st.integers(0, 20), st.data())
@settings(max_examples=300, deadline=None)
def test_no_answer_that_fits_is_lost(
    language: str, kind: str, max_seq_len: int, stride: int, data: st.DataObject
) -> None:
    tokenizer, context = tokenizer_of(kind), TEXTS[language]
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, min(len(context), start + 30)))
    row = {
        "question": "wann, 何時?",
        "context": context,
        "answers": {"text": [context[start:end]], "answer_start": [start]},
    }
    labeled = label_question(row, tokenizer, max_seq_len, stride, max_question_len=6)
    (whole,) = question_windows(tokenizer, row["question"], context, 10**6, 0, 6)
    (span,) = answer_spans([whole], start, end)
    room = max_seq_len - sum(offset is None for offset in labeled.windows[0].offsets)
    if span is None:
        assert labeled.lost  # a space has no tokens
        return
    tokens = span[1] - span[0] + 1
    if tokens <= min(stride, room // 2) + 1:
        assert not labeled.lost
    for window, first, last in zip(labeled.windows, labeled.starts, labeled.ends, strict=True):
        assert len(window.inputs["input_ids"]) <= max_seq_len
        if (first, last) != (window.null, window.null):
            # The same characters as in the whole text; a window may end within a character of several tokens.
            begin, stop = window.offsets[first], window.offsets[last]
            assert begin[0] == whole.offsets[span[0]][0]
            assert stop[1] == whole.offsets[span[1]][1]
            ids = whole.inputs["input_ids"][span[0] : span[1] + 1]
            if kind != "bytes":
                assert window.inputs["input_ids"][first : last + 1] == ids
    covered = {offset for window in labeled.windows for offset in window.offsets}
    assert covered == set(whole.offsets)


def test_windows_by_hand() -> None:
    tokenizer = tokenizer_of("wordpiece")
    context = "1 2 3 4 5 6 7 8 9"
    row = {"question": "4 ?", "context": context, "answers": {"text": ["", "5 6"], "answer_start": [0, 8]}}
    labeled = label_question(row, tokenizer, max_seq_len=9, doc_stride=2)  # four beside the question and three marks
    shown = [[context[slice(*offset)] for offset in window.offsets if offset] for window in labeled.windows]
    assert shown == [list("1234"), list("3456"), list("5678"), list("789")]
    null = labeled.windows[0].null
    assert null == 0
    assert list(zip(labeled.starts, labeled.ends, strict=True)) == [(0, 0), (6, 7), (4, 5), (0, 0)]
    assert labeled.windows[0].inputs["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert label_question(row | {"answers": {"text": [], "answer_start": []}}, tokenizer).lost is False
    long = row | {"answers": {"text": [context], "answer_start": [0]}}
    assert label_question(long, tokenizer, max_seq_len=9, doc_stride=2).lost
    assert not label_question(long, tokenizer).lost


def by_hand(
    context: str, windows: list[Window], starts: list[torch.Tensor], ends: list[torch.Tensor], longest: int
) -> dict[tuple[int, int], float]:
    """The best logits of every part of the text, one after the other."""
    best: dict[tuple[int, int], float] = {}
    for window, start, end in zip(windows, starts, ends, strict=True):
        for first, begin in enumerate(window.offsets):
            for last, stop in enumerate(window.offsets):
                if begin and stop and first <= last < first + longest and context[begin[0] : stop[1]].strip():
                    text = context[begin[0] : stop[1]]
                    left = begin[0] + len(text) - len(text.lstrip())
                    span = left, left + len(text.strip())
                    best[span] = max(best.get(span, -math.inf), float(start[first] + end[last]))
    return best


@given(KIND, st.sampled_from(sorted(TEXTS)), st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_best_answers_equal_exhaustive_search(kind: str, language: str, top_k: int, longest: int, seed: int) -> None:
    context = TEXTS[language][:60]
    windows = question_windows(tokenizer_of(kind), "2 ?", context, max_seq_len=16, doc_stride=3)
    chance = torch.Generator().manual_seed(seed)
    starts, ends = (
        [torch.randn(len(window.offsets), generator=chance, dtype=torch.float64) for window in windows] for _ in "se"
    )
    expected = by_hand(context, windows, starts, ends, longest)
    answers = find_answers(context, windows, starts, ends, top_k, longest, align_to_words=False)
    ranked = sorted(expected, key=lambda span: -expected[span])[:top_k]
    assert [(answer["start"], answer["end"]) for answer in answers.best] == ranked
    nulls = [float(start[0] + end[0]) for start, end in zip(starts, ends, strict=True)]
    assert answers.null_score == pytest.approx(min(nulls) - expected[ranked[0]])
    # probabilities within a window that holds the answer, or the lowest logits of no answer
    totals = [sum(float(side[_candidates(window)].logsumexp(0)) for side in sides)
              for window, *sides in zip(windows, starts, ends, strict=True)]  # fmt: skip
    logits = [by_hand(context, [window], [start], [end], longest) for window, start, end in
              zip(windows, starts, ends, strict=True)]  # fmt: skip
    for answer in answers.best:
        span = answer["start"], answer["end"]
        scores = [math.exp(expected[span] - total) for total, of_window in zip(totals, logits, strict=True)
                  if of_window.get(span) == expected[span]]  # fmt: skip
        assert any(answer["score"] == pytest.approx(score) for score in scores)
    assert answers.null_probability == pytest.approx(math.exp(min(nulls) - totals[nulls.index(min(nulls))]))
    assert answers.null_rank == sum(expected[span] >= min(nulls) for span in ranked)


@given(KIND, st.sampled_from(sorted(TEXTS)), st.data())
@settings(max_examples=100, deadline=None)
def test_confident_model_returns_the_labeled_answer(kind: str, language: str, data: st.DataObject) -> None:
    """From a row to labels, from labels to logits, and back to the text: the same characters."""
    tokenizer, context = tokenizer_of(kind), TEXTS[language]
    (whole,) = question_windows(tokenizer, "2 ?", context, 10**6)
    offsets = [offset for offset in whole.offsets if offset]
    first = data.draw(st.integers(0, len(offsets) - 1))
    start, end = offsets[first][0], offsets[min(first + data.draw(st.integers(0, 5)), len(offsets) - 1)][1]
    row = {"question": "2 ?", "context": context, "answers": {"text": [context[start:end]], "answer_start": [start]}}
    labeled = label_question(row, tokenizer, max_seq_len=30, doc_stride=8)
    assert not labeled.lost
    sides = []
    for labels in (labeled.starts, labeled.ends):
        logits = [torch.zeros(len(window.offsets)) for window in labeled.windows]
        for side, label in zip(logits, labels, strict=True):
            side[label] = 9.0
        sides.append(logits)
    answers = find_answers(context, labeled.windows, *sides, align_to_words=False)
    # A token of bytes may reach into the next character.
    (span,) = answer_spans([whole], start, end)
    assert span is not None
    start, end = whole.offsets[span[0]][0], whole.offsets[span[1]][1]  # type: ignore[index]
    text = context[start:end]
    if text.strip():
        assert answers.best[0]["answer"] == text.strip()
        assert answers.best[0]["start"] == start + len(text) - len(text.lstrip())
        assert answers.null_score < 0 or len(labeled.windows) == 1


def test_scores_do_not_shrink_with_the_length_of_the_text() -> None:
    """The same window has the same score alone and amid windows without an answer; ranks follow the logits."""
    tokenizer, context = tokenizer_of("wordpiece"), TEXTS["en"]
    windows = question_windows(tokenizer, "2 ?", context, max_seq_len=16, doc_stride=0)
    assert len(windows) > 3
    random = torch.Generator().manual_seed(0)
    starts, ends = ([torch.randn(len(window.offsets), generator=random) for window in windows] for _ in "se")
    for side in (starts, ends):
        side[1][_candidates(windows[1])[1]] = 9.0
    alone = find_answers(context, windows[1:2], starts[1:2], ends[1:2], align_to_words=False).best[0]
    assert find_answers(context, windows, starts, ends, align_to_words=False).best[0] == alone
    assert alone["score"] > 0.9
