"""Questions about texts: windows lose no answer, and what the pipeline finds stands where it says, in every script."""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from support.standalone import run_without_kit
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    BertConfig,
    BertForQuestionAnswering,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForQuestionAnswering,
)
from transformers import pipeline as stock_pipeline

from kit import pipeline, register
from kit.data.builtin.dates import LANGUAGES, days_of_splits, formats
from kit.pipelines.question_answering import (
    QuestionAnsweringPipeline,
    Window,
    _candidates,
    find_answers,
    max_input_length,
    question_windows,
)
from kit.tasks.question_answering.windows import answer_spans, label_question

DAYS = days_of_splits(0)["train"][:9]
TEXTS = {
    language: " ".join(style.write(day) + "." for style in formats(language)[:4] for day in DAYS[:3])
    for language in LANGUAGES
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def train_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of one of the kinds that there are, trained on dates in many scripts."""
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    elif kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=600, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
        )
    tokenizer.train_from_iterator(TEXTS.values(), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


TOKENIZERS = {kind: train_tokenizer(kind) for kind in ("wordpiece", "bytes", "metaspace")}


def tiny_model(**settings_of_config: Any) -> BertForQuestionAnswering:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=600,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=1.0,  # so that answers differ
        **settings_of_config,
    )
    return BertForQuestionAnswering(config).eval()


@pytest.fixture(scope="module")
def pipe() -> QuestionAnsweringPipeline:
    return pipeline("question-answering", model=tiny_model(), tokenizer=TOKENIZERS["wordpiece"])  # type: ignore[return-value]


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60) | st.sampled_from(
    [*TEXTS.values(), "e\u0301 ﬁ ß İ 🧑‍🚀 …", "\u200b\u200d", "\ufeff a"]
)
KIND = st.sampled_from(list(TOKENIZERS))


# ---- windows ---------------------------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(TEXTS)), KIND, st.integers(18, 60), st.integers(0, 20), st.data())
@settings(max_examples=300, deadline=None)
def test_no_answer_that_fits_is_lost(
    language: str, kind: str, max_seq_len: int, stride: int, data: st.DataObject
) -> None:
    tokenizer, context = TOKENIZERS[kind], TEXTS[language]
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
        assert labeled.lost  # of a space there are no tokens
        return
    tokens = span[1] - span[0] + 1
    if tokens <= min(stride, room // 2) + 1:
        assert not labeled.lost
    for window, first, last in zip(labeled.windows, labeled.starts, labeled.ends, strict=True):
        assert len(window.inputs["input_ids"]) <= max_seq_len
        if (first, last) != (window.null, window.null):
            # The same characters as in the whole text; of those that have several tokens, a window's end may cut some.
            begin, stop = window.offsets[first], window.offsets[last]
            assert begin[0] == whole.offsets[span[0]][0]
            assert stop[1] == whole.offsets[span[1]][1]
            ids = whole.inputs["input_ids"][span[0] : span[1] + 1]
            if kind != "bytes":
                assert window.inputs["input_ids"][first : last + 1] == ids
    covered = {offset for window in labeled.windows for offset in window.offsets}
    assert covered == set(whole.offsets)


def test_windows_by_hand() -> None:
    tokenizer = TOKENIZERS["wordpiece"]
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


def test_long_questions_are_cut(pipe: QuestionAnsweringPipeline) -> None:
    tokenizer = TOKENIZERS["wordpiece"]
    (window,) = question_windows(tokenizer, "1 2 3 " * 50, "4 5", max_seq_len=20, max_question_len=7)
    assert len(window.inputs["input_ids"]) == 7 + 3 + 2
    with pytest.raises(ValueError, match="max_seq_len 10 leaves no room for the text beside a question of 9 tokens"):
        question_windows(tokenizer, "1 2 3 " * 3, "4 5", max_seq_len=10)
    with pytest.raises(ValueError, match=r"max_seq_len 65 is more than the model can read \(64\)"):
        pipe(question="a", context="b", max_seq_len=65)


# ---- answers ---------------------------------------------------------------------------------------------------------


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
def test_the_best_answers_are_those_of_trying_all(
    kind: str, language: str, top_k: int, longest: int, seed: int
) -> None:
    context = TEXTS[language][:60]
    windows = question_windows(TOKENIZERS[kind], "2 ?", context, max_seq_len=16, doc_stride=3)
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
def test_a_model_that_is_sure_gives_the_answer_it_was_trained_on(kind: str, language: str, data: st.DataObject) -> None:
    """From a row to labels, from labels to logits, and back to the text: the same characters."""
    tokenizer, context = TOKENIZERS[kind], TEXTS[language]
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
    tokenizer, context = TOKENIZERS["wordpiece"], TEXTS["en"]
    windows = question_windows(tokenizer, "2 ?", context, max_seq_len=16, doc_stride=0)
    assert len(windows) > 3
    random = torch.Generator().manual_seed(0)
    starts, ends = ([torch.randn(len(window.offsets), generator=random) for window in windows] for _ in "se")
    for side in (starts, ends):
        side[1][_candidates(windows[1])[1]] = 9.0
    alone = find_answers(context, windows[1:2], starts[1:2], ends[1:2], align_to_words=False).best[0]
    assert find_answers(context, windows, starts, ends, align_to_words=False).best[0] == alone
    assert alone["score"] > 0.9


def test_windows_may_be_as_long_as_the_positions_of_the_model(pipe: QuestionAnsweringPipeline) -> None:
    """The length that the tokenizer saves is that of the training windows."""
    shorter = copy.deepcopy(pipe.tokenizer)
    shorter.model_max_length = 20
    assert max_input_length(pipe.model, shorter) == max_input_length(pipe.model, pipe.tokenizer) == 64


def test_scores_are_those_of_transformers_4(pipe: QuestionAnsweringPipeline) -> None:
    """Of one window: the product of the softmax of start and of end over the text and [CLS]."""
    context = "May 5, 2030 and June 7"
    batch = pipe.tokenizer("when ?", context, return_tensors="pt")
    with torch.no_grad():
        output = pipe.model(**batch)
    allowed = [n == 0 or side == 1 for n, side in enumerate(batch.sequence_ids(0))]
    start, end = (
        logits[0].masked_fill(~torch.tensor(allowed), -math.inf).softmax(0)
        for logits in (output.start_logits, output.end_logits)
    )
    outer = (start[:, None] * end).triu().tril(14)
    outer[0] = 0  # [CLS] is no part of an answer
    first, last = divmod(int(outer.argmax()), len(start))
    answer = pipe(question="when ?", context=context, align_to_words=False)
    assert answer["score"] == pytest.approx(float(outer.max()), rel=1e-5)
    assert answer["start"] == batch.token_to_chars(0, first).start
    assert answer["end"] == batch.token_to_chars(0, last).end
    none = pipe(question="when ?", context=context, handle_impossible_answer=True, null_threshold=-1e9)
    assert none == {"score": pytest.approx(float(start[0] * end[0]), rel=1e-5), "start": 0, "end": 0, "answer": ""}


@given(ANY_TEXT.filter(str.strip), ANY_TEXT.filter(str.strip), KIND, st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_offsets_index_the_context(question: str, context: str, kind: str, align: bool, impossible: bool) -> None:
    ours = QuestionAnsweringPipeline(model=MODEL, tokenizer=TOKENIZERS[kind], task="question-answering")
    answers = ours(
        question=question,
        context=context,
        top_k=3,
        max_seq_len=40,
        doc_stride=5,
        max_question_len=10,
        align_to_words=align,
        handle_impossible_answer=impossible,
    )
    assert 1 <= len(answers) <= 3
    for answer in answers:
        assert context[answer["start"] : answer["end"]] == answer["answer"]
        assert answer["answer"] == answer["answer"].strip()
        assert 0 <= answer["score"] <= 1
    assert len({(answer["start"], answer["end"]) for answer in answers}) == len(answers)


MODEL = tiny_model()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language(language: str, pipe: QuestionAnsweringPipeline) -> None:
    context = TEXTS[language]
    for align in (False, True):
        answer = pipe(question=context[:20], context=context, align_to_words=align)
        assert answer["answer"]
        assert context[answer["start"] : answer["end"]] == answer["answer"]


def test_words_stay_whole(pipe: QuestionAnsweringPipeline) -> None:
    context = "Donaudampfschifffahrtsgesellschaftskapitän " * 4
    for answer in pipe(question="wer ?", context=context, top_k=5, max_seq_len=24, doc_stride=3):
        assert set(answer["answer"].split()) == {"Donaudampfschifffahrtsgesellschaftskapitän"}


def test_no_answer(pipe: QuestionAnsweringPipeline) -> None:
    """The threshold decides; one in the model's config.json is used without being asked for."""
    call = {"question": "when ?", "context": TEXTS["en"]}
    plain = pipe(**call, top_k=3)
    with_none = pipe(**call, top_k=4, handle_impossible_answer=True, null_threshold=1e9)
    assert plain[0] == with_none[0]
    assert [answer for answer in with_none if answer["answer"]][:3] == plain
    assert pipe(**call, handle_impossible_answer=True, null_threshold=-1e9)["answer"] == ""
    tuned = pipeline(
        "question-answering",
        model=tiny_model(question_answering={"null_threshold": -1e9, "max_answer_len": 2}),
        tokenizer=TOKENIZERS["wordpiece"],
    )
    assert tuned(**call)["answer"] == pipe(**call, null_threshold=-1e9)["answer"] == ""
    short = tuned(**call, handle_impossible_answer=False)
    assert short == pipe(**call, max_answer_len=2)
    assert pipe(question="when ?", context="\u200b") == {"score": 0.0, "start": 0, "end": 0, "answer": ""}


# ---- calls -----------------------------------------------------------------------------------------------------------


@dataclass
class Example:
    question_text: str
    context_text: str


def test_shapes_of_calls(pipe: QuestionAnsweringPipeline) -> None:
    rows = [{"question": f"{n} ?", "context": TEXTS[language]} for n, language in enumerate(("en", "de", "ja", "ar"))]
    each = [pipe(**row) for row in rows]
    assert set(each[0]) == {"score", "start", "end", "answer"}
    assert pipe(rows[0]) == pipe(rows[0]["question"], rows[0]["context"]) == each[0]
    assert pipe(Example(rows[0]["question"], rows[0]["context"])) == each[0]
    assert pipe(rows) == pipe(*rows) == pipe(tuple(rows)) == each
    assert pipe([Example(row["question"], row["context"]) for row in rows]) == each
    columns = {name: [row[name] for row in rows] for name in ("question", "context")}
    assert pipe(**columns) == pipe(Dataset.from_dict(columns)) == each
    assert pipe(rows[:1]) == each[:1]
    assert pipe([]) == []
    broadcast = pipe(question=["0 ?", "1 ?"], context=rows[0]["context"])
    assert broadcast == [each[0], pipe(question="1 ?", context=rows[0]["context"])]

    def stream() -> Iterator[dict[str, str]]:
        yield from rows

    assert list(pipe(stream())) == each
    for size in (2, 3, 64):
        for actual, expected in zip(pipe(rows, batch_size=size, top_k=2), pipe(rows, top_k=2), strict=True):
            assert [answer["answer"] for answer in actual] == [answer["answer"] for answer in expected]
            assert [answer["score"] for answer in actual] == pytest.approx(
                [answer["score"] for answer in expected], rel=1e-4
            )
    lists = pipe(rows, top_k=2)
    assert all(len(answers) == 2 for answers in lists)
    assert [answers[0] for answers in lists] == each


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"question": "a"}, "takes question= with context="),
        ({"question": "a", "context": ["b"]}, "takes question= with context="),
        ({"question": ["a"], "context": ["b", "c"]}, "1 questions and 2 contexts"),
        ({"question": " ", "context": "b"}, "the question of this example is empty"),
        ({"question": "a", "context": ""}, "the context of this example is empty"),
        ({"question": ["a"], "context": [None]}, "the context of this example is not a text: None"),
        ({"question": "a", "context": "b", "top_k": 0}, "top_k must be at least 1, not 0"),
        ({"question": "a", "context": "b", "max_answer_len": 0}, "max_answer_len must be at least 1"),
    ],
)
def test_mistakes_are_named(pipe: QuestionAnsweringPipeline, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipe(**arguments)


def test_padding_on_the_left() -> None:
    """As models have it whose positions are relative; this one has none, so that padding cannot shift them."""
    tokenizer, model = train_tokenizer("wordpiece"), tiny_model()
    tokenizer.padding_side = "left"
    torch.nn.init.zeros_(model.bert.embeddings.position_embeddings.weight)
    left = pipeline("question-answering", model=model, tokenizer=tokenizer)
    rows = [{"question": f"{n} ?", "context": TEXTS[language]} for n, language in enumerate(("en", "de", "ja"))]
    batched = left(rows, batch_size=4)
    assert [answer["answer"] for answer in batched] == [left(row)["answer"] for row in rows]


def test_positions_behind_the_padding_token() -> None:
    config = RobertaConfig(
        vocab_size=600,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=34,
        pad_token_id=0,
        type_vocab_size=2,
    )
    ours = pipeline(
        "question-answering", model=RobertaForQuestionAnswering(config).eval(), tokenizer=TOKENIZERS["bytes"]
    )
    assert ours.max_length == 33
    assert ours(question="when ?", context=TEXTS["ta"])["answer"] in TEXTS["ta"]


# ---- folders ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import json
from transformers import pipeline

pipe = pipeline("question-answering", model=sys.argv[1], trust_remote_code=True)
rows = json.loads(sys.argv[2])
found = pipe(rows, top_k=2)
pipe.save_pretrained("again")
assert pipeline("question-answering", model="again", trust_remote_code=True)(rows, top_k=2) == found
print(json.dumps(found))
"""


def test_a_folder_answers_without_kit(tmp_path: Path) -> None:
    """The folder of a pipeline: with kit, as a stock pipeline after `register`, and in a process without kit."""
    model = tiny_model(question_answering={"null_threshold": 0.5, "doc_stride": 7})
    ours = pipeline("question-answering", model=model, tokenizer=TOKENIZERS["wordpiece"])
    rows = [{"question": "when ?", "context": TEXTS[language]} for language in ("en", "ja")]
    expected = ours(rows, top_k=2)
    ours.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "question_answering.py").is_file()
    assert pipeline("question-answering", model=tmp_path / "model")(rows, top_k=2) == expected
    register()
    loaded = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "model")
    del loaded.config.custom_pipelines  # a model object that kit registered needs no code from its folder
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert stock_pipeline("question-answering", model=loaded, tokenizer=tokenizer)(rows, top_k=2) == expected

    printed = run_without_kit(PROGRAM, tmp_path, tmp_path / "model", json.dumps(rows))
    assert json.loads(printed.splitlines()[-1]) == expected
