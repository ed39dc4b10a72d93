"""`kit data` on files without a recipe: what it guesses, and that the command it prints trains."""

import io
import json
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from datasets import ClassLabel, Dataset, DatasetDict
from PIL import Image
from rich.console import Console
from support.recipes import BERT, GPT

from kit.data.guess import sample_data
from kit.diagnostics.data_report import inspect_path
from kit.diagnostics.data_tables import commands, render_data
from kit.errors import DataError, KitError
from kit.recipe.data import DataSection
from kit.tasks.registry import suggest

ROWS = 40
WORDS = ("the", "a", "dog", "cat", "bird", "house", "sees", "runs", "likes", "small", "big", "red", "and", "under")
TINY = {
    "train.max_steps": 2, "train.warmup_steps": 1, "train.save_steps": 2, "eval.steps": 0, "train.logging_steps": 1,
    "train.mixed_precision": "no",
}  # fmt: skip
ENCODER = f"model={json.dumps(BERT | {'max_position_embeddings': 400})}"
LABELED = [ENCODER, "tokenizer.train=char"]
DECODER = f"model={json.dumps(GPT | {'n_positions': 64})}"
RNN = 'model={"type": "rnn_seq2seq", "cell": "gru", "hidden_size": 8, "embedding_size": 8}'


def sentence(seed: int, words: int = 6) -> str:
    drawn = random.Random(seed)
    return f"{' '.join(drawn.choices(WORDS, k=words))} {seed}"


def write_csv(path: Path, columns: dict[str, Any], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    lines = [columns, *zip(*columns.values(), strict=True)]
    path.write_text("".join(delimiter.join(map(str, line)) + "\n" for line in lines), encoding)
    return path


def write_jsonl(path: Path, row: Callable[[int], dict[str, Any]], rows: int = ROWS) -> Path:
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(rows)), "utf-8")
    return path


def texts(seed: int = 0, words: int = 6) -> list[str]:
    return [sentence(seed + number, words) for number in range(ROWS)]


def labels(*names: str) -> list[str]:
    return [names[number % len(names)] for number in range(ROWS)]


def write_parallel(folder: Path) -> Path:
    for split in ("train", "val"):
        for suffix in ("de", "en"):
            (folder / f"{split}.{suffix}").write_text("\n".join(texts(len(suffix + split))) + "\n", "utf-8")
    return folder


def write_squad(folder: Path) -> Path:
    for split in ("train", "dev"):
        paragraphs = [
            {
                "context": f"the cat sees {number}",
                "qas": [
                    {"id": f"{number}", "question": f"who {number}?", "answers": [{"text": "cat", "answer_start": 4}]}
                ],
            }
            for number in range(6)
        ]
        articles = [{"title": f"{split} {number}", "paragraphs": [part]} for number, part in enumerate(paragraphs)]
        (folder / f"{split}.json").write_text(json.dumps({"data": articles}), "utf-8")
    return folder


def write_conll(folder: Path) -> Path:
    for name in ("eng.train", "eng.testa", "eng.testb"):
        lines = [f"{word} NN {'B-X' if word == 'dog' else 'O'}\n" for word in sentence(3, 40).split()]
        (folder / name).write_text(
            "".join(f"{line}\n" if n % 5 == 4 else line for n, line in enumerate(lines)), "utf-8"
        )
    return folder


def write_images(folder: Path) -> Path:
    for number in range(ROWS):
        Image.new("RGB", (8, 8), (number * 6, 0, 0)).save(folder / f"{number}.png")
    write_jsonl(folder / "metadata.jsonl", lambda n: {"file_name": f"{n}.png", "text": sentence(n)})
    return folder


def dialogue(number: int) -> dict[str, Any]:
    roles = ("user", "assistant") * 2
    return {"messages": [{"role": role, "content": sentence(number + n)} for n, role in enumerate(roles)]}


def series(number: int) -> dict[str, Any]:
    return {"date": f"2024-{number // 28 + 1:02}-{number % 28 + 1:02}", "sales": number % 7 + 0.5}


CASES: dict[str, tuple[Callable[[Path], Path], str, str, list[str]]] = {
    "labels": (
        lambda folder: write_csv(folder / "a.csv", {"review": texts(), "stars": labels("good", "bad")}, ";"),
        "text → one of 2 labels", "classification_banking77", LABELED,
    ),
    "pairs": (
        lambda folder: write_csv(
            folder / "a.tsv",
            {"sentence1": texts(), "sentence2": texts(5), "label": labels("0", "1")}, "\t", "utf-16",
        ),
        "pair of texts → one of 2 labels", "classification_banking77", LABELED,
    ),
    "numbers": (
        lambda folder: write_jsonl(folder / "a.jsonl", lambda n: {"text": sentence(n), "score": n / 7}),
        "text → number", "classification_banking77", LABELED,
    ),
    "several labels": (
        lambda folder: write_jsonl(folder / "a.jsonl", lambda n: {"text": sentence(n), "topics": [WORDS[n % 3]]}),
        "text → any of 3 labels", "classification_banking77", LABELED,
    ),
    "tags": (write_conll, "words → one of 2 tags each", "tagging_wnut17", LABELED),
    "answers": (
        write_squad, "question and text → part of the text", "qa_squad",
        [*LABELED, "data.max_question_length=20", "data.doc_stride=8", "data.max_length=64"],
    ),
    "answers as texts": (
        lambda folder: write_csv(folder / "a.csv", {
            "question": [f"who {n}?" for n in range(ROWS)],
            "context": [f"the {WORDS[n % 9]} sees" for n in range(ROWS)],
            "answer": [WORDS[n % 9] for n in range(ROWS)],
        }),
        "question and text → part of the text", "qa_squad",
        [*LABELED, "data.max_question_length=20", "data.doc_stride=8", "data.max_length=64"],
    ),
    "parallel text": (write_parallel, "de → en (text to text)", "multi30k_transformer", [RNN, "eval.average=null"]),
    "prose": (
        lambda folder: write_csv(folder / "a.txt", {" ".join(texts()): texts()}),
        "text → the next token", "gpt_tiny", [DECODER, "data.block_size=32"],
    ),
    "a folder of texts": (
        lambda folder: write(folder, README_txt="not a text", **{
            f"{name}_txt": "\n\n".join(texts(len(name))) for name in ("one", "three", "seventeen", "story")
        }),
        "text → the next token", "gpt_tiny", [DECODER, "data.block_size=32"],
    ),
    "images": (
        write_images, "image → caption", "emoji_captions",
        ['model={"type": "rnn_captioner", "image_size": 16, "cnn_channels": [4], "cnn_blocks": 1, "cell": "gru", '
         '"hidden_size": 8, "embedding_size": 8}'],
    ),
    "dialogues": (
        lambda folder: write_jsonl(folder / "a.jsonl", dialogue), "turns → reply", "sgd_hred",
        ['model={"type": "hred", "cell": "gru", "hidden_size": 8, "embedding_size": 8}'],
    ),
    "series": (
        lambda folder: write_csv(folder / "a.csv", {
            "date": [series(n)["date"] for n in range(200)], "sales": [series(n)["sales"] for n in range(200)],
        }),
        "past → future of sales", "pendulum", ['model={"type": "rnn_forecaster", "cell": "gru", "hidden_size": 8}'],
    ),
    "several series": (
        lambda folder: write_csv(folder / "a.csv", {
            "date": [series(n)["date"] for n in range(200)], "load": range(200), "degrees": range(1, 201),
        }),
        "past → future of load and degrees", "pendulum",
        ['model={"type": "rnn_forecaster", "cell": "gru", "hidden_size": 8}'],
    ),
    "instructions": (
        lambda folder: write_jsonl(folder / "a.jsonl", lambda n: {"instruction": sentence(n), "output": sentence(n)}),
        "prompt → answer of a causal language model", "lora_causal_lm",
        [DECODER, "tokenizer.train=char", "data.max_length=64", "eval.max_new_tokens=4"],
    ),
}  # fmt: skip
"""How each data set is written, the task that kit guesses, the recipe, and tiny settings for it."""
SAME_TASK = ("pairs", "numbers", "several labels", "answers as texts", "several series")
"""Cases of a task that another case trains."""


@pytest.mark.parametrize("name", CASES)
def test_the_command_that_kit_data_prints_trains(name: str, tmp_path: Path, kit_here: RunKit) -> None:
    write, description, recipe, settings = CASES[name]
    (tmp_path / "own data").mkdir()
    path = write(tmp_path / "own data").relative_to(tmp_path)
    shown = kit_here("data", path, *settings)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    *_, title, command = shown.stdout.splitlines()
    assert title == f"Most likely: {description}"
    program, *arguments = shlex.split(command)
    assert [program, *arguments[:2]] == ["kit", "train", recipe]
    tiny = [f"{key}={value}" for key, value in TINY.items()]
    if name in SAME_TASK:
        return  # `kit data` has loaded the data by these arguments
    done = kit_here(*arguments, *tiny, "--output", "run")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert results["test" if "test" in results else "validation"]["examples"] > 0


def write(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


TABLE = "".join(f"{sentence(n)},{'yes' if n % 2 else 'no'}\n" for n in range(ROWS))
GUESSES: dict[str, tuple[dict[str, str | bytes], dict[str, Any], str]] = {
    "no header": ({"train_csv": TABLE}, {"columns": ["text", "label"]}, "text → one of 2 labels"),
    "bars": ({"a_csv": "text|label\n" + TABLE.replace(",", "|")}, {"delimiter": "|"}, "text → one of 2 labels"),
    "tabs in csv": ({"a_csv": "text\tlabel\n" + TABLE.replace(",", "\t")}, {"delimiter": "\t"},
                    "text → one of 2 labels"),
    "latin-1": ({"a_csv": ("text,label\n" + TABLE.replace("cat", "café")).encode("latin-1")},
                {"encoding": "cp1252"}, "text → one of 2 labels"),
    "a table as txt": ({"a_txt": "text\tlabel\n" + TABLE.replace(",", "\t")}, {"delimiter": "\t"},
                       "text → one of 2 labels"),
    "other names of splits": (
        {"my-training_csv": "text,label\n" + TABLE, "my-dev_csv": "text,label\n" + TABLE, "README_txt": "a card"},
        {"train": "my-training", "validation": "my-dev"}, "text → one of 2 labels",
    ),
    "folders": ({"train__a_csv": "text,label\n" + TABLE, "test__a_csv": "text,label\n" + TABLE}, {},
                "text → one of 2 labels"),
    "an index of pandas": (
        {"a_csv": ",text,label\n" + "".join(f"{n},{row}" for n, row in enumerate(TABLE.splitlines(keepends=True)))}, {},
        "text → one of 2 labels",
    ),
    "decimal commas": (
        {"a_csv": "text;score\n" + "".join(f"{sentence(n)};{n},5\n" for n in range(ROWS))}, {"delimiter": ";"},
        "text → the next token",
    ),
    "labels in a cell": (
        {"a_csv": "text,genres\n" + "".join(f"{sentence(n)},{['a|b', '', 'b'][n % 3]}\n" for n in range(ROWS))},
        {}, "text → any of 2 labels",
    ),
    "wiki headings": ({"a_txt": " = One = \n\nthe cat\n\n = Two = \n\nthe dog\n"}, {}, "text → the next token"),
    "dialogues of texts": (
        {"a_jsonl": "".join(json.dumps({"dialog": [sentence(n), sentence(n + 1)], "act": [1, 2]}) + "\n"
                            for n in range(ROWS))}, {}, "turns → reply",
    ),
    "numbered tags": (
        {"a_jsonl": "".join(json.dumps({"tokens": ["the", WORDS[n % 5]], "pos": [0, n % 3]}) + "\n"
                            for n in range(ROWS))}, {}, "words → one of 3 tags each",
    ),
    "a rare label": ({"a_csv": "text,label\n" + TABLE + "what,maybe\n"}, {}, "text → one of 3 labels"),
    "quoted tsv": ({"a_tsv": "text\tlabel\n" + TABLE.replace(",", "\t") + '"a\tb"\tno\n'}, {"quoting": True},
                   "text → one of 2 labels"),
}  # fmt: skip
"""Files, the keys with which they are read, and what a model would learn from them."""


@pytest.mark.parametrize("name", GUESSES)
def test_formats_are_guessed(name: str, tmp_path: Path) -> None:
    files, keys, description = GUESSES[name]
    folder = write(tmp_path / "data", **files)
    sample = sample_data(str(folder))
    assert {key: value for key, value in sample.source.items() if key != "path"} == keys
    assert suggest(sample)[0].what == description


MISTAKES: dict[str, tuple[dict[str, str | bytes], str]] = {
    "empty": ({"a_csv": ""}, "a.csv is empty"),
    "a ragged table": ({"a_csv": "text,label\na,b\na,b,c\n"}, "line 3: 3 columns where its first line has 2"),
    "broken JSON": ({"a_jsonl": '{"text": "a"}\n{"text": '}, "line 2, column 10: invalid JSON"),
    "one split in two formats": ({"train_csv": "a,b\n", "train_tsv": "a\tb\n"}, "several files can be the split"),
    "nothing but commas": ({"a_csv": "," * 100_000}, "has 100,001 columns; kit reads at most 5,000"),
    "unequal sides": ({"train_de": "a\nb\n", "train_en": "a\n"}, "needs the same number of lines in every file"),
    "a JSON object": (
        {"a_json": '{"version": 1, "items": [{"a": 1}, {"a": 2}]}'},
        'key "items" seems to hold the rows',
    ),
    "bytes": ({"a_csv": bytes(range(256)) * 9}, "a.csv is not text"),
    "decimal commas": (
        {"a_csv": "date;load\n" + "".join(f"2024-01-{day:02};{day},5\n" for day in range(1, 28))},
        "load (numbers with decimal commas), of 27 rows. Every task needs",
    ),
    "images alone": ({"a_png": "x", "b_png": "x"}, 'add metadata.jsonl, with a line such as {"file_name": "a.png"'),
    "an unknown format": ({"a_docx": "x"}, "kit reads files that end in tsv, csv"),
    "texts of other splits": ({"dev_txt": "a\n", "story_txt": "b\n"}, "is named as the training data: dev, story"),
    "held-out texts": ({"held-out_txt": "a\n", "story_txt": "b\n"}, "named as the training data: held-out, story"),
    "texts for evaluation": ({"evaluation_txt": "a\n", "story_txt": "b\n"}, "the training data: evaluation, story"),
    "a test set by year": ({"tst2013_txt": "a\n", "story_txt": "b\n"}, "named as the training data: story, tst2013"),
    "no training data": ({"one_csv": "a,b\n", "two_csv": "a,b\n"}, "is named as the training data: one, two"),
    "gzip without its name": ({"a_csv": b"\x1f\x8b\x08"}, "compressed with gzip: add .gz to its name"),
    "one line of CoNLL": ({"a_conll": "-DOCSTART- O\n"}, "a.conll has no sentences"),
    "an old workbook": ({"a_xls": "x"}, "kit reads .xlsx, not the older .xls"),
    "nothing to learn": (
        {"a_csv": "id,ok\n1,yes\n2,yes\n3,yes\n"},
        "its columns fit no task: id (whole numbers), ok (text)",
    ),
    "classes as folders": ({f"train__pos__{n}_txt": "great" for n in range(3)}, "If pos is the class of the texts"),
}


def test_a_split_that_a_folder_of_texts_lacks_is_a_mistake(tmp_path: Path) -> None:
    """All texts are training data only if the user names no other split."""
    folder = write(tmp_path / "data", one_txt="a\n", two_txt="b\n")
    with pytest.raises(DataError, match=r'data\.test: .* has no split "gold"'):
        sample_data(str(folder), {"test": "gold"})


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_in_a_message(name: str, tmp_path: Path) -> None:
    files, message = MISTAKES[name]
    folder = write(tmp_path / "data", **files)
    with pytest.raises(KitError) as caught:
        inspect_path(str(folder if len(files) > 1 else next(folder.rglob("*.*"))))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("state", "problem"), [('{"_data_files": []}', "the list is empty"), ("[" * 100_000, "maximum recursion depth")]
)
def test_a_dataset_of_save_to_disk_without_its_list_of_files(tmp_path: Path, state: str, problem: str) -> None:
    (tmp_path / "state.json").write_text(state)
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(KitError, match=rf"state.json does not list the files of the dataset \({problem}"):
        inspect_path(str(tmp_path))


def test_the_report_shows_what_is_in_the_data(tmp_path: Path, kit_here: RunKit) -> None:
    rows = {"text": [*texts(words=80)[:-2], sentence(0, 80), " "], "label": labels("good", "bad")}
    write_csv(tmp_path / "train.csv", rows)
    write_csv(tmp_path / "test.csv", {"text": texts(words=3), "label": labels("bad")})
    settings = ["data.max_length=64", f"model={json.dumps(BERT)}", "tokenizer.train=word", "tokenizer.min_frequency=2"]
    report = inspect_path(str(tmp_path), settings)
    assert report.facts is not None
    train = report.facts.splits["train"]
    assert (train.read, train.truncated) == (ROWS, train.examples)
    assert train.sides["text"].lengths.shortest == 83  # with [CLS] and [SEP], before truncation
    assert train.left_out == {"empty text": 1, "held out for validation": 4}
    assert report.facts.splits["test"].labels == {"bad": ROWS}
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(render_data(report))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for part in (
        "Columns",
        "text → one of 2 labels",
        "empty text",
        "Unknown tokens",
        "duplicate of an earlier",
        "bad 40",
    ):
        assert part in "\n".join([printed, *commands(report)]), part
    done = kit_here("data", tmp_path, *settings, "--json")
    assert json.loads(done.stdout)["proposals"][0]["command"] == report.proposals[0].command


def test_mistakes_of_the_recipe_are_listed_below_the_report(tmp_path: Path, kit_here: RunKit) -> None:
    path = write_csv(tmp_path / "a.csv", {"text": texts(), "label": labels("a", "b")})
    done = kit_here("data", path, *LABELED, "data.validation_size=40")
    assert done.returncode == 2
    assert "To be settled before training" in done.stdout
    assert "40 rows cannot be held out of 40" in done.stdout


def test_without_the_tokenizer_lengths_are_counted_in_words(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", {"text": texts(), "label": labels("a", "b")})
    report = inspect_path(str(path))
    assert report.facts is not None
    assert report.facts.word_lengths["train"]["text"].median == 7
    assert any("tokenizer cannot be loaded" in note for note in report.facts.notes)


def test_long_runs_of_digits_are_recognized_in_linear_time(tmp_path: Path) -> None:
    """With a pattern that backtracks, one such cell takes hours."""
    (tmp_path / "train.csv").write_text("text,label\n" + f"{'9' * 200_000}x,a\n" * 20 + f"{'9' * 200_000},b\n" * 20)
    assert [column.kind for column in sample_data(str(tmp_path)).columns] == ["labels", "labels"]


def test_what_save_to_disk_wrote_and_rare_labels_are_loaded(tmp_path: Path) -> None:
    rows = Dataset.from_dict({"text": texts(), "label": [number % 2 for number in range(ROWS)]})
    DatasetDict({"train": rows.cast_column("label", ClassLabel(names=["x", "y"]))}).save_to_disk(tmp_path / "saved")
    assert sample_data(str(tmp_path / "saved")).columns[1].kind == "labels"
    path = write(tmp_path / "rare", a_csv="text,label\n" + TABLE + "what,maybe\n") / "a.csv"
    assert "data.label_names=[maybe, no, yes]" in inspect_path(str(path)).proposals[0].arguments


def test_a_dataset_on_the_hub_is_sampled_with_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Dataset.from_dict({"text": texts(), "label": [number % 2 for number in range(ROWS)]})
    requests = []

    def load(data: DataSection, path: Path) -> DatasetDict:
        requests.append((data.path, data.name))
        return DatasetDict({"train": rows.cast_column("label", ClassLabel(names=["a", "b"])), "heldout": rows})

    monkeypatch.setattr("kit.data.guess.load_from_hub", load)
    sample = sample_data("owner/name", {"name": "de"})
    assert requests == [("owner/name", "de")]
    assert sample.source == {"path": "owner/name", "name": "de", "test": "heldout"}
    assert [column.kind for column in sample.columns] == ["text", "labels"]


def test_a_name_that_is_neither_data_nor_a_recipe(kit_here: RunKit, tmp_path: Path) -> None:
    write_csv(tmp_path / "rev.csv", {"text": texts()})
    assert kit_here("data", "rev.cvs").stderr.endswith(
        f'file or folder {tmp_path / "rev.cvs"}. Did you mean "rev.csv"?\n'
    )
    assert 'no file, folder or recipe "dates_rn". Did you mean "dates_rnn"?' in kit_here("data", "dates_rn").stderr
