"""The task `dialogue`: from turns in every layout to replies in the terminal and from the pipeline."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.recipes import make_recipe
from support.standalone import run_without_kit

from kit import pipeline, train
from kit.diagnostics.dry_run import inspect_recipe
from kit.errors import DataError, RecipeError
from kit.evaluation.metrics import compute_metrics
from kit.inference.chat import chat
from kit.pipelines.dialogue import recent_turns
from kit.recipe.base import Recipe
from kit.tasks.dialogue.examples import Conversations
from kit.tasks.dialogue.inference import Responder, turns_in
from kit.tasks.registry import create_task

TINY: dict[str, Any] = {
    "hred": {"type": "hred", "cell": "gru", "hidden_size": 16, "embedding_size": 8, "attention": "additive"},
    "flat": {"type": "rnn_seq2seq", "cell": "gru", "hidden_size": 16, "embedding_size": 8, "attention": "additive"},
    "transformer": {
        "type": "transformer_seq2seq", "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
        "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 24,
    },
}  # fmt: skip
BUILTIN: dict[str, Any] = {
    "path": "builtin:dialogues",
    "target": "response",
    "answer": "answer",
    "sizes": {"train": 90, "validation": 12, "test": 12},
}


def recipe(folder: Path, model: str = "hred", data: dict[str, Any] | None = None, **train: Any) -> Recipe:
    evaluation = {"steps": 6, "metrics": ["bleu", "exact_match", "distinct_2"], "max_new_tokens": 8, "num_beams": 2}
    if model == "hred" and (data or BUILTIN) is BUILTIN:
        evaluation["group_by"] = ["kind"]
    train = {"max_steps": 12, "batch_size": 16, "learning_rate": 1e-2, "save_steps": 4, "logging_steps": 1, **train}
    sections = {"model": {**TINY[model], "dropout": 0.1}, "train": train, "eval": evaluation}
    return make_recipe(folder, "dialogue", data or BUILTIN, **sections)


@pytest.fixture(scope="module")
def dialogue_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short, finished run of the hierarchical model."""
    folder = tmp_path_factory.mktemp("dialogue")
    return train(recipe(folder), folder / "run").folder


# ---- data ------------------------------------------------------------------------------------------------------------

TALK = [["U", "hello"], ["S", "good day"], ["U", "a table please"], ["S", "for two?"]]
WRITTEN = {
    "pairs": [TALK, TALK[:2]],
    "objects": [[{"role": who, "content": text, "time": 3} for who, text in part] for part in (TALK, TALK[:2])],
    "texts": [[text for _, text in part] for part in (TALK, TALK[:2])],
}


def rows_in(folder: Path, dialogues: list[Any], **data: Any) -> Any:
    folder.mkdir(exist_ok=True)
    for split in ("train", "validation"):
        lines = "".join(json.dumps({"id": str(n), "turns": turns}) + "\n" for n, turns in enumerate(dialogues))
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    keys = {"turn_text": "content", "turn_speaker": "role", **data, "path": str(folder)}
    return create_task(recipe(folder / "recipe", data=keys)).load_splits()


@pytest.mark.parametrize("form", WRITTEN)
def test_turns_are_read_from_every_layout(form: str, tmp_path: Path) -> None:
    every = rows_in(tmp_path / "a", WRITTEN[form]).datasets["train"]
    assert every["target"][:] == ["good day", "a table please", "for two?", "good day"]
    assert every["turns"][2] == ["hello", "good day", "a table please"]
    assert every["id"][:] == ["0", "0", "0", "1"]
    speaker = "second" if form == "texts" else "S"
    theirs = rows_in(tmp_path / "b", WRITTEN[form], speaker=speaker).datasets["train"]
    assert theirs["target"][:] == ["good day", "for two?", "good day"]


@pytest.mark.parametrize(
    ("dialogues", "data", "message"),
    [
        (
            [[["U", "a", "b"], ["S", "c"]]],
            {},
            "train, dialogue 1, turn 1: expected a pair [speaker, text], got 3 parts",
        ),
        ([["a", "b"], ["a", None]], {}, "train, dialogue 2, turn 2 has no text"),
        ([[{"role": "U", "content": "a"}]], {"turn_text": "contents"}, 'no "contents". Did you mean "content"?'),
        ([[["U", "a"], ["S", "b"]]], {"speaker": "s"}, 'no reply to learn by data.speaker: "s".'),
        (["a", "b"], {}, "holds str, not a list of turns"),
        ([["only one"]], {}, "train has no reply to learn. Its speakers: first"),
    ],
)
def test_malformed_turns_are_reported_with_their_row(
    dialogues: list[Any], data: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as error:
        rows_in(tmp_path, dialogues, **data)
    assert message in str(error.value)


def test_splits_are_made_of_whole_dialogues(tmp_path: Path) -> None:
    lines = (json.dumps({"turns": [f"{n} {turn}" for turn in range(4)]}) + "\n" for n in range(40))
    (tmp_path / "talk.jsonl").write_text("".join(lines), encoding="utf-8")
    data = {"path": str(tmp_path / "talk.jsonl"), "validation_size": 5, "test_size": 7}
    splits = create_task(recipe(tmp_path, data=data)).load_splits()
    owners = [{text.split()[0] for text in rows["target"]} for rows in splits.datasets.values()]
    assert [len(split_owners) for split_owners in owners] == [28, 5, 7]
    assert len(set.union(*owners)) == 40
    assert [len(rows) for rows in splits.datasets.values()] == [84, 15, 21]


def test_overlap_is_counted_in_replies(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split, dialogues in (("train", [TALK]), ("validation", [TALK, [["U", "hello"], ["S", "welcome"]]])):
        lines = "".join(json.dumps({"turns": turns}) + "\n" for turns in dialogues)
        (tmp_path / "data" / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    inspection = inspect_recipe(recipe(tmp_path, data={"path": str(tmp_path / "data")}))
    seen = inspection.overlaps["validation"]
    assert (seen.examples, seen.inputs, seen.whole) == (4, 4, 3)
    assert any(warning.startswith("validation: 4 of 4 examples have the same") for warning in inspection.warnings)


def test_the_vocabulary_has_the_words_of_all_turns(tmp_path: Path) -> None:
    """Also of turns that are neither replies nor directly before one."""
    turns = [
        ["S", "welcome"],
        ["U", "hello"],
        ["U", "please"],
        ["S", "yes"],
        ["U", "thanks"],
        ["U", "bye"],
        ["S", "ciao"],
    ]
    line = json.dumps({"turns": turns}) + "\n"
    (tmp_path / "train.jsonl").write_text(line * 3, encoding="utf-8")
    (tmp_path / "validation.jsonl").write_text(line, encoding="utf-8")
    data = {"path": str(tmp_path), "speaker": "S"}
    task = create_task(make_recipe(tmp_path, "dialogue", data, tokenizer={"train": "word", "min_frequency": 1}))
    vocabulary = task.build_tokenizers(task.load_splits()).source.get_vocab()
    assert {f"▁{text}" for _, text in turns} <= vocabulary.keys()


def test_contradictory_recipes_are_rejected(tmp_path: Path) -> None:
    for wrong, message in (
        ({**BUILTIN, "speaker": "S"}, "data.speaker: it has no effect with data.target"),
        ({**BUILTIN, "target": None}, "data.answer: it has no effect without data.target"),
        ({**BUILTIN, "turns": "response"}, "must be different columns"),
        ({"path": "talk.jsonl", "streaming": True}, "task: dialogue does not support it"),
    ):
        with pytest.raises(RecipeError) as error:
            recipe(tmp_path, data=wrong)
        assert message in str(error.value)


# ---- batches ---------------------------------------------------------------------------------------------------------


def joined(turns: list[list[int]]) -> list[int]:
    return [token for turn in turns for token in turn]


turn = st.lists(st.integers(3, 9), min_size=1, max_size=5)


@given(histories=st.lists(st.lists(turn, min_size=1, max_size=4), min_size=1, max_size=5), apart=st.booleans())
def test_a_batch_holds_every_turn_and_nothing_else(histories: list[list[list[int]]], apart: bool) -> None:
    examples = Conversations.of(histories, [[4, 2]] * len(histories), apart)
    order = np.arange(len(histories))[::-1]
    batch = examples.select(order).batch(np.arange(len(histories)), pad=1)
    for row, index in enumerate(order):
        ids, mask = batch["input_ids"][row], batch["attention_mask"][row].bool()
        if apart:
            actual = [tokens[real].tolist() for tokens, real in zip(ids, mask, strict=True) if real.any()]
            assert actual == histories[index]
        else:
            assert ids[mask].tolist() == joined(histories[index])
    if apart:
        assert (examples.input_lengths >= examples.source.lengths).all()


@given(st.lists(turn, min_size=1, max_size=6), st.none() | st.integers(1, 4), st.none() | st.integers(1, 12))
def test_truncation_drops_the_oldest_turns(turns: list[list[int]], max_turns: int | None, limit: int | None) -> None:
    recent, truncated = recent_turns(turns, max_turns, limit)
    flat, all_tokens = joined(recent), joined(turns[-max_turns:] if max_turns else turns)
    assert flat == all_tokens[len(all_tokens) - len(flat) :]
    assert limit is None or len(flat) <= limit
    assert truncated == (len(flat) < len(all_tokens))
    assert recent[1:] == turns[len(turns) - len(recent) + 1 :]


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_run_reports_accuracy_by_kind(dialogue_run: Path) -> None:
    results = json.loads((dialogue_run / "results.json").read_text(encoding="utf-8"))
    test = results["test"]
    assert {"loss", "perplexity", "bleu", "exact_match", "distinct_2", "answer_accuracy"} <= test.keys()
    kinds = test["by"]["kind"]
    assert set(kinds) == {"recall", "correction", "move"}
    shares = [(figures["answer_accuracy"], figures["count"]) for figures in kinds.values()]
    assert sum(share * count for share, count in shares) == pytest.approx(test["answer_accuracy"] * 12)
    rows = [json.loads(line) for line in (dialogue_run / "predictions" / "test.jsonl").read_text("utf-8").splitlines()]
    replies = [row["prediction"] for row in rows]
    assert test["distinct_2"] == compute_metrics(["distinct_2"], replies, replies)["distinct_2"]
    assert (dialogue_run / "plots" / "attention.png").is_file()
    card = (dialogue_run / "README.md").read_text(encoding="utf-8")
    assert 'kit.pipeline("dialogue", model=model)' in card
    assert "Answer accuracy" in card


def test_resume_is_bit_identical(dialogue_run: Path, tmp_path: Path, kit_here: Any) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(dialogue_run, broken)
    (broken / "results.json").unlink()
    shutil.rmtree(broken / "model")
    for checkpoint in broken.glob("checkpoints/step-*"):
        if int(checkpoint.name[5:]) > 8:
            shutil.rmtree(checkpoint)
    done = kit_here("train", broken, "--resume")
    assert done.returncode == 0, done.stderr
    assert "resuming at step 8" in done.stderr
    ours, theirs = (load_file(run / "model" / "model.safetensors") for run in (broken, dialogue_run))
    assert all(ours[name].equal(theirs[name]) for name in theirs)


def test_eval_data_and_verify_commands(dialogue_run: Path, kit_here: Any) -> None:
    again = kit_here("eval", dialogue_run, "--json")
    assert again.returncode == 0, again.stderr
    results = json.loads((dialogue_run / "results.json").read_text(encoding="utf-8"))
    assert json.loads(again.stdout)["answer_accuracy"] == results["test"]["answer_accuracy"]
    proven = kit_here("verify", dialogue_run)
    assert proven.returncode == 0, proven.stdout
    assert "left padding" in proven.stdout
    report = kit_here("data", dialogue_run / "recipe.yaml")
    assert report.returncode == 0, report.stderr
    assert "90 replies in 90 dialogues" in report.stdout
    (dialogue_run / "plots" / "attention.png").unlink()
    drawn = kit_here("plot", dialogue_run)
    assert drawn.returncode == 0, drawn.stderr
    assert (dialogue_run / "plots" / "attention.png").is_file()
    assert kit_here("plot", dialogue_run, "--layer", "1").returncode == 2


@pytest.mark.parametrize("model", ["flat", "transformer"])
def test_flat_models_read_turns_as_one_text(model: str, tmp_path: Path) -> None:
    run = train(recipe(tmp_path, model, max_steps=2), tmp_path / "run").folder
    responder = Responder(run)
    turns = ["my exam is on 3 may.", "ok.", "when is my exam?"]
    recent, truncated = responder.tokenize(turns * 3)
    assert truncated == (model == "transformer")  # it has 24 positions
    assert sum(map(len, recent)) <= 24 if truncated else len(recent) == 9
    pipe = pipeline("dialogue", run)
    expected = pipe(turns)[0]["generated_text"]
    assert responder.reply(turns) == expected
    assert pipe(turns, truncation=False)[0]["generated_text"] == expected  # nothing to truncate
    assert pipe(turns * 3, truncation=True) == pipe(turns * 3)
    if model == "transformer":
        with pytest.raises(ValueError, match=r"more tokens than the model can read \(24\)"):
            pipe(turns * 3, truncation=False)
    for options in ({"truncation": "only_first"}, {"src_lang": "de"}, {"tgt_lang": "de"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            pipe(turns, **options)


# ---- replies ---------------------------------------------------------------------------------------------------------

HISTORIES = [
    ["when is my exam?"],
    ["my exam is on 3 may.", "ok.", "when is my exam?"],
    ["my party is on 9 june.", "ok."],
]


@pytest.mark.soak
def test_chat_generate_and_pipelines_give_the_same_replies(
    dialogue_run: Path, kit: Any, kit_here: Any, tmp_path: Path
) -> None:
    responder = Responder(dialogue_run)
    expected = [responder.reply(turns) for turns in HISTORIES]
    reply = pipeline("dialogue", dialogue_run)
    assert [reply(turns)[0]["generated_text"] for turns in HISTORIES] == expected
    assert [record["generated_text"] for record in reply(HISTORIES, batch_size=3)] == expected
    (tmp_path / "lines.txt").write_text("\n".join([HISTORIES[0][0], *map(json.dumps, HISTORIES[1:])]), encoding="utf-8")
    done = kit_here("generate", dialogue_run, "lines.txt", "--output", "out.txt", "--attention", "map.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == expected
    assert (tmp_path / "map.png").is_file()
    first = responder.reply(["hello"])
    second = responder.reply(["hello", first, "and now?"])
    typed = "hello\nand now?\n\n\x00\n/wrong\n/new\nhello\n/quit\nnever read\n"
    talked = kit("chat", dialogue_run, stdin=typed)
    assert talked.returncode == 0, talked.stderr
    lines = talked.stdout.splitlines()
    assert lines[:2] == [first, second]
    assert lines[2:4] == ["(nothing to read in this line)"] * 2
    assert "/new starts a new dialogue" in lines[4]
    assert lines[5:] == ["(a new dialogue)", first]


def test_bad_line_does_not_end_the_conversation(dialogue_run: Path) -> None:
    import io

    out = io.StringIO()
    chat(Responder(dialogue_run), ["\ud800 half", "x" * 100_000, "hello", "/quit"], out)
    assert len(out.getvalue().splitlines()) == 3
    assert out.getvalue().splitlines()[-1] == Responder(dialogue_run).reply(["hello"]) or "no reply" in out.getvalue()


def test_line_without_a_json_list_is_one_turn() -> None:
    assert turns_in('["a", "b"]') == ["a", "b"]
    for line in ("[laughs] hi", '["a", 1]', "[]", "plain", '{"a": 1}'):
        assert turns_in(line) == [line]


def test_chat_rejects_other_models(trained: Path, kit_here: Any) -> None:
    refused = kit_here("chat", trained)
    assert refused.returncode == 2
    assert "is not a dialogue model" in refused.stderr


PROGRAM = """
import json
from transformers import pipeline

reply = pipeline("dialogue", model=sys.argv[1], trust_remote_code=True)
print(json.dumps([found["generated_text"] for found in reply(json.loads(sys.argv[2]), batch_size=2)]))
"""


@pytest.mark.soak
def test_pipeline_without_kit_replies_the_same(dialogue_run: Path, tmp_path: Path) -> None:
    printed = run_without_kit(PROGRAM, tmp_path, dialogue_run / "model", json.dumps(HISTORIES))
    responder = Responder(dialogue_run)
    assert json.loads(printed.splitlines()[-1]) == [responder.reply(turns) for turns in HISTORIES]
