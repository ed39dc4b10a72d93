"""The benchmarks run with tiny sizes; their measurements are not asserted."""

import multiprocessing
import re
import sys
from pathlib import Path

import pytest
from support.processes import ForkedKit
from support.recipes import write_recipe
from support.scripts import FOLDERS, run_main, script, write_parallel_text
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from kit import load_recipe, train

SMALL = {"hidden_size": 8, "encoder_hidden_size": 4, "embedding_size": 8, "vocab_size": 60, "tokens_per_batch": 64}
WORDS = {"de": ("ein", "hund", "rennt", "schnell"), "en": ("a", "dog", "runs", "fast")}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks import each other, and start processes that measure memory: here these need no start-up time."""
    monkeypatch.syspath_prepend(FOLDERS[1])
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: fork)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_parallel_text(tmp_path / "text", WORDS)


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A tiny BERT with random weights that knows four words."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS["en"]]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=64,
    )  # fmt: skip
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    folder = tmp_path / "encoder"
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("name", "size"), [("mlm_step", "PAIRS"), ("clm_step", "BLOCKS")])
def test_steps_are_compared(name: str, size: str, monkeypatch, capsys) -> None:
    benchmark = script("mlm_step") if name == "mlm_step" else script("clm_step")
    for constant, value in {"VOCABULARY": 100, size: 2, "LENGTH": 16}.items():
        monkeypatch.setattr(benchmark, constant, value)
    monkeypatch.setitem(sys.modules, name, benchmark)  # where a process looks for what it is to call
    run_main(benchmark, "--rounds", 1, "--steps", 1)
    output = capsys.readouterr().out
    assert re.search(r"peak memory of the steps: kit [\d,-]+ MB, stock [\d,-]+ MB", output)
    assert re.search(r"round 1: kit [\d.]+ s, stock [\d.]+ s a step", output)


def test_the_loop_is_compared_with_a_bare_one(text: Path, monkeypatch, capsys) -> None:
    benchmark = script("train_overhead")
    tiny = re.sub(r"(\w+_size|tokens_per_batch): \d+", lambda match: f"{match[1]}: {SMALL[match[1]]}", benchmark.RECIPE)
    monkeypatch.setattr(benchmark, "RECIPE", tiny)
    run_main(benchmark, text, "--steps", 2, "--rounds", 1)
    output = capsys.readouterr().out
    for contender in ("kit", "bare loop, bucketed", "bare loop, random batches"):
        assert re.search(rf"^{contender} +[\d,]+ target tokens/s", output, re.MULTILINE), contender


def test_both_searches_write_the_same(text: Path, tmp_path: Path, capsys) -> None:
    small = [
        "hidden_size=16", "encoder_layers=1", "decoder_layers=1", "num_attention_heads=2", "intermediate_size=16",
        "norm=post",
    ]  # fmt: skip
    overrides = [
        *(f"model.{value}" for value in small), f"data.path={text}", "train.max_steps=2", "tokenizer.vocab_size=60",
        "eval.steps=0", "eval.max_new_tokens=12", "eval.num_beams=1", "eval.examples=0",
    ]  # fmt: skip
    run = train(load_recipe("multi30k_transformer", overrides), tmp_path / "run").folder
    files = [text / f"test_2016_flickr.{language}" for language in WORDS]
    run_main(script("decode"), run, *files, "--beams", 2, "--batch", 4, "--rounds", 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:20].strip() for line in lines[:4]] == [
        "kit", "kit, as it ships", "Marian, file order", "Marian, sorted",
    ]  # fmt: skip
    assert all(line.endswith("8 of 8 outputs as kit's") for line in lines[:4])


def test_fine_tuning_is_compared_with_the_trainer(encoder: Path, tmp_path: Path, capsys) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rows = [f"{' '.join(WORDS['en'][: 1 + n % 4])}\t{n % 2}" for n in range(64)]
    for name in ("train", "dev"):
        (data / f"{name}.tsv").write_text("".join(f"{row}\n" for row in rows))
    run_main(script("finetune"), encoder, data, "--epochs", 8, "--batch", 8)  # seconds are kept with one digit
    output = capsys.readouterr().out
    for side in ("kit", "Trainer", "kit, float32", "Trainer, by length"):
        assert re.search(rf"^\| {side} +\| [\d.]+ +\| [\d.]+ +\| [\d.]+ +\|$", output, re.MULTILINE), side


def test_a_recipe_is_trained_by_the_trainer(tmp_path: Path, capsys) -> None:
    overrides = ["train.max_steps=null", "train.num_train_epochs=1", "train.batch_size=64"]
    run_main(script("against_trainer"), write_recipe(tmp_path, "classification"), *overrides)
    output = capsys.readouterr().out
    for figure in ("train seconds", "validation accuracy", "test accuracy"):
        assert re.search(rf"^\| {figure} +\| [\d.]+", output, re.MULTILINE), figure


def test_the_memory_of_generating_is_measured(monkeypatch, capsys) -> None:
    benchmark = script("generate_memory")
    monkeypatch.setattr(benchmark.subprocess, "Popen", ForkedKit)
    with pytest.raises(SystemExit) as ended:
        run_main(benchmark, "--lines", 20, "--limit", 100_000)
    assert ended.value.code in (0, False)
    output = capsys.readouterr().out
    assert re.search(r"^one line: peak [\d,]+ MB, [\d,]+ s\n20 lines: peak [\d,]+ MB", output)


def test_the_estimate_of_memory_is_compared(tmp_path: Path, monkeypatch, capsys) -> None:
    benchmark = script("estimated_memory")
    monkeypatch.setattr(benchmark.subprocess, "Popen", ForkedKit)
    recipe = write_recipe(tmp_path, "classification")
    with pytest.raises(SystemExit):
        run_main(benchmark, recipe, "--steps", 2, "--set", "train.batch_size=8", "data.sizes={train: 40}")
    assert re.search(
        r"^\| classification \| ([\d,]+ MB \| ){3}[\d.]+ \| -?[\d.]+ \|$", capsys.readouterr().out, re.MULTILINE
    )
