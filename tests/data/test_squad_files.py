"""SQuAD files: every answer starts where its offset says, or is not in the context; other files are rejected."""

import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.data.formats.layout import Layout
from kit.data.formats.reader import read_table
from kit.data.formats.squad import IGNORED_ANSWERS, MOVED, NOT_IN_CONTEXT, WITHOUT_ANSWER, locate_answer
from kit.data.formats.tables import FileTable
from kit.errors import DataError

CONTEXT = "Zoë met Bo in 1990. Bo left — in 1991 — for 東京."


def answer(text: str, start: int) -> dict[str, Any]:
    return {"text": text, "answer_start": start}


def question(key: Any, *answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": key, "question": f"Question {key}?", "answers": list(answers), **more}


def squad(*questions: dict[str, Any], context: str = CONTEXT) -> dict[str, Any]:
    return {"version": "v2.0", "data": [{"title": "Zoë", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def read(path: Path, content: Any, **format: Any) -> FileTable:
    path.write_text(json.dumps(content, **format), encoding="utf-8")
    return read_table(path, Layout())


def test_both_versions_are_read(tmp_path: Path) -> None:
    first = squad(question("a", answer("Bo", 8), answer("Bo in 1990", 8)))
    second = squad(
        question("b", answer("東京", CONTEXT.index("東")), is_impossible=False), question(7, is_impossible=True)
    )
    second["data"][0]["paragraphs"][0]["qas"][1]["plausible_answers"] = [answer("Bo", 8)]
    rows = read(tmp_path / "a.json", first).table.to_pylist()
    assert rows == [
        {
            "id": "a",
            "title": "Zoë",
            "context": CONTEXT,
            "question": "Question a?",
            "answers": {"text": ["Bo", "Bo in 1990"], "answer_start": [8, 8]},
            "is_impossible": False,
        }
    ]
    for settings_of_json in ({}, {"indent": 1}, {"ensure_ascii": False}, {"sort_keys": True}):
        file = read(tmp_path / "a.json", second, **settings_of_json)
        assert file.table["is_impossible"].to_pylist() == [False, True]
        assert file.table["id"].to_pylist() == ["b", "7"]
        assert file.table["answers"].to_pylist()[1] == {"text": [], "answer_start": []}
        assert not file.dropped
        assert not file.flagged
    packed = tmp_path / "b.json.gz"
    packed.write_bytes(gzip.compress("\ufeff".encode() + json.dumps(second).encode()))
    assert read_table(packed, Layout()).table.num_rows == 2


def test_answers_with_wrong_offsets_are_moved_and_counted(tmp_path: Path) -> None:
    file = read(
        tmp_path / "a.json",
        squad(
            question("near", answer("Bo", 17)),
            question("bytes", answer("in 1991", CONTEXT.encode().index(b"in 1991"))),
            question("far", answer("1990", 900), answer("1990", -3)),
            question("spaces", answer(" Bo\n", 8)),
            question("nowhere", answer("Ann", 10**30)),
            question("half", answer("Ann", 3), answer("Bo", 8)),
            question("empty", answer("", 3)),
            question("right", answer("Bo", 8)),
            question("none", is_impossible=False),
            question("odd", answer("Bo", 8), is_impossible=True),
        ),
    )
    rows = {row["id"]: row for row in file.table.to_pylist()}
    starts = {key: row["answers"]["answer_start"] for key, row in rows.items()}
    assert starts == {
        "near": [20],
        "bytes": [CONTEXT.index("in 1991")],
        "far": [14, 14],
        "spaces": [8],
        "nowhere": [NOT_IN_CONTEXT],
        "half": [NOT_IN_CONTEXT, 8],
        "empty": [NOT_IN_CONTEXT],
        "right": [8],
        "none": [],
        "odd": [],
    }
    assert rows["spaces"]["answers"]["text"] == ["Bo"]
    assert rows["odd"]["is_impossible"]
    assert rows["half"]["answers"]["text"] == ["Ann", "Bo"]
    assert not file.dropped
    assert file.flagged == {MOVED: 4, WITHOUT_ANSWER: 1, IGNORED_ANSWERS: 1}


@given(st.text("ab ", min_size=1, max_size=12), st.text("ab ", max_size=3), st.integers(-5, 20))
@settings(max_examples=300, deadline=None)
def test_the_nearest_occurrence_is_used(context: str, text: str, start: int) -> None:
    located = locate_answer(context, text, start)
    expected = text if text and text in context else text.strip()
    positions = [position for position in range(len(context)) if expected and context.startswith(expected, position)]
    if not positions:
        assert located is None
    else:
        assert located is not None
        assert located[0] == expected
        assert located[1] in positions
        assert abs(located[1] - start) == min(abs(position - start) for position in positions)


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    whole = squad(question("a", answer("Bo", 8)))
    replaced = change(whole["data"][0])
    return whole if replaced is None else replaced


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": [3]}, r'a.json, article 1: expected an object with "title", got 3'),
        ({"data": []}, "a.json has no questions"),
        (changed(lambda article: article.pop("paragraphs") and None), r'article 1 \("Zoë"\): "paragraphs" is missing'),
        (changed(lambda article: article.update(title=3)), 'article 1: "title" has a different type than in SQuAD: 3'),
        (
            changed(lambda article: article["paragraphs"][0].pop("context") and None),
            'paragraph 1: "context" is missing',
        ),
        (changed(lambda article: article["paragraphs"][0]["qas"].append({})), 'question 2: "id" is missing. It has no'),
        (
            changed(lambda article: article["paragraphs"][0]["qas"].append(question("a"))),
            r'question 2: the id "a" is already used by article 1 \("Zoë"\), paragraph 1, question 1',
        ),
        (squad(question("a", answer("Bo", "8"))), '"answer_start" has a different type than in SQuAD: "8"'),  # type: ignore[arg-type]
        (squad(question("a", answer("Bo", True))), '"answer_start" has a different type than in SQuAD: true'),
        (squad(question("a", is_impossible="no")), '"is_impossible" has a different type than in SQuAD: "no"'),
        (squad({"id": "a", "question": "?", "answers": {"text": "Bo"}}), '"answers" has a different type than in'),
    ],
)
def test_a_file_of_another_structure_is_rejected_with_the_location(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.json", content)


def test_invalid_json_is_rejected_with_its_line(tmp_path: Path) -> None:
    text = json.dumps(squad(question("a", answer("Bo", 8))), indent=1)
    (tmp_path / "a.json").write_text(text[:-20], encoding="utf-8")
    with pytest.raises(DataError, match=r"a.json, line \d\d, column \d+: invalid JSON"):
        read_table(tmp_path / "a.json", Layout())
    (tmp_path / "a.json").write_text('{"data": ' + "[" * 100_000, encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.json"):
        read_table(tmp_path / "a.json", Layout())
    (tmp_path / "a.json").write_text('{"data": [', encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.columns has no effect"):
        read_table(tmp_path / "a.json", Layout(columns=["a"]))


def test_undecodable_questions_are_counted(tmp_path: Path) -> None:
    whole = squad(*(question(n, answer("Bo", 8)) for n in range(30)), question("\ud800", answer("Bo", 8)))
    file = read(tmp_path / "a.json", whole)
    assert file.dropped == {"undecodable": 1}
    assert file.table.num_rows == 30


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 3) | st.text("aB\ud800", max_size=2),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["paragraphs", "qas", "context", "id", "question", "answers", "text", "answer_start"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_read_or_rejected_with_one_message(tmp_path: Path, inside: Any) -> None:
    with suppress(DataError):
        read(tmp_path / "a.json", {"data": inside if isinstance(inside, list) else [inside]})
