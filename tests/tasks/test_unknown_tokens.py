"""Words outside the vocabulary show in outputs as the unknown token, count in every metric, and are reported."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from support.pretrained_models import FAMILIES
from support.recipes import RNN, WORDS, make_recipe

from kit import pipeline, train
from kit.data.text.tokenizer import Tokenizers, train_tokenizer, train_tokenizers
from kit.evaluation.metrics import compute_metrics
from kit.pipelines import image_to_text, text_to_text
from kit.pipelines.text_to_text import decode_text
from kit.recipe.model import Seq2SeqTokenizerSection, TokenizerSection

UNKNOWN = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose targets are "the", a word of this example alone, and "end"."""
    folder = tmp_path_factory.mktemp("unknown")
    for split, count in (("train", 40), ("validation", 4)):
        names = [f"{split[0]}{'abcdefghij'[number // 10]}{'abcdefghij'[number % 10]}" for number in range(count)]
        (folder / f"{split}.de").write_text("".join(f"der {name} da\n" for name in names), encoding="utf-8")
        (folder / f"{split}.en").write_text("".join(f"the {name} end\n" for name in names), encoding="utf-8")
    recipe = make_recipe(
        folder,
        "translation",
        {"path": str(folder), "source": "de", "target": "en"},
        model={"type": "rnn_seq2seq", **RNN, "attention": "additive"},
        tokenizer={**WORDS, "min_frequency": 3},
        train={"max_steps": 40, "batch_size": 20, "learning_rate": 2e-2},
        eval={"steps": 0, "metrics": ["bleu", "token_accuracy"], "max_new_tokens": 8, "num_beams": 1},
    )
    return train(recipe, folder / "run").folder


def test_unknown_words_are_predicted_counted_and_scored(run: Path, kit_here: RunKit) -> None:
    rows = [json.loads(line) for line in (run / "predictions" / "validation.jsonl").read_text().splitlines()]
    predictions = [row["prediction"] for row in rows]
    assert predictions == ["the <unk> end"] * 4
    expected = compute_metrics(["bleu", "token_accuracy"], predictions, [row["target"] for row in rows])
    figures = json.loads((run / "results.json").read_text())["validation"]
    assert {name: figures[name] for name in expected} == expected
    assert figures["token_accuracy"] == pytest.approx(2 / 3)
    assert figures["unknown_tokens"] == 4
    assert "| Unknown tokens in the output (lower is better) | 4 |" in (run / "README.md").read_text()
    again = kit_here("eval", run, "--split", "validation", "--json")
    assert json.loads(again.stdout)["unknown_tokens"] == 4


def test_unknown_words_are_generated_and_reported(run: Path, kit_here: RunKit, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("der hund da\nder da\n", encoding="utf-8")
    written = kit_here("generate", run, tmp_path / "lines.txt")
    assert written.stdout.splitlines()[0] == "the <unk> end"
    count = written.stdout.count("<unk>")
    assert f"{count} unknown token" in written.stderr
    assert pipeline("translation", model=run)("der hund da") == [{"translation_text": "the <unk> end"}]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("word", "a bird, b", "a <unk>, b"),
        ("char", "a z b", "a <unk> b"),
        ("bpe", "a z b", "a <unk> b"),
        ("wordpiece", "a bird, b", "a <unk>, b"),
        ("unigram", "a z b", "a <unk> b"),
        ("byte_bpe", "a bird, b", "a bird, b"),
    ],
)
def test_every_tokenizer_marks_unknown_text(kind: str, text: str, expected: str) -> None:
    section = Seq2SeqTokenizerSection(
        **{"train": kind, "vocab_size": 300, **({} if kind == "unigram" else {"min_frequency": 1})}
    )
    tokenizers = train_tokenizers(section, ["a b, a b"] * 3, [])
    ids = tokenizers.encode_target([text])
    assert tokenizers.decode(ids) == [expected]
    assert tokenizers.decode([[*ids[0], UNKNOWN]]) == [expected]  # nothing after the end
    assert tokenizers.count_unknown([[*ids[0], UNKNOWN]]) == (0 if kind == "byte_bpe" else 1)


def test_pretrained_and_masked_tokenizers_show_it_too() -> None:
    for name in ("t5", "marian"):
        tokenizer = FAMILIES[name]().tokenizer
        ids = tokenizer("ab Ω cd")["input_ids"]
        assert tokenizer.unk_token_id in ids
        assert decode_text(tokenizer, ids).replace(" ", "") == "ab<unk>cd"
        assert Tokenizers(tokenizer, tokenizer).decode([ids]) == [decode_text(tokenizer, ids)]
        known = tokenizer("ab cd")["input_ids"]
        assert decode_text(tokenizer, known) == tokenizer.decode(known, skip_special_tokens=True) == "ab cd"
    section = TokenizerSection(**{"train": "word", "min_frequency": 1})
    masked = train_tokenizer(section, ["a b"], "masked")
    assert decode_text(masked, masked("a bird b")["input_ids"]) == "a [UNK] b"


@pytest.mark.parametrize("name", ["unknown_id", "decode_text"])
def test_code_copied_by_the_image_pipeline_is_equal(name: str) -> None:
    original, copy = (vars(module)[name] for module in (text_to_text, image_to_text))
    assert inspect.getsource(original) == inspect.getsource(copy)


def test_continuations_and_answers_show_unknown_words(tmp_path: Path, kit_here: RunKit) -> None:
    """The word that a prompt and its answer share is in no other example."""
    words = [f"{'abcdefghij'[number // 10]}{'abcdefghij'[number % 10]}" for number in range(60)]
    rows = [{"prompt": f"name {word}", "answer": f"its {word} name"} for word in words]
    for split, part in (("train", rows[:54]), ("validation", rows[54:])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    data: dict[str, Any] = {"path": str(tmp_path), "prompt": "prompt", "answer": "answer", "template": "{prompt} :"}
    recipe = make_recipe(
        tmp_path,
        "instruction_tuning",
        data,
        tokenizer={**WORDS, "min_frequency": 3},
        train={"max_steps": 40, "batch_size": 18, "learning_rate": 3e-2},
        eval={"steps": 0, "metrics": ["exact_match"], "max_new_tokens": 6},
    )
    run = train(recipe, tmp_path / "run")
    assert run.results["validation"]["unknown_tokens"] == 6
    (tmp_path / "lines.txt").write_text("name zz\n", encoding="utf-8")
    written = kit_here("generate", run.folder, tmp_path / "lines.txt")
    assert written.stdout == "its <unk> name\n"
    assert "1 unknown token stands for a word" in written.stderr
