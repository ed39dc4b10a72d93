"""The files, folders and models that the documentation names, small: MULTI30K, reviews.csv, OWNER/NAME of the Hub.

What a word stands for depends on the recipe: FOLDER of a tagger holds other files than FOLDER of a translator.
"""

import csv
import gzip
import io
import json
import random
import re
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from kit.data.builtin.pendulum import sample
from support.articles import article
from support.data_files import image, json_lines, lines

WORDS = {
    "de": ("ein", "kleiner", "Hund", "läuft", "schnell", "durch", "den", "Schnee", "und", "bellt"),
    "en": ("a", "small", "dog", "runs", "fast", "through", "the", "snow", "and", "barks"),
    "fr": ("un", "petit", "chien", "court", "vite", "dans", "la", "neige", "et", "aboie"),
}
LABELS = ("card_arrival", "exchange_rate", "lost_card", "top_up")
NAMES = ("Anna", "Boris", "Carla", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Karin", "Luis")
CITIES = ("Oslo", "Lima", "Rome", "Cairo", "Quito", "Paris", "Tokyo", "Delhi")


def sentences(number: int, language: str = "en", seed: int = 0) -> list[str]:
    """Different sentences; the n-th of every language means the same."""
    drawn = random.Random(seed)
    rows = [[drawn.randrange(10) for _ in range(drawn.randint(4, 9))] for _ in range(number)]
    return [" ".join(WORDS[language][word] for word in row) + f" {n + seed * 1000} ." for n, row in enumerate(rows)]


def csv_bytes(header: Iterable[str] | None, rows: Iterable[Iterable[Any]], delimiter: str = ",") -> bytes:
    written = io.StringIO()
    writer = csv.writer(written, delimiter=delimiter, lineterminator="\n")
    if header is not None:
        writer.writerow(header)
    writer.writerows(rows)
    return written.getvalue().encode()


# ---- rows of each kind ----------------------------------------------------------------------------------------------


def labeled(number: int, seed: int = 0) -> list[dict[str, Any]]:
    return [{"text": text, "label": LABELS[n % 4]} for n, text in enumerate(sentences(number, seed=seed))]


def tagged(number: int) -> list[list[tuple[str, str]]]:
    """Sentences of words with the tags of names and places."""
    pairs = [*product(NAMES, CITIES)][:number]
    return [[(name, "B-person"), ("lives", "O"), ("in", "O"), (city, "B-location"), (".", "O")] for name, city in pairs]


def questions(names: Iterable[str], answerable: bool = True) -> list[dict[str, Any]]:
    """Rows as in SQuAD; every other question has no answer unless `answerable`."""
    rows = []
    for number, (name, city) in enumerate(product(names, CITIES[:4])):
        context = f"{name} lives in {city}. " + " ".join(sentences(2, seed=number % 7))
        has_answer = answerable or number % 2 == 0
        answer = {"text": [city] if has_answer else [], "answer_start": [context.index(city)] if has_answer else []}
        question = f"Where does {name} live?" if has_answer else f"Where does {name} work?"
        rows.append(
            {"id": f"{name}{number}", "title": name, "context": context, "question": question, "answers": answer}
        )
    return rows


def squad(names: Iterable[str]) -> bytes:
    """A SQuAD file of version 2.0 with an article for each name."""
    articles = []
    for name in names:
        paragraphs = []
        for row in questions([name], answerable=False):
            places = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
            answers = [{"text": text, "answer_start": start} for text, start in places]
            asked = {"id": row["id"], "question": row["question"], "answers": answers, "is_impossible": not answers}
            paragraphs.append({"context": row["context"], "qas": [asked]})
        articles.append({"title": name, "paragraphs": paragraphs})
    return json.dumps({"version": "v2.0", "data": articles}).encode()


def dialogues(number: int) -> list[list[list[str]]]:
    texts = sentences(number * 4)
    return [[["US"[n % 2], texts[4 * row + n]] for n in range(4)] for row in range(number)]


def documents(number: int) -> list[dict[str, Any]]:
    """Articles with the columns title, body and paragraphs; paragraphs are longer than 80 characters."""
    rows = []
    for row in range(number):
        paragraphs = [" ".join(sentences(4, seed=row * 20 + part)) for part in range(16)]
        rows.append({"title": f"title {row}", "body": " ".join(paragraphs[:2]), "paragraphs": paragraphs})
    return rows


def steps(number: int, first: int = 0) -> list[list[Any]]:
    """Two meters with hourly values."""
    from datetime import datetime, timedelta

    start = datetime(2024, 1, 1)
    return [
        [meter, (start + timedelta(hours=hour)).isoformat(sep=" "), round(10 + hour % 24 + n + hour % 7 / 10, 2)]
        for n, meter in enumerate(("north", "south"))
        for hour in range(first, first + number)
    ]


def conll(rows: Iterable[Iterable[tuple[str, str]]]) -> bytes:
    return "".join("".join(f"{word}\t{tag}\n" for word, tag in row) + "\n" for row in rows).encode()


def parallel(splits: dict[str, int], ending: str = "") -> dict[str, bytes]:
    files = {}
    for seed, (split, number) in enumerate(splits.items()):
        for language in WORDS:
            text = lines(*sentences(number, language, seed))
            files[f"{split}.{language}{ending}"] = gzip.compress(text, mtime=0) if ending else text
    return files


# ---- the files and folders that have one meaning everywhere ----------------------------------------------------------


def named_files() -> dict[str, bytes]:
    """Every file that the documentation names, and the files of its folders, by path."""
    en, de = sentences(200), sentences(200, "de")
    articles = documents(120)
    captions = {"train": 64, "val": 24, "test": 24, "test_2016_flickr": 24}
    pairs = [{"question": f"Write {n} in words.", "answer": text} for n, text in enumerate(sentences(280))]
    headlines = [
        {"article": f"{a} {b}", "highlights": a} for a, b in zip(sentences(1100), sentences(1100), strict=True)
    ]
    folders = {
        "corpus": parallel({"train": 64, "val": 24, "test": 24}, ".gz"),
        "MULTI30K": parallel(captions),
        "multi30k": parallel(captions),
        "DATA": parallel({**captions, "train": 600}, ".gz"),
        "BANKING77": intents(),
        "newer": {"test.csv": csv_bytes(["text", "label"], [row.values() for row in labeled(24, 2)])},
        "reviews": no_header(),
        "CHATS": {
            "train.jsonl": json_lines(
                *(
                    {"messages": [{"role": ["user", "assistant"][who == "S"], "content": text} for who, text in turns]}
                    for turns in dialogues(80)
                )
            )
        },
        "SGD": {"train.turns.jsonl.gz": gzip.compress(json_lines(*({"turns": turns} for turns in dialogues(80))))},
        "sgd": {"train.turns.jsonl.gz": gzip.compress(json_lines(*({"turns": turns} for turns in dialogues(80))))},
        "WNUT17": names(),
        "stories": {f"story {n}.txt": "\n".join(en[n : n + 5]).encode() for n in range(40)},
    }
    files = {f"{folder}/{name}": content for folder, inside in folders.items() for name, content in inside.items()}
    return files | {
        "reviews.csv": csv_bytes(
            ["review", "stars"], [(text, 1 + n % 5) for n, text in enumerate(sentences(80))], delimiter=";"
        ),
        "mine.tsv": csv_bytes(["source", "target"], zip(de[:80], en[:80], strict=True), delimiter="\t"),
        "pairs.txt.gz": gzip.compress(csv_bytes(None, zip(en[:80], de[:80], strict=True), delimiter="\t")),
        "news.jsonl": json_lines(*headlines),
        "input.txt": lines(*(f"ROMEO:\n{text}\n" for text in sentences(300))),
        "book.txt": lines(*sentences(400)),
        "articles.jsonl": json_lines(*articles),
        "ARTICLES.jsonl": json_lines(*articles[:24]),
        "wiki.txt": "".join(article(np.random.default_rng(n), n) for n in range(40)).encode(),
        "mine.jsonl": json_lines(*({"text": row["body"]} for row in articles)),
        "texts.txt": lines(*en[:5]),
        "sentences.txt": lines(*en[:5]),
        "in.txt": lines(*de[:4]),
        "corpus.de.gz": gzip.compress(lines(*de[:20])),
        "test.de.gz": gzip.compress(lines(*de[:20])),
        "test.en.gz": gzip.compress(lines(*en[:20])),
        "dates.txt": lines("3 avril 2021", "16. November 2019", "3 maj 1984"),
        "new.csv": csv_bytes(["text", "label"], [("3 avril 2021", "fr"), ("16. November 2019", "de")]),
        "questions.csv": csv_bytes(["question"], [[text] for text in en[:5]]),
        "questions.tsv": csv_bytes(None, enumerate(en[:5]), delimiter="\t"),
        "questions.jsonl": json_lines(
            {"question": "When was Anna born?", "context": "Anna was born on 3 April 2021 and moved on 5 May 2044."}
        ),
        "pairs.csv": csv_bytes(["text", "text_pair"], [(en[0], en[1]), (en[2], en[3])]),
        "pairs.jsonl": json_lines(*pairs),
        "turns.txt": lines("my exam is on 3 may.", json.dumps(["my exam is on 3 may.", "ok.", "when is my exam?"])),
        "sentences.conll": conll([[("3", "B-day"), ("avril", "B-month"), ("2021", "B-year")]]),
        "meters.csv": csv_bytes(["meter", "time", "load"], steps(1400)),
        "meters_now.csv": csv_bytes(["meter", "time", "load"], steps(96, 1400)),
        "series.jsonl": pendulums(),
        "series.csv": csv_bytes(["meter", "time", "load"], steps(96)),
        "paths.txt": lines("scene.png"),
        "scene.png": image(2),
        "picture.png": image(2),
    }


def pendulums() -> bytes:
    """Series as `builtin:pendulum` has them, with the drive of the steps to predict."""
    rows = sample(2, 80, np.random.default_rng(5)).select(["values", "context"]).to_pylist()
    return json_lines(*({"values": row["values"][:40], "context": row["context"]} for row in rows))


# ---- what a word stands for, by recipe -------------------------------------------------------------------------------


def intents() -> dict[str, bytes]:
    header = ["text", "category", "review", "topic"]
    rows = {"train": labeled(80), "test": labeled(24, 1)}
    return {
        f"{split}.csv": csv_bytes(header, [(row["text"], row["label"], row["text"], row["label"]) for row in part])
        for split, part in rows.items()
    }


def no_header() -> dict[str, bytes]:
    rows = {"train": sentences(80), "dev": sentences(24, seed=1)}
    return {
        f"{split}.tsv": csv_bytes(None, [(text, n % 2) for n, text in enumerate(part)], delimiter="\t")
        for split, part in rows.items()
    }


def names() -> dict[str, bytes]:
    rows = tagged(80)
    return {"train.conll": conll(rows[:60]), "dev.conll": conll(rows[60:])}


def photos() -> dict[str, bytes]:
    rows = [{"file_name": f"{n}.png", "text_en": text, "text": text} for n, text in enumerate(sentences(40))]
    return {"metadata.jsonl": json_lines(*rows), **{f"{n}.png": noise(n) for n in range(40)}}


def noise(seed: int) -> bytes:
    """An image unlike any other."""
    written = io.BytesIO()
    Image.frombytes("RGB", (8, 8), random.Random(seed).randbytes(192)).save(written, "PNG")
    return written.getvalue()


def splits_of(rows: list[dict[str, Any]]) -> dict[str, bytes]:
    return {
        "train.jsonl": json_lines(*rows[:64]), "validation.jsonl": json_lines(*rows[64:80]),
        "test.jsonl": json_lines(*rows[80:]),
    }  # fmt: skip


def two_columns(first: str, second: str) -> list[dict[str, Any]]:
    return [{first: a, second: b} for a, b in zip(sentences(96), sentences(96, "de"), strict=True)]


def tatoeba() -> dict[str, bytes]:
    rows = [*zip(sentences(112), sentences(112, "fr"), strict=True)]
    parts = {"train": rows[:80], "validation": rows[80:96], "test": rows[96:]}
    return {f"{split}.tsv": csv_bytes(None, part, delimiter="\t") for split, part in parts.items()}


def mrpc() -> bytes:
    en, other = sentences(480), sentences(480, seed=1)
    return csv_bytes(None, [(n % 2, n, n + 500, en[n], other[n]) for n in range(480)], delimiter="\t")


FOLDERS: dict[str, Callable[[], dict[str, bytes]]] = {
    r"emoji_captions": photos,
    r"sgd_hred": lambda: {"train.turns.jsonl.gz": gzip.compress(json_lines(*({"turns": t} for t in dialogues(80))))},
    r"classification_banking77|lora_classification": intents,
    r"classification_sst2|finetune\.py": no_header,
    r"qa_squad": lambda: {"train.json": squad(NAMES[:9]), "dev.json": squad(NAMES[9:])},
    r"tagging_wnut17": names,
    r"few_labels": lambda: splits_of(labeled(96)),
    r"summarization": lambda: splits_of(two_columns("article", "highlights")),
    r"text_to_code": lambda: splits_of(two_columns("text", "code")),
    r"tatoeba": tatoeba,
    r"multi30k|multilingual|length|pivot": lambda: parallel(
        {"train": 64, "val": 24, "test": 24, "test_2016_flickr": 24, "flickr2018": 24}
    ),
}
"""The files of FOLDER, by what the line with it names."""
FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    r"pairs_mrpc": ("FILE.txt", mrpc),
    r"lora_causal_lm": (
        "FILE.jsonl",
        lambda: json_lines(*({"question": f"Write {n}.", "answer": text} for n, text in enumerate(sentences(280)))),
    ),
    r"gpt_tiny|rnn_lm|shakespeare": ("FILE.txt", lambda: lines(*sentences(400))),
    r"bert_mlm_tiny": ("FILE.txt", lambda: "\n\n".join(sentences(400)).encode()),
    r"bert_nsp_tiny|pretraining_helps": ("FILE.jsonl", lambda: json_lines(*documents(24))),
    r"question_answering_seq2seq": ("FILE.jsonl", lambda: json_lines(*two_columns("question", "answer"))),
}
"""Name and content of FILE, likewise."""


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def meaning(table: dict[str, Any], line: str) -> Any:
    """The entry of a table whose pattern occurs in a line."""
    return next((value for pattern, value in table.items() if re.search(pattern, line)), None)
