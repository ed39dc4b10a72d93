"""The overlap of splits with training data is the same in `kit data`, the log, the results and the card."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from support.labeling_runs import write_rows
from support.recipes import make_recipe, write_recipe

from kit.runs.prepare import prepare

Row = dict[str, Any]


def shared(rows: Sequence[Row], train: Sequence[Row], parts: Callable[[Row], Any]) -> int:
    """The number of rows whose parts occur in a training row, counted by hand."""
    known = {json.dumps(parts(row)) for row in train}
    return sum(json.dumps(parts(row)) in known for row in rows)


def test_overlap_counts_agree_everywhere(tmp_path: Path, kit_here: RunKit) -> None:
    pairs = [("a", "x"), ("b", "x"), ("c", "z"), ("d", "y"), ("e e e e e e", "q")] * 3
    train = [{"source": source, "target": target} for source, target in pairs]
    test_pairs = [("a", "x"), ("b", "y"), ("f", "z"), ("g", "q"), ("h", "w"), ("e e e e e e", "w")]
    test = [{"source": source, "target": target} for source, target in test_pairs]
    data = write_rows(tmp_path / "data", train=train, validation=test[3:5], test=test)
    recipe = write_recipe(
        tmp_path, "translation", data={"path": str(data), "max_length": 8},
        train={"max_steps": 2, "batch_size": 8, "learning_rate": 1e-3}, eval={"steps": 0, "max_new_tokens": 4},
    )  # fmt: skip
    # "e e e e e e" is left out of train, and "q" with it
    expected = "test: 2 of 6 examples have the same source as one of train, 3 the same target, 1 are equal to one"
    done = kit_here("train", recipe, "--output", "run")
    assert done.returncode == 0, done.stderr
    assert f"  {expected}\n" in done.stderr
    assert "validation: " not in "".join(line for line in done.stderr.splitlines() if "of train" in line)
    notes = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["data"]["notes"]
    assert notes.count(expected) == 1
    assert expected in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    report = kit_here("data", recipe)
    assert report.returncode == 0, report.stderr
    for side, count in (("source", 2), ("target", 3), ("whole example", 1)):
        assert re.search(rf"test: {side} also in train +{count} ", report.stdout), side
        assert re.search(rf"validation: {side} also in train +0 ", report.stdout), side
    assert "test: 2 of 6 examples have the same source as one of train, so" in " ".join(report.stdout.split())


LABELED = [
    {"text": text, "other": other, "label": label}
    for text, other, label in [("a", "b", "x"), ("a", "c", "y"), ("d", "b", "x"), ("e", "f", "y")]
]
OTHER_PAIRS = [
    {"text": text, "other": other, "label": label}
    for text, other, label in [("a", "b", "x"), ("a", "c", "x"), ("a", "f", "y"), ("d", "d", "x")]
]


def test_the_input_of_a_pair_is_both_texts(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data", train=LABELED * 2, validation=OTHER_PAIRS)
    data = {"path": str(path), "text_pair": "other"}
    ready = prepare(make_recipe(tmp_path, "classification", data, eval={"steps": 0}))
    duplicates, overlaps = ready.duplicates
    assert duplicates.count == 4
    overlap = overlaps["validation"]
    assert overlap.inputs == shared(OTHER_PAIRS, LABELED, lambda row: [row["text"], row["other"]]) == 2
    assert overlap.whole == shared(OTHER_PAIRS, LABELED, lambda row: row) == 1
    assert overlap.input_example == ("a", "c", "x")  # an example that differs in its label
    assert "2 of 4 examples have the same text and text_pair as one of train, 1 are equal" in ready.summary()[-3]


def test_questions_are_compared_without_their_ids(tmp_path: Path) -> None:
    def row(number: int, question: str, context: str) -> Row:
        return {"id": str(number), "question": question, "context": context,
                "answers": {"text": [context[:1]], "answer_start": [0]}}  # fmt: skip

    train = [
        row(1, "who?", "a b c d"),
        row(2, "when?", "a b c d"),
        row(3, "who?", "e f g h"),
        row(4, "who?", "a b c d"),
    ]
    other = [row(5, "who?", "a b c d"), row(6, "where?", "a b c d"), row(7, "when?", "e f g h")]
    path = write_rows(tmp_path / "data", train=train, validation=other)
    data = {"path": str(path), "max_length": 32, "doc_stride": 4, "max_question_length": 12}
    duplicates, overlaps = prepare(make_recipe(tmp_path, "question_answering", data)).duplicates
    assert (duplicates.count, overlaps["validation"].inputs, overlaps["validation"].whole) == (1, 1, 1)
    again = prepare(make_recipe(tmp_path / "b", "question_answering", {**data, "drop_duplicates": True}))
    assert again.splits.report.splits["train"].dropped["duplicate"] == 1


def test_replies_are_compared_and_not_dialogues(tmp_path: Path) -> None:
    train = [{"turns": ["a", "b", "c", "d"]}, {"turns": ["e", "f"]}] * 4
    other = [{"turns": ["a", "b", "c", "x"]}, {"turns": ["g", "f"]}]
    path = write_rows(tmp_path / "data", train=train, validation=other)
    ready = prepare(make_recipe(tmp_path, "dialogue", {"path": str(path)}))
    overlap = ready.duplicates[1]["validation"]
    # a → b, a b → c and a b c → x; g → f
    assert (overlap.examples, overlap.inputs, overlap.targets, overlap.whole) == (4, 3, 3, 2)


def test_a_source_in_another_direction_is_another_input(tmp_path: Path) -> None:
    for split, lines in {"train": {"de": "ja nein", "en": "yes no", "fr": "oui non"},
                         "validation": {"de": "ja wer", "en": "yes who", "fr": "si qui"}}.items():  # fmt: skip
        for language, words in lines.items():
            (tmp_path / f"{split}.{language}").write_text("".join(f"{word}\n" for word in words.split()))
    data = {"path": str(tmp_path), "directions": ["de-en", "de-fr"]}
    train = {"max_steps": 1, "batch_size": 2}
    overlap = prepare(make_recipe(tmp_path / "r", "translation", data, train=train)).duplicates[1]["validation"]
    assert (overlap.examples, overlap.inputs, overlap.targets, overlap.whole) == (4, 2, 1, 1)


@pytest.mark.parametrize("task", ["causal_lm", "tagging", "dialogue", "captioning", "forecasting", "masked_lm"])
def test_every_task_compares_its_splits(task: str, tmp_path: Path) -> None:
    overlaps = prepare(make_recipe(tmp_path, task)).duplicates[1]
    assert set(overlaps) == {"validation", "test"}
    for overlap in overlaps.values():
        assert overlap.examples > 0
        assert overlap.whole <= overlap.inputs <= overlap.examples
