"""A pretrained model is trained only with tokens that it knows, and saved with the end token of its tokenizer."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import RunKit
from support.fine_tuning import fine_tuning, write_pairs
from support.labeling_runs import TINY
from support.pretrained_models import FAMILIES, LETTERS
from support.recipes import GPT, make_recipe
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BartTokenizer,
    BertConfig,
    BertForMaskedLM,
    GenerationConfig,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    PreTrainedTokenizerBase,
)

from kit import RecipeError, RunError, load_recipe, pipeline, train
from kit.data.text.tokenizer import train_tokenizer
from kit.inference.embed import Embedder
from kit.recipe.model import TokenizerSection
from kit.runs.prepare import Prepared, prepare
from kit.tasks.families.language_modeling.task import vocabulary_settings

TASKS = ("causal_lm", "masked_lm", "instruction_tuning", "classification", "tagging", "question_answering")
TEXTS = ["a cab b", "bac dab", "d a c b"] * 4


def characters(kind: Any, texts: list[str]) -> PreTrainedTokenizerBase:
    return train_tokenizer(TokenizerSection(**{"train": "char", "min_frequency": 1}), texts, kind)


def rows_of(task: str) -> list[dict[str, Any]]:
    columns: dict[str, dict[str, Any]] = {
        "instruction_tuning": {"prompt": "a b", "answer": "c d"},
        "classification": {"text": "a b", "label": "x"},
        "tagging": {"tokens": ["a", "b"], "tags": ["x", "y"]},
        "question_answering": {
            "question": "a", "context": "b c", "answers": {"text": ["c"], "answer_start": [2]},
        },
    }  # fmt: skip
    if task not in columns:
        return [{"text": text} for text in TEXTS]
    rows = [dict(columns[task]) for _ in range(8)]
    if task == "classification":
        rows[0]["label"] = "y"
    if task == "question_answering":
        rows = [row | {"id": str(number)} for number, row in enumerate(rows)]
    return rows


def prepared(folder: Path, task: str, pretrained: Path, tokenizer: Path) -> Prepared:
    """The prepared training of a model with another tokenizer."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for split in ("train", "validation"):
        text = "".join(json.dumps(row) + "\n" for row in rows_of(task))
        (data / f"{split}.jsonl").write_text(text, encoding="utf-8")
    keys: dict[str, Any] = {"path": str(data)}
    if task.endswith("lm"):
        keys |= {"block_size": 8, "cache": False}
    if task == "instruction_tuning":
        keys |= {"prompt": "prompt", "answer": "answer", "template": "{prompt} "}
    if task == "question_answering":
        keys |= {"max_length": 16, "doc_stride": 2, "max_question_length": 4}
    if task == "tagging":
        keys |= {"scheme": "none"}
    names = {"model": {"pretrained": str(pretrained)}, "tokenizer": {"pretrained": str(tokenizer)}}
    return prepare(make_recipe(folder, task, keys, **names))


def save(folder: Path, task: str) -> Path:
    """A pretrained model that suits a task."""
    torch.manual_seed(0)
    causal = task in ("causal_lm", "instruction_tuning")
    tokenizer = characters("causal" if causal else "masked", TEXTS)
    config_class, sizes = (GPT2Config, GPT) if causal else (BertConfig, TINY)
    settings = {name: value for name, value in sizes.items() if name != "type"}
    config = config_class(**settings, **vocabulary_settings(config_class, tokenizer))
    (GPT2LMHeadModel if causal else BertForMaskedLM)(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_a_tokenizer_with_other_ids_is_rejected(tmp_path: Path, task: str) -> None:
    pretrained = save(tmp_path / "pretrained", task)
    kind = "causal" if task in ("causal_lm", "instruction_tuning") else "masked"
    fewer = characters(kind, ["b c d", "d d c"])
    assert len(fewer) < len(AutoTokenizer.from_pretrained(pretrained))
    fewer.save_pretrained(tmp_path / "fewer")
    with pytest.raises(RecipeError, match=r"tokenizer\.pretrained: \d+ of its \d tokens do not have the ids.*Remove"):
        prepared(tmp_path, task, pretrained, tmp_path / "fewer")
    # the same tokens in the same order are accepted
    shutil.copytree(pretrained, tmp_path / "same", ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    assert not [note for note in prepared(tmp_path, task, pretrained, tmp_path / "same").built.notes if "token" in note]


def test_encoder_decoders_reject_them_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data = write_pairs(tmp_path / "data")
    words = ["<s>", "<pad>", "</s>", "<unk>", "Ġ", *reversed(LETTERS), "<mask>"]
    BartTokenizer(vocab={word: number for number, word in enumerate(words)}, merges=[]).save_pretrained(tmp_path / "t")
    path = fine_tuning(tmp_path, data, FAMILIES["bart"](), {"tokenizer": {"pretrained": str(tmp_path / "t")}})
    with pytest.raises(RecipeError, match=r"26 of its 33 tokens do not have the ids .* ':' has the id 5, which is 'a'"):
        prepare(load_recipe(path))


def test_subset_of_the_vocabulary_is_accepted_and_reported(tmp_path: Path) -> None:
    pretrained = save(tmp_path / "pretrained", "causal_lm")
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    last = max(content["model"]["vocab"], key=content["model"]["vocab"].get)
    del content["model"]["vocab"][last]
    tokenizer.save_pretrained(tmp_path / "part")
    (tmp_path / "part" / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    size = len(tokenizer)
    notes = prepared(tmp_path, "causal_lm", pretrained, tmp_path / "part").built.notes
    assert notes == [f"tokenizer.pretrained has {size - 1} tokens, and model.pretrained embeddings for {size}"]


def test_a_model_without_a_tokenizer_is_compared_by_its_end_token(tmp_path: Path) -> None:
    pretrained = save(tmp_path / "pretrained", "causal_lm")
    shutil.copytree(pretrained, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    assert prepared(tmp_path, "causal_lm", tmp_path / "bare", pretrained).built.notes == []
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    tokenizer.eos_token = "<pad>"
    tokenizer.save_pretrained(tmp_path / "other")
    with pytest.raises(RecipeError, match=r"its end token has the id 1, but that of model\.pretrained has the id 2"):
        prepared(tmp_path, "causal_lm", tmp_path / "bare", tmp_path / "other")


def test_the_saved_end_token_is_that_of_the_tokenizer(tmp_path: Path, kit_here: RunKit) -> None:
    """BART has the same tokens as its tokenizer, which ends texts with another one of them."""
    (tmp_path / "data").mkdir()
    data, family = write_pairs(tmp_path / "data"), FAMILIES["bart"]()
    words = family.tokenizer.get_vocab()
    BartTokenizer(vocab=words, merges=[], eos_token="<mask>").save_pretrained(tmp_path / "tokenizer")
    end = words["<mask>"]
    section = {"tokenizer": {"pretrained": str(tmp_path / "tokenizer")}, "train": {"max_steps": 60}}
    run = train(load_recipe(fine_tuning(tmp_path, data, family, section)), tmp_path / "run")
    note = f"eos_token_id: {end}, as in the tokenizer, instead of 2, as in model.pretrained"
    assert run.results["initialization"] == [note]
    model = run.folder / "model"
    assert AutoConfig.from_pretrained(model).eos_token_id == end
    assert GenerationConfig.from_pretrained(model).eos_token_id == end
    assert AutoTokenizer.from_pretrained(model).eos_token_id == end
    (tmp_path / "lines.txt").write_text("ja\nder hund\n", encoding="utf-8")
    done = kit_here("generate", run.folder, tmp_path / "lines.txt", "--scores")
    assert [line.split("\t")[3] for line in done.stdout.splitlines()] == ["yes", "yes"]  # finished
    texts = [line.split("\t")[4] for line in done.stdout.splitlines()]
    records = pipeline("translation", model)(["ja", "der hund"])
    assert [record["translation_text"] for record in records] == texts


def test_the_padding_of_a_classifier_is_that_of_its_tokenizer(tmp_path: Path) -> None:
    """GPT-2 classifies at the last token that is not padding, which it knows by its configuration."""
    pretrained = save(tmp_path / "pretrained", "causal_lm")
    model = GPT2ForSequenceClassification.from_pretrained(pretrained, pad_token_id=5)
    model.save_pretrained(pretrained)
    built = prepared(tmp_path, "classification", pretrained, pretrained).built
    assert built.model.config.pad_token_id == AutoTokenizer.from_pretrained(pretrained).pad_token_id == 1
    assert "pad_token_id: 1, as in the tokenizer, instead of 5, as in model.pretrained" in built.notes


def test_a_folder_with_the_tokenizer_of_another_model_is_refused(
    trained: Path, tmp_path: Path, kit_here: RunKit
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    large = save(tmp_path / "other", "causal_lm")
    shutil.copytree(large, tmp_path / "large")
    tokenizer = characters("causal", [chr(number) for number in range(300, 700)])
    tokenizer.save_pretrained(tmp_path / "large")
    tokenizer.save_pretrained(run / "model")
    (tmp_path / "lines.txt").write_text("a\n", encoding="utf-8")
    for folder, problem in (
        (run, "names the class 'TokenizersBackend', but there is a second vocabulary, target_tokenizer.json"),
        (tmp_path / "large", "its tokenizer has 404 tokens, and the model"),
    ):
        done = kit_here("generate", folder, tmp_path / "lines.txt")
        assert done.returncode == 2
        assert problem in done.stderr
    with pytest.raises(RunError, match="its tokenizer has 404 tokens"):
        Embedder(tmp_path / "large")
    ends = tmp_path / "ends"
    shutil.copytree(trained, ends)
    settings = GenerationConfig.from_pretrained(ends / "model")
    settings.eos_token_id = 5
    settings.save_pretrained(ends / "model")
    with pytest.raises(RunError, match="texts of its tokenizer end with the token 2, and those of the model with 5"):
        pipeline("translation", ends)
    done = kit_here("generate", ends, tmp_path / "lines.txt")
    assert (done.returncode, "do not belong together" in done.stderr) == (2, True)
