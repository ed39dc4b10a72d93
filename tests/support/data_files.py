"""A small recipe for every data format, with its files, and ways to damage their bytes."""

import gzip
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

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
    def question(name: str) -> dict[str, Any]:
        return {"id": name, "question": f"Who is {name}?", "answers": [{"text": name, "answer_start": 8}]}

    paragraphs = [{"context": f"Here is {name}.", "qas": [question(name)]} for name in names]
    return json.dumps({"version": "1.1", "data": [{"title": "People", "paragraphs": paragraphs}]}).encode()


def image(number: int) -> bytes:
    written = io.BytesIO()
    Image.new("RGBA" if number % 2 else "P", (5 + number, 7), number).save(written, "PNG")
    return written.getvalue()


def parquet(**columns: Any) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written)
    return written.getvalue()


def arrow(**columns: Any) -> bytes:
    written, table = io.BytesIO(), pa.table(columns)
    with pa.ipc.new_stream(written, table.schema) as writer:
        writer.write_table(table)
    return written.getvalue()


def workbook(*rows: Any) -> bytes:
    from openpyxl import Workbook

    book, written = Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    book.save(written)
    return written.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.savez_compressed(written, **arrays)
    return written.getvalue()


def complete(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the sections that all cases share; forecasting has no tokenizer."""
    tokenizer = {} if recipe["task"] == "forecasting" else {"tokenizer": dict(CHARACTERS)}
    return {**recipe, **tokenizer, "train": dict(TRAIN)}


WORDS = ("ein Hund", "zwei Katzen", "drei große Bäume", "ein Kind lacht", "es regnet", "wer da ?")
RNN = {"type": "rnn_seq2seq", "cell": "gru", "hidden_size": 4, "embedding_size": 4}
GPT = {"type": "gpt2", "n_embd": 4, "n_layer": 1, "n_head": 1, "n_positions": 16}
TEXTS = [{"text": f"{word}. {word}! Und dann?\nNoch ein Satz."} for word in WORDS]
LABELED = [{"text": word, "label": "ab"[n % 2]} for n, word in enumerate(WORDS)]
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
        {"rows.csv": lines("text,label", *(f'"{row["text"]}",{row["label"]}' for row in LABELED))},
    ),
    "json lines": (
        {"task": "classification", "model": BERT, "data": {"path": "data"}},
        {"train.jsonl": json_lines(*LABELED), "validation.jsonl": json_lines(*LABELED)},
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
    "images": (
        {"task": "captioning", "model": CAPTIONER, "data": {"path": "data", "validation_size": 2}},
        {
            "metadata.jsonl": json_lines(*({"file_name": f"{n}.png", "text": word} for n, word in enumerate(WORDS))),
            **{f"{n}.png": image(n) for n in range(len(WORDS))},
        },
    ),
}

LABELED_COLUMNS = {name: [row[name] for row in LABELED] for name in ("text", "label")}
NUMBERS = np.arange(80, dtype=np.float32).reshape(4, 20) % 7
CASES |= {
    "gzip": (
        {"task": "classification", "model": BERT, "data": {"path": "data"}},
        {f"{split}.jsonl.gz": gzip.compress(json_lines(*LABELED), mtime=0) for split in SPLITS},
    ),
    "parquet": (
        {"task": "classification", "model": BERT, "data": {"path": "data"}},
        {f"{split}.parquet": parquet(**LABELED_COLUMNS) for split in SPLITS},
    ),
    "lists in parquet": (
        {"task": "tagging", "model": BERT, "data": {"path": "data"}},
        {f"{split}.parquet": parquet(tokens=[["Anna", "lacht"]] * 4, tags=[["B-PER", "O"]] * 4) for split in SPLITS},
    ),
    "images in parquet": (
        {"task": "captioning", "model": CAPTIONER, "data": {"path": "data"}},
        {
            f"{split}.parquet": parquet(
                image=[{"bytes": image(n), "path": f"{n}.png"} for n in range(6)], caption=list(WORDS)
            )
            for split in SPLITS
        },
    ),
    "arrow": (
        {"task": "classification", "model": BERT, "data": {"path": "data"}},
        {f"{split}.arrow": arrow(**LABELED_COLUMNS) for split in SPLITS},
    ),
    "dataset of save_to_disk": (
        {"task": "classification", "model": BERT, "data": {"path": "data", "validation_size": 2}},
        {
            "data-00000-of-00001.arrow": arrow(**LABELED_COLUMNS),
            "state.json": b'{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}',
            "dataset_info.json": b"{}",
        },
    ),
    "json list": (
        {"task": "classification", "model": BERT, "data": {"path": "data/train.json", "validation_size": 2}},
        {"train.json": json.dumps(LABELED, indent=1).encode()},
    ),
    "workbook": (
        {"task": "classification", "model": BERT, "data": {"path": "data/rows.xlsx", "validation_size": 2}},
        {"rows.xlsx": workbook(("text", "label"), *(tuple(row.values()) for row in LABELED))},
    ),
    "translations in parquet": (
        {"task": "translation", "model": RNN, "data": {"path": "data", "source": "de", "target": "en"}},
        {f"{s}.parquet": parquet(translation=[{"de": word, "en": word[::-1]} for word in WORDS]) for s in SPLITS},
    ),
    "streamed shards": (
        {
            "task": "translation",
            "model": RNN,
            "data": {
                "path": "data",
                "source": "text",
                "target": "label",
                "streaming": True,
                "buffer_size": 4,
                "max_length": 64,
            },
        },
        {
            **{f"train-{n:05}-of-00002.jsonl": json_lines(*LABELED) for n in range(2)},
            "validation.parquet": parquet(**LABELED_COLUMNS),
        },
    ),
    "streamed parquet": (
        {
            "task": "causal_lm",
            "model": GPT,
            "data": {"path": "data", "block_size": 8, "streaming": True, "buffer_size": 4},
        },
        {f"{split}.parquet": parquet(text=[row["text"] for row in TEXTS]) for split in SPLITS},
    ),
    "instructions": (
        {
            "task": "instruction_tuning",
            "model": {**GPT, "n_positions": 64},
            "data": {"path": "data", "prompt": "text", "answer": "label", "template": "{prompt} ->", "max_length": 32},
            "eval": {"max_new_tokens": 8},
        },
        {f"{split}.jsonl": json_lines(*LABELED) for split in SPLITS},
    ),
    "columns of CoNLL-2003": (
        {"task": "tagging", "model": BERT, "data": {"path": "data"}},
        {f"eng.{name}": COLUMNS.replace(b"\t", b" NN ") for name in ("train", "testa", "testb")},
    ),
    "npz": (
        {
            "task": "forecasting",
            "model": {"type": "rnn_forecaster", "hidden_size": 4},
            "data": {"path": "data", "targets": ["x"], "history": 4, "horizon": 3},
        },
        {f"{split}.npz": npz(x=NUMBERS) for split in SPLITS},
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
