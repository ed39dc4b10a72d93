"""The question-answering pipeline: answers are at their offsets in every script, however it is called."""

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
from support.question_answering import KINDS, TEXTS, tiny_model, tokenizer_of
from support.standalone import run_without_kit
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    RobertaConfig,
    RobertaForQuestionAnswering,
)
from transformers import pipeline as stock_pipeline

from kit import pipeline, register
from kit.data.builtin.dates import LANGUAGES
from kit.pipelines.question_answering import (
    QuestionAnsweringPipeline,
    max_input_length,
    question_windows,
)

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60) | st.sampled_from(
    [*TEXTS.values(), "e\u0301 ﬁ ß İ 🧑‍🚀 …", "\u200b\u200d", "\ufeff a"]
)
KIND = st.sampled_from(KINDS)


@pytest.fixture(scope="module")
def pipe() -> QuestionAnsweringPipeline:
    return pipeline("question-answering", model=tiny_model(), tokenizer=tokenizer_of("wordpiece"))  # type: ignore[return-value]


def test_long_questions_are_truncated(pipe: QuestionAnsweringPipeline) -> None:
    tokenizer = tokenizer_of("wordpiece")
    (window,) = question_windows(tokenizer, "1 2 3 " * 50, "4 5", max_seq_len=20, max_question_len=7)
    assert len(window.inputs["input_ids"]) == 7 + 3 + 2
    with pytest.raises(ValueError, match="max_seq_len 10 leaves no room for the text beside a question of 9 tokens"):
        question_windows(tokenizer, "1 2 3 " * 3, "4 5", max_seq_len=10)
    with pytest.raises(ValueError, match=r"max_seq_len 65 is more than the model can read \(64\)"):
        pipe(question="a", context="b", max_seq_len=65)


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
def test_offsets_index_the_context(
    pipe: QuestionAnsweringPipeline, question: str, context: str, kind: str, align: bool, impossible: bool
) -> None:
    ours = QuestionAnsweringPipeline(model=pipe.model, tokenizer=tokenizer_of(kind), task="question-answering")
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
        tokenizer=tokenizer_of("wordpiece"),
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
def test_mistakes_are_reported(pipe: QuestionAnsweringPipeline, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipe(**arguments)


def test_padding_on_the_left() -> None:
    """As models have it whose positions are relative; this one has none, so that padding cannot shift them."""
    tokenizer, model = copy.deepcopy(tokenizer_of("wordpiece")), tiny_model()
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
        "question-answering", model=RobertaForQuestionAnswering(config).eval(), tokenizer=tokenizer_of("bytes")
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


def test_saved_pipeline_answers_without_kit(tmp_path: Path) -> None:
    """The folder of a pipeline: with kit, as a stock pipeline after `register`, and in a process without kit."""
    model = tiny_model(question_answering={"null_threshold": 0.5, "doc_stride": 7})
    ours = pipeline("question-answering", model=model, tokenizer=tokenizer_of("wordpiece"))
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
