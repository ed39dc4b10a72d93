"""Question answering end to end: training, `kit eval` and kit's pipeline agree; unusable data is rejected."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.labeling_runs import recipe, write_rows
from transformers import AutoConfig

from kit import pipeline, train
from kit.errors import DataError, KitError, RecipeError
from kit.runs.evaluate import evaluate
from kit.runs.finished import FinishedRun
from kit.runs.prepare import Prepared, prepare
from kit.tasks.registry import create_task, load_recipe

WINDOWS = {"max_length": 48, "doc_stride": 12, "max_question_length": 12}


def row(number: int, context: str, answer: str | None, question: str = "who?", start: int | None = None) -> Any:
    texts = [] if answer is None else [answer]
    starts = [] if answer is None else [context.find(answer) if start is None else start]
    answers = {"text": texts, "answer_start": starts}
    return {"id": f"q{number}", "title": f"t{number % 3}", "question": question, "context": context, "answers": answers}


ROWS = [row(number, f"Anna met Bo in {1900 + number}.", f"{1900 + number}") for number in range(9)]


def prepared(folder: Path, rows: Any = ROWS, validation: Any = None, **data: Any) -> Prepared:
    splits = {"train": rows} if validation == [] else {"train": rows, "validation": validation or rows}
    path = write_rows(folder / "data", **splits)
    return prepare(recipe(folder, "question_answering", {"path": str(path), **data}))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("questions")
    sizes = {"train": 80, "validation": 10, "test": 10}
    data = {"path": "builtin:date_questions", "languages": ["en"], "sizes": sizes, **WINDOWS}
    sections = {
        "tokenizer": {"train": "wordpiece", "vocab_size": 300, "min_frequency": 1},
        "train": {"max_steps": 12, "save_steps": 4},
        "eval": {"metrics": ["squad_f1", "squad_exact_match"], "metric_for_best_model": "squad_f1", "average": 2},
    }
    return train(recipe(folder, "question_answering", data, **sections), folder / "run")


def test_eval_and_pipeline_match_training(run: FinishedRun) -> None:
    lines = (run.folder / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    rows, again = [json.loads(line) for line in lines], evaluate(run.folder)
    assert [row["prediction"] for row in again.rows] == [row["prediction"] for row in rows]
    assert again.figures == pytest.approx(run.results["test"])
    use = pipeline("question-answering", run.folder)
    for row in rows:
        answer = use(question=row["question"], context=row["context"])
        assert answer["answer"] == row["prediction"]
        assert row["context"][answer["start"] : answer["end"]] == answer["answer"]
    talkative = evaluate(run.folder, overrides=["eval.null_threshold=1e9"])
    for row in talkative.rows:
        answer = use(question=row["question"], context=row["context"], null_threshold=1e9)
        assert answer["answer"] == row["prediction"] != ""


def test_threshold_is_tuned_on_validation_and_saved_with_the_model(run: FinishedRun) -> None:
    config = AutoConfig.from_pretrained(run.folder / "model")
    saved = config.question_answering
    assert saved["null_threshold"] == run.results["validation"]["null_threshold"]
    assert saved["null_threshold"] == run.results["test"]["null_threshold"]
    assert {name: saved[name] for name in ("max_seq_len", "doc_stride", "max_question_len")} == {
        "max_seq_len": 48, "doc_stride": 12, "max_question_len": 12,
    }  # fmt: skip
    assert run.results["validation"]["squad_f1"] >= run.results["validation"]["squad_f1_always_null"]
    silent = evaluate(run.folder, overrides=["eval.null_threshold=-1e9"])
    assert {row["prediction"] for row in silent.rows} == {""}


def test_run_folder_has_card_and_pipeline_code(run: FinishedRun) -> None:
    assert (run.folder / "model" / "question_answering.py").is_file()
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: question-answering" in card
    assert "threshold that was chosen on the validation split" in card


def test_the_card_states_where_the_threshold_comes_from(run: FinishedRun) -> None:
    saved = load_recipe(run.folder / "recipe.yaml", ["eval.null_threshold=0.5"], saved=True)
    results = {"validation": {"null_threshold": 0.5}}
    note = create_task(saved).card_sections(results, run.folder)["results_note"]
    assert "more than 0.5, a threshold that was set in the recipe" in note


def test_model_of_answerable_questions_always_answers(tmp_path: Path) -> None:
    # SQuAD has the answers of three people to each question, often the same
    several = [{**row, "answers": {name: 3 * values for name, values in row["answers"].items()}} for row in ROWS]
    path = write_rows(tmp_path / "data", train=ROWS, validation=several)
    data = {"path": str(path), "id": None}
    done = train(
        recipe(tmp_path, "question_answering", data, eval={"metrics": ["squad_f1"]}, train={"max_steps": 1}),
        tmp_path / "run",
    )
    assert "null_threshold" not in AutoConfig.from_pretrained(done.folder / "model").question_answering
    assert "null_threshold" not in done.results["validation"]
    assert done.results["validation"]["examples"] == len(ROWS)
    assert "| who? | 1900 |" in (done.folder / "README.md").read_text(encoding="utf-8")


def test_answers_outside_every_window_are_dropped_and_counted(tmp_path: Path) -> None:
    long = "a" * 10 + " " + "b" * 60 + " c"
    odd = [row(20, long, "b" * 60), row(21, "Anna met Bo.", "Oslo", start=0)]
    ready = prepared(tmp_path, [*ROWS, *odd], max_length=32, doc_stride=4, max_question_length=8)
    assert ready.dropped == {"windows": 1, "answers": 1}
    assert len(ready.encoded["validation"].examples.questions) == len(ROWS) + 2
    summary = "\n".join(ready.summary())
    assert "1 examples left out by the windows" in summary
    assert "1 examples left out by an answer that is not in its text" in summary


def test_a_squad_file_is_judged_by_the_same_answers_as_json_lines(tmp_path: Path) -> None:
    half = {**row(22, "Anna met Bo.", "Bo"), "answers": {"text": ["the B", "Bo"], "answer_start": [0, 8]}}
    rows = [*ROWS, row(20, "Anna met Bo.", "Oslo", start=0), row(21, "Anna met Bo.", None), half]
    lines = prepared(tmp_path / "lines", rows)
    articles = []
    for question in rows:
        answers = [{"text": t, "answer_start": s} for t, s in zip(*question["answers"].values(), strict=True)]
        entry = {"id": question["id"], "question": question["question"], "answers": answers}
        articles.append({"title": question["title"], "paragraphs": [{"context": question["context"], "qas": [entry]}]})
    (tmp_path / "squad").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "squad" / f"{split}.json").write_text(json.dumps({"data": articles}), encoding="utf-8")
    squad = prepare(recipe(tmp_path, "question_answering", {"path": str(tmp_path / "squad")}))
    assert squad.dropped == lines.dropped == {"windows": 0, "answers": 1}
    assert "1 with an answer that was moved" in "\n".join(squad.summary())
    assert [row.answers for row in squad.encoded["validation"].examples.questions] == [
        row["answers"]["text"] for row in rows
    ]
    for split in ("train", "validation"):
        squad_examples, line_examples = (ready.encoded[split].examples for ready in (squad, lines))
        for name in ("starts", "ends"):
            assert getattr(squad_examples, name).tolist() == getattr(line_examples, name).tolist()


def test_slightly_wrong_offset_is_corrected(tmp_path: Path) -> None:
    moved = [{**row, "answers": {**row["answers"], "answer_start": [3]}} for row in ROWS]
    right, corrected = (
        prepared(tmp_path / "a").encoded["train"].examples,
        prepared(tmp_path / "b", moved).encoded["train"].examples,
    )
    assert right.starts.tolist() == corrected.starts.tolist()
    assert right.starts.min() > 0


def test_answers_can_be_texts(tmp_path: Path) -> None:
    """A table has no places of answers: the first occurrence counts, as if a SQuAD file had named it."""
    known = [row(n, "Anna met Bo in 1900.", "Bo") for n in range(4)] + [row(4, "Anna met Bo.", None)]
    texts = [{**one, "answers": (one["answers"]["text"] or [""])[0]} for one in known]
    lists = [{**one, "answers": one["answers"]["text"]} for one in known]
    expected = prepared(tmp_path / "squad", known).encoded["train"].examples
    for name, rows in (("texts", texts), ("lists", lists)):
        examples = prepared(tmp_path / name, rows).encoded["train"].examples
        assert (examples.starts.tolist(), examples.ends.tolist()) == (expected.starts.tolist(), expected.ends.tolist())
    other = [*texts, {**texts[0], "id": "other", "answers": "Oslo"}]
    assert prepared(tmp_path / "other", other).dropped == {"windows": 0, "answers": 1}


def test_empty_texts_and_long_questions(tmp_path: Path) -> None:
    odd = [row(20, "", None), row(21, "Anna met Bo.", "Bo", question="who " * 40)]
    ready = prepared(tmp_path, [*ROWS, *odd], max_length=48, max_question_length=12, doc_stride=8)
    assert ready.encoded["train"].examples.truncated == 1
    assert ready.encoded["train"].examples.lengths.max() <= 48


def test_questions_of_an_article_are_held_out_together(tmp_path: Path) -> None:
    ready = prepared(tmp_path, validation=[], validation_size=3, held_out_together="title")
    titles = [set(ready.splits.datasets[name]["title"]) for name in ("train", "validation")]
    assert len(titles[1]) == 1
    assert not titles[0] & titles[1]
    with pytest.raises(DataError, match="every title occurs more than 2 times"):
        prepared(tmp_path, validation=[], validation_size=2, held_out_together="title")


def test_the_validation_split_of_the_data_can_be_the_test(tmp_path: Path) -> None:
    keys = {"validation": None, "validation_size": 3, "held_out_together": "title", "test": "dev"}
    path = write_rows(tmp_path / "data", train=ROWS, dev=ROWS[:2])
    ready = prepare(recipe(tmp_path, "question_answering", {"path": str(path), **keys}))
    assert {name: len(rows) for name, rows in ready.splits.datasets.items()} == {"train": 6, "validation": 3, "test": 2}


@pytest.mark.parametrize(
    ("rows", "data", "message"),
    [
        ([{**ROWS[0], "answers": [1900]}], {}, "data.answers: .*row 1: expected"),
        ([{**ROWS[0], "answers": {"text": ["1900"], "answer_start": []}}], {}, "data.answers: .*row 1: expected"),
        ([ROWS[0], ROWS[0]], {}, 'data.id: .*row 2: the id "q0" is not unique'),
        (ROWS, {"answers": "answer"}, 'data.answers: .* has no column "answer"'),
        (ROWS, {"max_length": 100}, "data.max_length: 100 .* positions for: 64. Set data.max_length=64"),
        (ROWS, {"max_question_length": 62}, "within the 64 .* Set data.max_question_length=32"),
        ([row(1, "Anna met Bo.", "Oslo", start=0)], {}, "no question .* has an answer that can be learned"),
    ],
)
def test_unlearnable_data_is_rejected(tmp_path: Path, rows: Any, data: dict[str, Any], message: str) -> None:
    with pytest.raises(KitError, match=message):
        prepared(tmp_path, rows, **data)


def test_contradictory_recipes_are_rejected(tmp_path: Path) -> None:
    for data, key in (
        ({"max_question_length": 58, "max_length": 60, "doc_stride": 1}, "data.max_question_length"),
        ({"truncation": "only_first"}, "data.truncation"),
        ({"held_out_together": "title"}, "data.held_out_together"),
    ):
        with pytest.raises(RecipeError, match=key):
            recipe(tmp_path, "question_answering", {"path": "x", **data})
    with pytest.raises(DataError, match="there is no file or folder"):
        prepare(recipe(tmp_path, "question_answering", {"path": "no/such/file.json"}))
