"""Loading a model prints no false warning and never fills in missing weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.labeling_runs import recipe, write_rows
from support.recipes import BERT
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, BertConfig
from transformers.utils import logging

import kit
from kit.data.text.tokenizer import Tokenizers, train_tokenizer
from kit.errors import RunError
from kit.pretrained.export import export_model
from kit.pretrained.loading import load_model
from kit.recipe.model import TokenizerSection
from kit.runs.prepare import prepare
from kit.tasks.families.language_modeling.task import vocabulary_settings


@pytest.fixture
def verbose() -> Iterator[None]:
    """transformers as it is used from Python: kit's command line silences it."""
    before = logging.get_verbosity()
    logging.set_verbosity_warning()
    yield
    logging.set_verbosity(before)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a masked-LM head and random weights, and rows to fine-tune it on."""
    folder = tmp_path_factory.mktemp("masked")
    rows = [{"text": text, "label": text[0]} for text in ("ab", "ba", "cab")]
    write_rows(folder / "data", train=rows, validation=rows)
    tokenizer = train_tokenizer(TokenizerSection(train="char", min_frequency=1), ["abc"] * 3, "masked")
    sizes = {name: value for name, value in BERT.items() if name != "type"}
    config = BertConfig(**sizes, **vocabulary_settings(BertConfig, tokenizer))
    export_model(folder / "model", AutoModelForMaskedLM.from_config(config), Tokenizers(tokenizer, tokenizer))
    return folder


def test_loading_reports_nothing(
    masked: Path, tmp_path: Path, verbose: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither the head of another task as unexpected, nor as newly initialized what training or an adapter brings, nor
    bars."""
    model, data = {"pretrained": str(masked / "model")}, {"path": str(masked / "data")}
    prepared = prepare(recipe(tmp_path, "classification", data, model=model))
    run = kit.train(
        recipe(tmp_path, "classification", data, model=model, peft={"method": "lora"}, train={"max_steps": 1}),
        tmp_path / "run",
        quiet=True,
    )
    assert type(prepared.model).__name__ == "BertForSequenceClassification"
    kit.pipeline("text-classification", model=str(run.folder))("ab")
    kit.pipeline("fill-mask", model=str(masked / "model"))("a[MASK]")
    assert capfd.readouterr() == ("", "")


def test_missing_weights_are_not_invented(masked: Path, tmp_path: Path) -> None:
    model = load_model(AutoModelForMaskedLM, masked / "model")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["cls.predictions.transform.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(RunError, match=r"weights are incomplete: cls\.predictions\.transform\.dense\.weight"):
        load_model(AutoModelForMaskedLM, tmp_path)


@pytest.mark.parametrize("kind", ["modernbert", "roberta", "albert"])
def test_special_tokens_are_those_of_the_tokenizer(masked: Path, kind: str) -> None:
    """The defaults of a class belong to its published vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(masked / "model")
    config_class = type(AutoConfig.for_model(kind))
    config = config_class(**vocabulary_settings(config_class, tokenizer))
    assert (config.bos_token_id, config.eos_token_id) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert config.pad_token_id == tokenizer.pad_token_id
