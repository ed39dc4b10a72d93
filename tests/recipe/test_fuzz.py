"""Fuzzed recipes and data files: each is accepted, or rejected with a KitError.

Each example runs what precedes the first training step, in one process: recipe, reader, tokenizer, batches, model.
"""

import copy
import io
import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from kit import KitError, load_recipe
from kit.recipe.base import sections_of
from kit.recipe.document import write_yaml
from kit.runs.prepare import prepare
from kit.tasks.registry import recipe_classes

SECONDS = 300
BERT = {
    "type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
    "max_position_embeddings": 64,
}  # fmt: skip
CHARACTERS = {"train": "char", "min_frequency": 1}
TRAIN = {"max_steps": 2, "batch_size": 4}


def lines(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def json_lines(*rows: Any) -> bytes:
    return lines(*(json.dumps(row, ensure_ascii=False) for row in rows))


def squad(*names: str) -> bytes:
    def asked(name: str) -> dict[str, Any]:
        return {"id": name, "question": f"Who is {name}?", "answers": [{"text": name, "answer_start": 8}]}

    paragraphs = [{"context": f"Here is {name}.", "qas": [asked(name)]} for name in names]
    return json.dumps({"version": "1.1", "data": [{"title": "People", "paragraphs": paragraphs}]}).encode()


def picture(number: int) -> bytes:
    written = io.BytesIO()
    Image.new("RGBA" if number % 2 else "P", (5 + number, 7), number).save(written, "PNG")
    return written.getvalue()


def whole(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the sections that all cases share; forecasting has no tokenizer."""
    tokenizer = {} if recipe["task"] == "forecasting" else {"tokenizer": dict(CHARACTERS)}
    return {**recipe, **tokenizer, "train": dict(TRAIN)}


WORDS = ("ein Hund", "zwei Katzen", "drei große Bäume", "ein Kind lacht", "es regnet", "wer da ?")
RNN = {"type": "rnn_seq2seq", "cell": "gru", "hidden_size": 4, "embedding_size": 4}
GPT = {"type": "gpt2", "n_embd": 4, "n_layer": 1, "n_head": 1, "n_positions": 16}
TEXTS = [{"text": f"{word}. {word}! Und dann?\nNoch ein Satz."} for word in WORDS]
LABELLED = [{"text": word, "label": "ab"[n % 2]} for n, word in enumerate(WORDS)]
WINDOWS = {"max_length": 48, "doc_stride": 4, "max_question_length": 16}
COLUMNS = lines("Anna\tB-PER", "Lee\tI-PER", "lacht\tO", "", "In\tO", "Rom\tB-LOC", "", "-DOCSTART-\tO", "", "Ja\tO")

SPLITS = ("train", "validation")
SERIES = {
    "path": "data/steps.csv", "targets": ["x"], "context": ["u"], "series": "who", "history": 4, "horizon": 3,
    "validation_steps": 8,
}  # fmt: skip
CAPTIONER = {**RNN, "type": "rnn_captioner", "cnn_channels": [2], "image_size": 8}

CASES: dict[str, tuple[dict[str, Any], dict[str, bytes]]] = {
    "parallel text": (
        {"task": "translation", "model": RNN, "data": {"path": "data", "source": "de", "target": "en"}},
        {f"{split}.{side}": lines(*WORDS) for split in ("train", "val") for side in ("de", "en")},
    ),
    "tsv": (
        {"task": "translation", "model": RNN, "data": {"path": "data/pairs.tsv", "validation_size": 2}},
        {"pairs.tsv": lines("source\ttarget", *(f"{word}\t{word[::-1]}" for word in WORDS))},
    ),
    "csv": (
        {"task": "classification", "model": BERT, "data": {"path": "data/rows.csv", "validation_size": 2}},
        {"rows.csv": lines("text,label", *(f'"{row["text"]}",{row["label"]}' for row in LABELLED))},
    ),
    "json lines": (
        {"task": "classification", "model": BERT, "data": {"path": "data"}},
        {"train.jsonl": json_lines(*LABELLED), "validation.jsonl": json_lines(*LABELLED)},
    ),
    "columns": (
        {"task": "tagging", "model": BERT, "data": {"path": "data"}},
        {"train.conll": COLUMNS, "dev.conll": COLUMNS},
    ),
    "squad": (
        {"task": "question_answering", "model": BERT, "data": {"path": "data", **WINDOWS}},
        {"train.json": squad("Bo", "Zoë", "Al"), "dev.json": squad("Di", "Jo")},
    ),
    "documents": (
        {"task": "causal_lm", "model": GPT, "data": {"path": "data", "block_size": 8}},
        {"train.jsonl": json_lines(*TEXTS), "validation.jsonl": json_lines(*TEXTS)},
    ),
    "books": (
        {"task": "causal_lm", "model": GPT, "data": {"path": "data", "block_size": 8, "documents": "blank_line"}},
        {"train.txt": lines("Es war", "einmal", "", *WORDS), "validation.txt": lines(*WORDS, "", "Ende")},
    ),
    "pairs of sentences": (
        {"task": "masked_lm", "model": BERT, "data": {"path": "data", "block_size": 24, "pairs": "next_sentence"}},
        {"train.jsonl": json_lines(*TEXTS), "validation.jsonl": json_lines(*TEXTS)},
    ),
    "dialogues": (
        {"task": "dialogue", "model": {**RNN, "type": "hred"}, "data": {"path": "data"}},
        {f"{split}.jsonl": json_lines(*({"turns": [word, "ja", word]} for word in WORDS)) for split in SPLITS},
    ),
    "series": (
        {"task": "forecasting", "model": {"type": "rnn_forecaster", "hidden_size": 4}, "data": SERIES},
        {"steps.csv": lines("who,x,u", *(f"{'ab'[n % 2]},{n * n % 7 / 2},{n % 3}" for n in range(60)))},
    ),
    "pictures": (
        {"task": "captioning", "model": CAPTIONER, "data": {"path": "data", "validation_size": 2}},
        {
            "metadata.jsonl": json_lines(*({"file_name": f"{n}.png", "text": word} for n, word in enumerate(WORDS))),
            **{f"{n}.png": picture(n) for n in range(len(WORDS))},
        },
    ),
}

NASTY = [
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n\n\n", b"\t\t", b'"', b",", b"{", b"}", b"[]", b"null",
    b"true", b"1e999", b"-1", b"NaN", b"\xed\xa0\x80", b'"\\ud800"', b"I-", b"B-", b"O", b"#", b"\xc3", b"\x1f\x8b",
    b"PK\x03\x04", "\u2028\x85🙂\ufeff".encode(), b"x " * 3000, b"y" * 5000, b'{"text": {"a": 1}}\n',
    b'{"text": ["a"], "label": 3}\n', b"[" * 2000,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 7, 0.5, 1e-9, "", "x", "train", "text", "label", "source", "1e3", "utf-16",
    "latin-1", "hred", "no/such/thing", [], {}, ["x"], [1, 2], ["a", "b"], {"train": 3}, {"train": 0, "validation": 1},
    "word", "unigram",
]  # fmt: skip
edits = st.tuples(
    st.sampled_from(["flip", "insert", "remove", "repeat", "cut"]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(NASTY),
)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, bytes]]:
    """A recipe and its files, with a few mutations of either."""
    name = draw(st.sampled_from(sorted(CASES)))
    recipe, files = copy.deepcopy(CASES[name])
    recipe = whole(recipe)
    sections = sections_of(recipe_classes()[recipe["task"]])
    keys = [f"{section}.{key}" for section, kind in sections.items() for key in kind.model_fields]
    keys += [f"model.{key}" for key in recipe["model"]]
    keys = [key for key in keys if key not in ("model.pretrained", "tokenizer.pretrained", "train.report_to")]
    for key, value in draw(st.dictionaries(st.sampled_from(keys), st.sampled_from(VALUES), max_size=2)).items():
        section, _, field = key.partition(".")
        recipe.setdefault(section, {})[field] = value
    for file, (how, where, much, nasty) in draw(st.dictionaries(st.sampled_from(sorted(files)), edits)).items():
        files[file] = edited(files[file], how, where, much, nasty)
    for file in draw(st.lists(st.sampled_from(sorted(files)), max_size=1)) if draw(st.integers(0, 9)) == 0 else []:
        del files[file]
    return name, recipe, files


def edited(content: bytes, how: str, where: float, much: float, nasty: bytes) -> bytes:
    at = int(where * len(content))
    end = at + int(much * (len(content) - at))
    if how == "flip" and at < len(content):
        return content[:at] + bytes([content[at] ^ (1 + int(much * 254))]) + content[at + 1 :]
    changes = {"insert": nasty, "remove": b"", "repeat": content[at:end] * 2}
    return (
        content[:at]
        if how == "cut"
        else content[:at] + changes.get(how, b"") + content[end if how != "insert" else at :]
    )


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(folder: Path, recipe: dict[str, Any], files: dict[str, bytes]) -> str | None:
    """The message of the KitError, or None if all was accepted. Any other exception fails the test."""
    shutil.rmtree(folder / "data", ignore_errors=True)
    (folder / "data").mkdir()
    for name, content in files.items():
        (folder / "data" / name).write_bytes(content)
    (folder / "recipe.yaml").write_text(write_yaml(recipe), encoding="utf-8")
    with no_longer_than(SECONDS):
        try:
            prepared = prepare(load_recipe(folder / "recipe.yaml"))
            prepared.plan.step(0)
            prepared.plan.close()
        except KitError as error:
            message = str(error)
        else:
            return None
    message.encode("utf-8")  # it can be printed
    assert message.strip()
    return message


def test_unchanged_inputs_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for recipe, files in CASES.values():
        assert outcome(tmp_path, whole(recipe), files) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", -1), ("hidden_size", 0), ("num_attention_heads", 0), ("num_attention_heads", 3),
        ("max_position_embeddings", -1), ("max_position_embeddings", 0), ("intermediate_size", -1),
    ],
)  # fmt: skip
def test_impossible_model_sizes_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: int
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, files = copy.deepcopy(CASES["columns"])
    recipe["model"][key] = value
    assert str(outcome(tmp_path, whole(recipe), files)).startswith("model")


quietly = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=300, deadline=None, suppress_health_check=quietly)
@given(given_input=inputs())
def test_fuzzed_inputs_are_accepted_or_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_input: tuple[str, dict[str, Any], dict[str, bytes]]
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome(tmp_path, *given_input[1:])


@pytest.mark.soak
@settings(max_examples=2000, deadline=None, suppress_health_check=quietly)
@given(given_input=inputs())
def test_many_fuzzed_inputs_are_accepted_or_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_input: tuple[str, dict[str, Any], dict[str, bytes]]
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome(tmp_path, *given_input[1:])
